"""Which samples there should be: what a stats.json says, or the rows of the dataset itself."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import orjson

from hsstore.interop.matching import Rows
from hsstore.interop.surveying.names import MOST_SAMPLES
from hsstore.storage.filesystem import LOCAL, Filesystem

STATS = "stats.json"
STATS_BYTES = 16 << 20
SAYS_SAMPLES = re.compile(
    r"(total|num|n|expected)?_?(samples?|rows?|conversations?)(_?(total|count))?"
)
SAYS_TOKENS = re.compile(r"(total|num|n|expected)?_?tokens?(_?(total|count))?")


@dataclass(frozen=True, slots=True)
class Expectation:
    """How many samples and tokens there should be (None: unknown), and who says so.

    ``doubt`` tells why what was there to say it says nothing.
    """

    samples: int | None = None
    tokens: int | None = None
    evidence: str = ""
    doubt: str = ""


def from_stats(path: Path, filesystem: Filesystem = LOCAL) -> Expectation:
    """What a stats.json says.

    No two writers name its members alike: a whole number called ``num_samples``, ``total_samples``
    or the like is taken, at the top or one object deep. Two numbers that differ say nothing.
    """
    try:
        too_long = filesystem.status(path).st_size > STATS_BYTES
        document = None if too_long else orjson.loads(filesystem.read(path))
    except OSError as error:
        return Expectation(doubt=f"{path.name} cannot be read: {error.strerror or error}")
    except orjson.JSONDecodeError:
        return Expectation(doubt=f"{path.name} is no JSON")
    members = list(_members(document))
    samples, doubt = _one(members, SAYS_SAMPLES, "samples")
    tokens, _ = _one(members, SAYS_TOKENS, "tokens")
    if samples is None:
        return Expectation(doubt=f"{path.name} {doubt}")
    name, count = samples
    if count > MOST_SAMPLES:
        return Expectation(doubt=f"{path.name} says {name}: {count}, more than a tree can have")
    return Expectation(count, tokens and tokens[1], f"{path.name} says {name}: {count}")


def _members(document: object) -> Iterator[tuple[str, int]]:
    """The whole numbers of an object, and of the objects in it, by their names."""
    objects = [document]
    if isinstance(document, dict):
        objects += document.values()
    for found in objects:
        if isinstance(found, dict):
            yield from ((k, v) for k, v in found.items() if type(v) is int and v >= 0)


def _one(
    members: list[tuple[str, int]], pattern: re.Pattern[str], what: str
) -> tuple[tuple[str, int] | None, str]:
    """The one member that says a number, or why there is none."""
    saying = [(name, value) for name, value in members if pattern.fullmatch(name.lower())]
    if not saying:
        return None, f"does not say how many {what} there are"
    if len({value for _, value in saying}) > 1:
        listed = ", ".join(f"{name}: {value}" for name, value in saying)
        return None, f"says several numbers of {what} ({listed})"
    return saying[0], ""


def from_rows(path: Path, rows: Rows) -> Expectation:
    """What the dataset at ``path`` says, whose rows these are."""
    count, tokens = len(rows), int(rows.lengths.sum())
    return Expectation(count, tokens, f"{path} has {count} rows of {tokens} tokens")
