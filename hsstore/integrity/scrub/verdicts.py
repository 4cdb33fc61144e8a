"""Verdicts: what earlier runs of fsck saw of each shard, and whether that still says anything."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from hsstore.model import keys
from hsstore.model.finding import LEVELS, Finding, Level
from hsstore.storage.store import Store

CLOCKS_DIFFER_SECONDS = 60


class FileHint(NamedTuple):
    """What is known of a file without reading it; another one is another file."""

    size: int
    mtime_ns: int
    inode: int


class Verdict(NamedTuple):
    """That a generation of a shard was checked to a level: when (seconds, UTC), and how it was."""

    shard: int
    generation: int
    level: Level
    time: int
    sound: bool
    file: FileHint


class Accusation(NamedTuple):
    """What a run to ``level`` found by comparing shards.

    It stands while the shard has the finding's generation, until a run to that level or deeper has
    compared all shards.
    """

    level: Level
    finding: Finding


class Standing(NamedTuple):
    """When a shard was last checked to a level or deeper, and whether nothing is known against it.

    What a check found counts until one that is as deep finds nothing.
    """

    time: int
    sound: bool


class Verdicts:
    """The newest verdict of every shard at every level."""

    def __init__(self, verdicts: Iterable[Verdict] = ()) -> None:
        self._newest: dict[int, dict[Level, Verdict]] = {}
        self.add(verdicts)

    def __iter__(self) -> Iterator[Verdict]:
        for by_level in self._newest.values():
            yield from by_level.values()

    def add(self, verdicts: Iterable[Verdict]) -> None:
        """Take verdicts in; each replaces an older one."""
        for verdict in verdicts:
            by_level = self._newest.setdefault(verdict.shard, {})
            before = by_level.get(verdict.level)
            if before is None or before.time <= verdict.time:
                by_level[verdict.level] = verdict

    def standing(
        self, store: Store, shard: int, generation: int, level: Level, now: float
    ) -> Standing | None:
        """How a committed generation of a shard stands; None where no verdict is about it.

        One of another generation, or of a shard file that has changed since, is not; neither is
        one from the future, whatever clock it came by.
        """
        about = [
            verdict
            for verdict in self._newest.get(shard, {}).values()
            if verdict.generation == generation and verdict.time <= now + CLOCKS_DIFFER_SECONDS
        ]
        deep = [verdict for verdict in about if is_as_deep(verdict.level, level)]
        if not deep or (file := file_hint(store, shard)) is None:
            return None
        newest = max(deep, key=lambda verdict: verdict.time)
        if newest.file != file:
            return None
        same = [verdict for verdict in about if verdict.file == file]
        return Standing(newest.time, not any(_stands(verdict, same) for verdict in same))


def _stands(against: Verdict, verdicts: Iterable[Verdict]) -> bool:
    """Whether something was found that no later check, as deep as that one, took back."""
    return not against.sound and not any(
        later.sound and later.time > against.time and is_as_deep(later.level, against.level)
        for later in verdicts
    )


def is_as_deep(level: Level, other: Level) -> bool:
    """Whether a check to ``level`` says all that one to ``other`` does."""
    return LEVELS.index(level) >= LEVELS.index(other)


def file_hint(store: Store, shard: int) -> FileHint | None:
    """The hint of a shard's file as it is now; None where there is none to be had."""
    try:
        status = store.filesystem.status(store.root / keys.shard_file(shard))
    except OSError:
        return None
    return FileHint(status.st_size, status.st_mtime_ns, status.st_ino)
