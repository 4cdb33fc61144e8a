"""What a filesystem has left, and what deleting something would give back."""

import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hsstore.errors import MalformedInput

# POSIX counts st_blocks in these, whatever the filesystem's own blocks are.
STATUS_BLOCK_BYTES = 512
LARGEST_RESERVE, RESERVE_PART = 1 << 30, 100


@dataclass(frozen=True, slots=True)
class Space:
    """What the filesystem behind a path offers to this user.

    ``path`` is what was looked at: the path asked for or its nearest existing parent.
    ``available_bytes`` leaves out blocks that are free but reserved for root;
    ``available_inodes`` is None where the filesystem does not count inodes.
    """

    path: Path
    device: int
    total_bytes: int
    used_bytes: int
    available_bytes: int
    available_inodes: int | None


@dataclass(frozen=True, slots=True)
class Reclaimable:
    """What deleting some paths would free on one filesystem, and why it may be less than hoped."""

    bytes: int
    inodes: int
    notes: tuple[str, ...]


def available(path: Path) -> Space:
    """The space of the filesystem that holds ``path``, or would if it were created."""
    existing = _nearest_existing(path)
    found = os.statvfs(existing)
    return Space(
        path=existing,
        device=existing.stat().st_dev,
        total_bytes=found.f_blocks * found.f_frsize,
        used_bytes=(found.f_blocks - found.f_bfree) * found.f_frsize,
        available_bytes=found.f_bavail * found.f_frsize,
        available_inodes=found.f_favail if found.f_files else None,
    )


def usual_reserve(space: Space) -> int:
    """The bytes that a command leaves free where it is not told otherwise: 1 %, at most 1 GiB."""
    return min(LARGEST_RESERVE, space.total_bytes // RESERVE_PART)


def reclaimable(paths: Sequence[Path], device: int) -> Reclaimable:
    """What deleting ``paths`` would free on the filesystem ``device``.

    Allocated bytes: holes count nothing, a file with several hard links counts once and only if
    every link would go, symbolic links are not followed, and what is named twice counts once.
    Raises MalformedInput for a path that does not exist.
    """
    walk = _Walk(device)
    for path in _outermost(paths):
        walk.add(path)
    return walk.result()


@dataclass(slots=True)
class _Walk:
    """Adds up what lies under several paths."""

    device: int
    bytes: int = 0
    inodes: int = 0
    notes: list[str] = field(default_factory=list)
    folders: set[int] = field(default_factory=set)
    links: Counter[int] = field(default_factory=Counter)
    linked: dict[int, os.stat_result] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        status = path.lstat()
        if status.st_dev != self.device:
            self.notes.append(f"{path} is on another filesystem and frees nothing there")
            return
        if stat.S_ISLNK(status.st_mode):
            self.notes.append(f"{path} is a symbolic link, which is not followed")
        self._count(status)
        if stat.S_ISDIR(status.st_mode) and status.st_ino not in self.folders:
            self._descend(path, status)

    def _descend(self, path: Path, status: os.stat_result) -> None:
        pending = [path]
        self._enter(status)
        while pending:
            for entry in self._entries(pending.pop()):
                found = entry.stat(follow_symlinks=False)
                if found.st_dev != self.device:
                    self.notes.append(f"{entry.path} is a mount point and is left out")
                elif not stat.S_ISDIR(found.st_mode):
                    self._count(found)
                elif found.st_ino not in self.folders:
                    self._enter(found)
                    pending.append(Path(entry.path))

    def _enter(self, status: os.stat_result) -> None:
        self.folders.add(status.st_ino)
        self.bytes += status.st_blocks * STATUS_BLOCK_BYTES
        self.inodes += 1

    def _entries(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                yield from entries
        except PermissionError:
            self.notes.append(f"{folder} cannot be read and is left out")

    def _count(self, status: os.stat_result) -> None:
        if stat.S_ISDIR(status.st_mode):
            return
        if status.st_nlink > 1:
            self.links[status.st_ino] += 1
            self.linked[status.st_ino] = status
        else:
            self.bytes += status.st_blocks * STATUS_BLOCK_BYTES
            self.inodes += 1

    def result(self) -> Reclaimable:
        kept = 0
        for inode, status in self.linked.items():
            if self.links[inode] < status.st_nlink:
                kept += 1
            else:
                self.bytes += status.st_blocks * STATUS_BLOCK_BYTES
                self.inodes += 1
        if kept:
            self.notes.append(f"{kept} files have hard links elsewhere and free nothing")
        return Reclaimable(self.bytes, self.inodes, tuple(self.notes))


def _nearest_existing(path: Path) -> Path:
    return next(place for place in (path.absolute(), *path.absolute().parents) if place.exists())


def _outermost(paths: Iterable[Path]) -> list[Path]:
    """The paths, each once and none inside another; their last component stays unresolved."""
    resolved = []
    for path in paths:
        if not os.path.lexists(path):
            raise MalformedInput(
                "no such file or folder", place=str(path), remedy="check the path to reclaim"
            )
        # "..", "." and a trailing slash have no name of their own.
        named = path.name not in ("", "..")
        resolved.append(path.parent.resolve() / path.name if named else path.resolve())
    ordered = sorted(set(resolved))
    return [p for p in ordered if not any(other in p.parents for other in ordered)]
