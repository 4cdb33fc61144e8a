"""Which shards one run of fsck looks at, and in which order."""

import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from hsstore.errors import MalformedInput
from hsstore.integrity.scrub.verdicts import Standing

PathLike = str | os.PathLike[str]


class Subset(NamedTuple):
    """Bucket ``number`` (from 1) of ``of``: the shards that a number leaves the same rest for.

    A shard stays in its bucket while the store grows; over all buckets each shard is in one.
    """

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def __contains__(self, shard: object) -> bool:
        return isinstance(shard, int) and shard % self.of == self.number - 1

    @classmethod
    def parse(cls, typed: str) -> "Subset":
        """``3/7`` as a bucket; MalformedInput for anything else."""
        parts = typed.split("/")
        if len(parts) == 2 and all(n.isascii() and n.isdecimal() for n in parts):  # noqa: PLR2004 - n/t
            number, of = map(int, parts)
            if 1 <= number <= of:
                return cls(number, of)
        raise MalformedInput(
            f"{typed!r} is no subset", remedy="give n/t with n from 1 to t: 3/7 is the third of 7"
        )


@dataclass(frozen=True, slots=True)
class Clock:
    """Where time comes from: ``now`` in seconds, UTC, and ``elapsed`` that is never set back."""

    now: Callable[[], float] = time.time
    elapsed: Callable[[], float] = time.monotonic


@dataclass(frozen=True, slots=True)
class Scrub:
    """How a run of fsck is one of many over the same store.

    Attributes:
        subset: only the shards of this bucket, (n, t).
        max_duration_seconds: begin no more shards after this time. One is always looked at.
        max_age_seconds: leave out shards found sound at this level or deeper within that time.
        state: the folder of the verdicts, read and kept; without one nothing is remembered. With
            one, shards never looked at come first, then those longest ago.
        report: a file for the report; it is kept while the run goes on.
        clock: where time comes from.

    """

    subset: tuple[int, int] | None = None
    max_duration_seconds: float | None = None
    max_age_seconds: float | None = None
    state: PathLike | None = None
    report: PathLike | None = None
    clock: Clock = Clock()

    def shards(self, shards: Iterable[int]) -> list[int]:
        """Those of ``shards`` that are of the subset; MalformedInput where there is no such."""
        if self.subset is None:
            return [*shards]
        bucket = Subset.parse("/".join(map(str, self.subset)))
        return [shard for shard in shards if shard in bucket]


class Schedule(NamedTuple):
    """What to look at, in order, and what was left out because it was verified recently."""

    shards: list[int]
    recent: list[int]


def schedule(
    shards: Iterable[int], standings: Mapping[int, Standing], since: float | None
) -> Schedule:
    """Order shards; leave out those that were found sound at ``since`` or later."""
    shards = [*shards]
    recent = {
        shard
        for shard, standing in standings.items()
        if since is not None and standing.sound and standing.time >= since
    }
    due = [shard for shard in shards if shard not in recent]
    due.sort(key=lambda shard: standings[shard].time if shard in standings else -1)
    return Schedule(due, [shard for shard in shards if shard in recent])


def refuse_within(root: Path, scrub: Scrub) -> None:
    """MalformedInput where a run would write into the store that it reads."""
    real = os.path.realpath(root)
    for option, path in (("state", scrub.state), ("report", scrub.report)):
        if path is not None and Path(os.path.realpath(path)).is_relative_to(real):
            raise MalformedInput(
                f"the {option} would lie inside the store, and fsck writes nothing there",
                place=os.fspath(path),
                remedy=f"give --{option} a place outside of it",
            )
