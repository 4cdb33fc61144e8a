"""What a disk may hold after a power cut, by the weakest reading of POSIX.

Data that was not synced is kept, lost, or there in length but zero. Names that were made, moved or
removed since their folder was last synced are as they were, or as they became. A recording
filesystem runs the real operations and keeps, after each, the states that a cut at that moment may
leave.
"""

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hsstore.storage.filesystem import Buffer, Filesystem


@dataclass(eq=False)
class _File:
    durable: bytes = b""
    current: bytearray = field(default_factory=bytearray)

    def zeroed(self) -> bytes:
        return self.durable[: len(self.current)].ljust(len(self.current), b"\0")


@dataclass(eq=False)
class _Folder:
    durable: dict[str, "_File | _Folder"] = field(default_factory=dict)
    current: dict[str, "_File | _Folder"] = field(default_factory=dict)


State = frozenset[tuple[str, bytes | None]]
Never = Callable[[Path], bool]


class RecordingFilesystem(Filesystem):
    """``states`` collects what power cuts may leave of the tree at ``root``.

    Syncs of paths for which ``omitted`` holds are left out, which shows what they are for.
    """

    def __init__(self, root: Path, omitted: Never = lambda _: False) -> None:
        self.states: dict[State, int] = {}
        self.operations = 0
        self._root = root
        self._omitted = omitted
        self._chance = random.Random(0)  # noqa: S311 - no secret
        self._tree = _read(root)
        self._open: dict[int, _File | _Folder] = {}

    # -- the model ------------------------------------------------------------------------------

    def _folder(self, path: Path) -> _Folder:
        node: _File | _Folder = self._tree
        for name in path.relative_to(self._root).parts:
            node = node.current[name] if isinstance(node, _Folder) else _Folder()
        return node if isinstance(node, _Folder) else _Folder()

    def _names(self, path: Path) -> dict[str, _File | _Folder]:
        return self._folder(path.parent).current

    def _cut(self) -> None:
        self.operations += 1
        keep, lose, chance = (lambda: True), (lambda: False), self._chance
        for names, data in (
            (keep, _current),
            (keep, _durable),
            (keep, _File.zeroed),
            (lose, _current),
            (lose, _durable),
            (lambda: chance.choice((True, False)), self._any),
        ):
            state = frozenset(_walk(self._tree, "", names, data))
            self.states.setdefault(state, self.operations)

    def _any(self, file: _File) -> bytes:
        return self._chance.choice(_CHOICES)(file)

    # -- the operations ---------------------------------------------------------------------------

    def open(self, path: Path, flags: int = os.O_RDONLY) -> int:
        """Open; a new file is an unsynced name."""
        new = flags & os.O_CREAT and not self.exists(path)
        fd = super().open(path, flags)
        if new:
            self._names(path)[path.name] = _File()
            self._cut()
        self._open[fd] = self._tree if path == self._root else self._names(path)[path.name]
        return fd

    def close(self, fd: int) -> None:
        """Close."""
        self._open.pop(fd, None)
        super().close(fd)

    def write_at(self, fd: int, data: Buffer, offset: int, path: Path) -> None:
        """Write; not durable."""
        super().write_at(fd, data, offset, path)
        file, raw = self._file(fd), bytes(memoryview(data).cast("B"))
        file.extend(bytes(max(offset + len(raw) - len(file), 0)))
        file[offset : offset + len(raw)] = raw
        self._cut()

    def truncate(self, fd: int, size: int, path: Path) -> None:
        """Truncate; not durable."""
        super().truncate(fd, size, path)
        file = self._file(fd)
        del file[size:]
        file.extend(bytes(size - len(file)))
        self._cut()

    def _file(self, fd: int) -> bytearray:
        node = self._open[fd]
        return node.current if isinstance(node, _File) else bytearray()

    def sync_data(self, fd: int, path: Path) -> None:
        """Make a file's bytes durable."""
        self.sync(fd, path)

    def sync(self, fd: int, path: Path) -> None:
        """Make a file's bytes, or a folder's names, durable."""
        if self._omitted(path.relative_to(self._root)):
            return
        node = self._open[fd]
        if isinstance(node, _File):
            node.durable = bytes(node.current)
        else:
            node.durable = dict(node.current)
        self._cut()

    def make_folder(self, path: Path) -> None:
        """Make a folder; its name is not durable until its parent is synced."""
        if not self.exists(path):
            self._names(path)[path.name] = _Folder()
            self._cut()
        super().make_folder(path)

    def link(self, source: Path, target: Path) -> None:
        """Link; not durable."""
        super().link(source, target)
        self._names(target)[target.name] = self._names(source)[source.name]
        self._cut()

    def rename(self, source: Path, target: Path) -> None:
        """Rename; not durable, and of two folders each by itself."""
        super().rename(source, target)
        self._names(target)[target.name] = self._names(source).pop(source.name)
        self._cut()

    def unlink(self, path: Path) -> None:
        """Unlink; not durable."""
        super().unlink(path)
        self._names(path).pop(path.name)
        self._cut()

    def remove_folder(self, path: Path) -> None:
        """Remove a folder; not durable."""
        super().remove_folder(path)
        self._names(path).pop(path.name, None)
        self._cut()


def write_state(state: State, root: Path) -> None:
    """Make a state into files, in a folder that must not exist."""
    for name, data in sorted(state, key=lambda entry: entry[0]):
        path = root / name
        if data is None:
            path.mkdir(parents=True)
        else:
            path.write_bytes(data)


def _current(file: _File) -> bytes:
    return bytes(file.current)


def _durable(file: _File) -> bytes:
    return file.durable


_CHOICES = (_current, _durable, _File.zeroed)


def _read(path: Path) -> _Folder:
    folder = _Folder()
    for child in path.iterdir():
        raw = b"" if child.is_dir() else child.read_bytes()
        folder.current[child.name] = _read(child) if child.is_dir() else _File(raw, bytearray(raw))
    folder.durable = dict(folder.current)
    return folder


def _walk(
    folder: _Folder, path: str, names: Callable[[], bool], data: Callable[[_File], bytes]
) -> list[tuple[str, bytes | None]]:
    found: list[tuple[str, bytes | None]] = [(path, None)]
    for name, node in (folder.current if names() else folder.durable).items():
        if isinstance(node, _Folder):
            found += _walk(node, f"{path}/{name}".lstrip("/"), names, data)
        else:
            found.append((f"{path}/{name}".lstrip("/"), data(node)))
    return found
