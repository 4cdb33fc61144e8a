"""What a disk may hold after a power cut, by the weakest reading of POSIX.

Since a file was last synced, each sector of each write and each truncation arrived or did not, in
any order; or the file has its new length and zeros. Since a folder was last synced, each change of
a name arrived or did not: of a rename to another folder both, one or none, of a rename within a
folder all or nothing. Syncing a file says nothing about its name, syncing a folder nothing about
what is in its files or above it. A recording filesystem runs the real operations and keeps, after
each, states that a cut at that moment may leave.
"""

import itertools
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hsstore.storage import filesystem as seam
from hsstore.storage.filesystem import Buffer, Filesystem
from hsstore.testing.faults import Crash
from hsstore.testing.sync_sites import Site, role

SECTOR = 512


class Entry(NamedTuple):
    """A folder (``data`` None), or a name of a file; names of one file have the same ``inode``."""

    path: str
    data: bytes | None = None
    inode: int = -1


State = tuple[Entry, ...]


class _Write(NamedTuple):
    offset: int
    data: bytes


_inodes = itertools.count()


@dataclass(eq=False)
class _File:
    """``pending`` are the writes, and the sizes of the truncations, since the last sync."""

    durable: bytes = b""
    current: bytearray = field(default_factory=bytearray)
    pending: list[_Write | int] = field(default_factory=list)
    inode: int = field(default_factory=lambda: next(_inodes))


# What happened to names of one folder in one step; None where a name went away.
_Change = dict[str, "_File | _Folder | None"]


@dataclass(eq=False)
class _Folder:
    """``pending`` are the changes of names since the last sync."""

    durable: dict[str, "_File | _Folder"] = field(default_factory=dict)
    current: dict[str, "_File | _Folder"] = field(default_factory=dict)
    pending: list[_Change] = field(default_factory=list)

    def change(self, names: _Change) -> None:
        self.pending.append(names)
        _apply(self.current, names)

    def after(self, kept: Callable[[int], bool]) -> dict[str, "_File | _Folder"]:
        names = dict(self.durable)
        for number, change in enumerate(self.pending):
            if kept(number):
                _apply(names, change)
        return names


def _apply(names: dict[str, _File | _Folder], change: _Change) -> None:
    for name, node in change.items():
        if node is None:
            names.pop(name, None)
        else:
            names[name] = node


class RecordingFilesystem(Filesystem):
    """``states`` are what power cuts may leave of the tree at ``root``, and the last cut that may.

    ``operations`` counts the cuts so far: a state whose cut is n was possible after the n-th
    operation. ``sites`` counts the syncs that were made, by where they are in the code. Of those,
    the ones that match ``omitted`` are left out, ``first_omitted`` is the cut before the first of
    them, and instead of the last of the ``deadly`` turns of a site, and of all that follows, Crash
    is raised. While ``recording`` is False no states are kept. ``breadth`` says how many states of
    a cut are drawn by chance; where it is 0, changes are not lost or kept one by one either, but
    all together.
    """

    def __init__(self, root: Path, *, breadth: int = 1) -> None:
        self.states: dict[State, int] = {}
        self.operations = 0
        self.sites: Counter[Site] = Counter()
        self.omitted = ""
        self.deadly = ("", 0)
        self.first_omitted: int | None = None
        self.recording = True
        self._root = root
        self._breadth = breadth
        self._dead = False
        self._chance = random.Random(0)  # noqa: S311 - no secret
        self._tree = _read(root)
        self._settled: _Settled = {}
        self._open: dict[int, _File | _Folder] = {}

    def heal(self) -> None:
        """Let another process go on with what the system knows, synced or not."""
        self.deadly, self._dead = ("", 0), False

    # -- the model ------------------------------------------------------------------------------

    def _folder(self, path: Path) -> _Folder:
        folder = self._tree
        for name in path.relative_to(self._root).parts:
            # Some folders are made outside the seam.
            if name not in folder.current:
                folder.change({name: _Folder()})
            node = folder.current[name]
            folder = node if isinstance(node, _Folder) else _Folder()
        return folder

    def _begin(self) -> None:
        if self._dead:
            raise Crash

    def _cut(self) -> None:
        self.operations += 1
        if self.recording:
            self.states |= dict.fromkeys(self.possible(), self.operations)

    def possible(self) -> Iterator[State]:
        """What a power cut at this moment may leave."""
        unsynced = _unsynced(self._tree)
        for survival in self._survivals(unsynced):
            yield tuple(_walk(self._tree, "", survival, unsynced.above, self._settled))

    def _survivals(self, unsynced: "_Unsynced") -> Iterator["_Survival"]:
        yield _Survival()
        for names in (True, False):
            for data in (_lost, _zeroed, _current):
                yield _Survival(names=names, data=data)
        if self._breadth:
            for folder in unsynced.folders:
                for number in range(len(folder.pending)):
                    yield _Survival(names=True, odd=(folder, number))
                    yield _Survival(names=False, odd=(folder, number))
            for file in unsynced.files:
                yield _Survival(odd=(file, 0), odd_data=_lost)
                yield _Survival(odd=(file, 0), odd_data=_zeroed)
                yield _Survival(data=_lost, odd=(file, 0), odd_data=_current)
        for _ in range(self._breadth):
            yield _Survival(chance=self._chance)

    # -- the operations ---------------------------------------------------------------------------

    def open(self, path: Path, flags: int = os.O_RDONLY) -> int:
        """Open; a new file is an unsynced name."""
        new = flags & os.O_CREAT and not self.exists(path)
        if new:
            self._begin()
        fd = super().open(path, flags)
        if new:
            self._folder(path.parent).change({path.name: _File()})
            self._cut()
        if path == self._root or path.is_dir():
            self._open[fd] = self._folder(path)
        else:
            self._open[fd] = self._folder(path.parent).current[path.name]
        return fd

    def close(self, fd: int) -> None:
        """Close."""
        self._open.pop(fd, None)
        super().close(fd)

    def write_at(self, fd: int, data: Buffer, offset: int, path: Path) -> None:
        """Write; not durable."""
        self._begin()
        super().write_at(fd, data, offset, path)
        file, raw = self._file(fd), bytes(memoryview(data).cast("B"))
        file.pending.append(_Write(offset, raw))
        _write(file.current, offset, raw)
        self._cut()

    def truncate(self, fd: int, size: int, path: Path) -> None:
        """Truncate; not durable."""
        self._begin()
        super().truncate(fd, size, path)
        file = self._file(fd)
        file.pending.append(size)
        _resize(file.current, size)
        self._cut()

    def _file(self, fd: int) -> _File:
        node = self._open[fd]
        return node if isinstance(node, _File) else _File()

    def sync_data(self, fd: int, path: Path) -> None:
        """Make a file's bytes durable."""
        self.sync(fd, path)

    def sync(self, fd: int, path: Path) -> None:
        """Make a file's bytes, or a folder's names, durable."""
        self._begin()
        site = Site(_caller(), role(path.relative_to(self._root)))
        self.sites[site] += 1
        self._dead = (str(site), self.sites[site]) == self.deadly
        self._begin()
        if site.matches(self.omitted):
            if self.first_omitted is None:
                self.first_omitted = self.operations
            return
        node = self._open[fd]
        if isinstance(node, _File):
            node.durable = bytes(node.current)
        else:
            node.durable = dict(node.current)
        node.pending.clear()
        self._settled.clear()
        self._cut()

    def make_folder(self, path: Path) -> None:
        """Make a folder; its name is not durable until its parent is synced."""
        if not self.exists(path):
            self._begin()
            self._folder(path.parent).change({path.name: _Folder()})
            self._cut()
        super().make_folder(path)

    def link(self, source: Path, target: Path) -> None:
        """Link; not durable."""
        self._begin()
        super().link(source, target)
        node = self._folder(source.parent).current[source.name]
        self._folder(target.parent).change({target.name: node})
        self._cut()

    def rename(self, source: Path, target: Path) -> None:
        """Rename; not durable, and of two folders each by itself."""
        self._begin()
        super().rename(source, target)
        before, after = self._folder(source.parent), self._folder(target.parent)
        node = before.current[source.name]
        if node is after.current.get(target.name):
            return  # two names of one file: rename does nothing
        if before is after:
            before.change({source.name: None, target.name: node})
        else:
            before.change({source.name: None})
            after.change({target.name: node})
        self._cut()

    def unlink(self, path: Path) -> None:
        """Unlink; not durable."""
        self._begin()
        super().unlink(path)
        self._folder(path.parent).change({path.name: None})
        self._cut()

    def remove_folder(self, path: Path) -> None:
        """Remove a folder; not durable."""
        self._begin()
        there = self.exists(path)
        super().remove_folder(path)
        if there:
            self._folder(path.parent).change({path.name: None})
            self._cut()


def snapshot(root: Path) -> State:
    """The state that a tree is in, all of it durable."""
    return tuple(_walk(_read(root), "", _Survival(), set(), {}))


def write_state(state: State, root: Path) -> None:
    """Make a state into folders, files and their second names, at a path that must not exist."""
    first: dict[int, Path] = {}
    for path, data, inode in state:
        if data is None:
            (root / path).mkdir()
        elif inode in first:
            (root / path).hardlink_to(first[inode])
        else:
            (root / path).write_bytes(data)
            first[inode] = root / path


@dataclass(slots=True)
class _Survival:
    """Which changes of names arrive, and what of a file's bytes.

    ``odd`` is the one change, or file, that fares otherwise than the rest; where there is a
    ``chance`` it decides all.
    """

    names: bool = True
    data: "Callable[[_File], bytes]" = field(default_factory=lambda: _current)
    odd: tuple[_File | _Folder, int] | None = None
    odd_data: "Callable[[_File], bytes] | None" = None
    chance: random.Random | None = None

    def entries(self, folder: _Folder) -> dict[str, _File | _Folder]:
        def kept(number: int) -> bool:
            if self.chance is not None:
                return self.chance.random() < 0.5  # noqa: PLR2004 - a fair coin
            return self.names != (self.odd == (folder, number))

        return folder.after(kept)

    def bytes_of(self, file: _File) -> bytes:
        if self.chance is not None:
            return _by_chance(file, self.chance)
        if self.odd_data is not None and self.odd == (file, 0):
            return self.odd_data(file)
        return self.data(file)


def _current(file: _File) -> bytes:
    return bytes(file.current)


def _lost(file: _File) -> bytes:
    return file.durable


def _zeroed(file: _File) -> bytes:
    """The new size, old bytes where there were some, else zeros."""
    return file.durable[: len(file.current)].ljust(len(file.current), b"\0")


def _by_chance(file: _File, chance: random.Random) -> bytes:
    """Whole, lost, zeroed, or with each sector of each write and each truncation kept or not."""
    if not file.pending:
        return file.durable
    whole = chance.choice((_current, _lost, _zeroed, None))
    if whole is not None:
        return whole(file)
    torn = bytearray(file.durable)
    for change in file.pending:
        if isinstance(change, int):
            if chance.random() < 0.5:  # noqa: PLR2004 - a fair coin
                _resize(torn, change)
        else:
            _tear(torn, change, chance)
    return bytes(torn)


def _tear(torn: bytearray, change: _Write, chance: random.Random) -> None:
    """Put some of a write's sectors into a file, or pages of the usual size."""
    sector = chance.choice((SECTOR, 8 * SECTOR))
    begin, end = change.offset, change.offset + len(change.data)
    for at in range(begin - begin % sector, end, sector):
        if chance.random() < 0.5:  # noqa: PLR2004 - a fair coin
            low, high = max(at, begin), min(at + sector, end)
            _write(torn, low, change.data[low - begin : high - begin])


def _write(into: bytearray, offset: int, data: bytes) -> None:
    _resize(into, max(len(into), offset + len(data)))
    into[offset : offset + len(data)] = data


def _resize(raw: bytearray, size: int) -> None:
    del raw[size:]
    raw.extend(bytes(size - len(raw)))


def _read(path: Path, known: dict[int, _File] | None = None) -> _Folder:
    folder, known = _Folder(), {} if known is None else known
    for child in sorted(path.iterdir()):
        if child.is_dir():
            folder.current[child.name] = _read(child, known)
            continue
        inode = child.stat().st_ino
        if inode not in known:
            raw = child.read_bytes()
            known[inode] = _File(raw, bytearray(raw))
        folder.current[child.name] = known[inode]
    folder.durable = dict(folder.current)
    return folder


# What a folder without anything unsynced below it has become, by its path.
_Settled = dict[tuple[_Folder, str], list[Entry]]


def _walk(
    folder: _Folder, path: str, survival: _Survival, above: set[_Folder], settled: _Settled
) -> list[Entry]:
    """What is left of a folder; of one that is not ``above`` anything unsynced, ever the same."""
    known = settled.get((folder, path)) if folder not in above else None
    if known is not None:
        return known
    found = [Entry(path)]
    for name, node in sorted(survival.entries(folder).items()):
        below = f"{path}/{name}" if path else name
        if isinstance(node, _Folder):
            found += _walk(node, below, survival, above, settled)
        else:
            found.append(Entry(below, survival.bytes_of(node), node.inode))
    if folder not in above:
        settled[folder, path] = found
    return found


@dataclass(slots=True)
class _Unsynced:
    """What is not durable, by whatever name it has or had; ``above`` are the folders on the way."""

    folders: list[_Folder] = field(default_factory=list)
    files: list[_File] = field(default_factory=list)
    above: set[_Folder] = field(default_factory=set)


def _unsynced(tree: _Folder) -> _Unsynced:
    found, seen = _Unsynced(), set[_File | _Folder]()

    def look(folder: _Folder) -> bool:
        unsynced = bool(folder.pending)
        if folder not in seen and folder.pending:
            found.folders.append(folder)
        seen.add(folder)
        changed = (node for change in folder.pending for node in change.values())
        for node in dict.fromkeys((*folder.durable.values(), *folder.current.values(), *changed)):
            if isinstance(node, _Folder):
                unsynced |= look(node)
            elif node is not None and node.pending:
                unsynced = True
                if node not in seen:
                    found.files.append(node)
                seen.add(node)
        if unsynced:
            found.above.add(folder)
        return unsynced

    look(tree)
    return found


def _caller() -> str:
    """The function that asked the seam for a sync."""
    frame = sys._getframe(1)  # noqa: SLF001 - what a traceback would say
    outside = {__file__, seam.__file__}
    while frame.f_back is not None and (
        frame.f_code.co_filename in outside or frame.f_code.co_filename.endswith("contextlib.py")
    ):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_qualname}"
