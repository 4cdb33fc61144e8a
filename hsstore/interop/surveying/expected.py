"""Which samples there should be: what a stats.json says, or the rows of the dataset itself."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson

from hsstore.model.progress import Progress
from hsstore.storage.digest_index import DIGEST_BYTES, DigestIndex
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.token_file import token_digest
from hsstore.storage.tokenised import read_samples

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


class ExpectedRows:
    """The rows of a dataset by token digest: 24 bytes a row and its key, however long it is.

    ``keys`` and ``lengths`` (int64 [rows], tokens) are in the dataset's order.
    """

    def __init__(self, path: Path, progress: Progress) -> None:
        """Read the dataset. Raises MalformedInput as ``create`` does, naming file and line."""
        self.path = path
        self.keys: list[str] = []
        lengths: list[int] = []
        digests: list[bytes] = []
        progress.note(f"reading {path}")
        for sample in read_samples(path):
            self.keys.append(sample.key)
            lengths.append(len(sample.input_ids))
            digests.append(token_digest(sample.input_ids))
        self.lengths = np.array(lengths, np.int64)
        self.digests = np.array(digests, f"S{DIGEST_BYTES}")
        self._index = DigestIndex(self.digests)
        self._by_key = {key: row for row, key in enumerate(self.keys)}

    def __len__(self) -> int:
        return len(self.keys)

    def with_key(self, key: str) -> int | None:
        """The row that has a key of its own; a number that stands for one is none."""
        row = self._by_key.get(key)
        return None if row is None or key == str(row) else row

    def with_tokens(self, digest: bytes) -> list[int]:
        """The rows whose token ids have a digest, in order."""
        return self._index.find_all(digest)

    def expectation(self) -> Expectation:
        """How many samples and tokens the dataset has."""
        rows, tokens = len(self), int(self.lengths.sum())
        return Expectation(rows, tokens, f"{self.path} has {rows} rows of {tokens} tokens")
