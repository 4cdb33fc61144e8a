"""A filesystem whose Nth operation fails as scripted."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from hsstore.storage.filesystem import Buffer, Filesystem

# Operations that change something; a full disk refuses those of GROWING.
CHANGING = frozenset(
    {"create", "write", "truncate", "sync", "folder", "link", "rename", "unlink", "remove", "touch"}
)
GROWING = frozenset({"create", "write", "sync", "folder"})
READING = frozenset({"open", "read", "names", "status"})


class Crash(BaseException):
    """Stands for the end of the process: nothing but a test catches it."""


class FaultyFilesystem(Filesystem):
    """The local filesystem, except that chosen operations fail.

    ``fail(n, ...)`` scripts the n-th counted operation from now (0 is the next). ``operations``
    lists what was counted, as (kind, path). Syncs are counted but cost nothing here: what a sync
    is worth shows only after a power cut.
    """

    def __init__(self, kinds: frozenset[str] = CHANGING) -> None:
        self.kinds = kinds
        self.operations: list[tuple[str, Path]] = []
        self.failed_syncs: set[int] = set()
        self.touched_after_failure: list[tuple[str, Path]] = []
        self._code: int | None = None
        self._failing = False
        self._at = 0
        self._forever = False
        self._short = False

    def fail(self, at: int, code: int, *, forever: bool = False) -> None:
        """Fail the operation ``at`` (and all later ones) with an errno."""
        self._code, self._failing = code, True
        self._at, self._forever = len(self.operations) + at, forever

    def shorten(self, at: int, *, forever: bool = False) -> None:
        """Have the system take half of what the write ``at`` (and all later ones) hands over."""
        self._failing = self._short = True
        self._at, self._forever = len(self.operations) + at, forever

    def crash(self, at: int) -> None:
        """Raise Crash instead of the operation ``at`` and of all later ones."""
        self._code, self._failing = None, True
        self._at, self._forever = len(self.operations) + at, True

    def heal(self) -> None:
        """Fail no more; what follows is another writer, which may sync what it has verified."""
        self.failed_syncs.clear()
        self._failing = self._short = False

    def _count(self, kind: str, path: Path) -> None:
        if kind not in self.kinds:
            return
        self.operations.append((kind, path))
        if self._is_due() and not self._short:
            if self._code is None:
                raise Crash
            raise OSError(self._code, os.strerror(self._code), str(path))

    def _is_due(self) -> bool:
        """Whether the operation counted last is one to fail."""
        now = len(self.operations) - 1
        return self._failing and (now == self._at or (self._forever and now > self._at))

    def open(self, path: Path, flags: int = os.O_RDONLY) -> int:
        """Count the making of a new file."""
        if flags & os.O_CREAT and not os.path.lexists(path):
            self._count("create", path)
        elif not flags & os.O_DIRECTORY:
            self._count("open", path)
        return super().open(path, flags)

    def read(self, path: Path) -> bytes:
        """Count the reading beside the opening."""
        data = super().read(path)
        self._count("read", path)
        return data

    def read_at(self, fd: int, into: Buffer, offset: int, path: Path) -> int:
        """Count."""
        self._count("read", path)
        return super().read_at(fd, into, offset, path)

    def names(self, path: Path) -> list[str]:
        """Count."""
        self._count("names", path)
        return super().names(path)

    def status(self, path: Path) -> os.stat_result:
        """Count."""
        self._count("status", path)
        return super().status(path)

    def write_at(self, fd: int, data: Buffer, offset: int, path: Path) -> None:
        """Half of the data is written before the failure."""
        try:
            self._count("write", path)
        except BaseException:
            view = memoryview(data).cast("B")
            super().write_at(fd, view[: len(view) // 2], offset, path)
            raise
        if self._short and "write" in self.kinds and self._is_due():
            with mock.patch("os.pwrite", _half_of(os.pwrite)):
                super().write_at(fd, data, offset, path)
        else:
            super().write_at(fd, data, offset, path)

    def truncate(self, fd: int, size: int, path: Path) -> None:
        """Count."""
        self._count("truncate", path)
        super().truncate(fd, size, path)

    def sync_data(self, fd: int, path: Path) -> None:
        """Count; see the class."""
        self.sync(fd, path)

    def sync(self, fd: int, path: Path) -> None:
        """Count; remember which file's sync failed, and whether it was synced again."""
        inode = os.fstat(fd).st_ino
        if inode in self.failed_syncs:
            self.touched_after_failure.append(("sync", path))
        try:
            self._count("sync", path)
        except OSError:
            if not path.is_dir():
                self.failed_syncs.add(inode)
            raise

    def make_folder(self, path: Path) -> None:
        """Count."""
        if not os.path.lexists(path):
            self._count("folder", path)
        super().make_folder(path)

    def link(self, source: Path, target: Path) -> None:
        """Count; remember the linking of a file whose sync failed."""
        if self._is_poisoned(source):
            self.touched_after_failure.append(("link", target))
        self._count("link", target)
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Count; remember the renaming of a file whose sync failed."""
        if self._is_poisoned(source):
            self.touched_after_failure.append(("rename", target))
        self._count("rename", target)
        super().rename(source, target)

    def _is_poisoned(self, path: Path) -> bool:
        return super().status(path).st_ino in self.failed_syncs

    def unlink(self, path: Path) -> None:
        """Count."""
        self._count("unlink", path)
        status = super().status(path)
        if status.st_nlink == 1:
            self.failed_syncs.discard(status.st_ino)
        super().unlink(path)

    def remove_folder(self, path: Path) -> None:
        """Count."""
        if os.path.lexists(path):
            self._count("remove", path)
        super().remove_folder(path)

    def touch(self, path: Path) -> None:
        """Count."""
        self._count("touch", path)
        super().touch(path)


def _half_of(pwrite: Callable[[int, memoryview, int], int]) -> Callable[..., int]:
    """A pwrite that takes the first half of what it is given, at least a byte."""
    return lambda fd, data, offset: pwrite(fd, data[: (len(data) + 1) // 2], offset)


OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Unreadable(Filesystem):
    """EIO wherever bytes of one file are read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, path: Path) -> bytes:
        """Read, unless it is that file."""
        self._fail(path)
        return super().read(path)

    def read_at(self, fd: int, into: Buffer, offset: int, path: Path) -> int:
        """Read, unless it is that file."""
        self._fail(path)
        return super().read_at(fd, into, offset, path)

    def _fail(self, path: Path) -> None:
        if path == self.path:
            raise OSError(errno.EIO, "Input/output error", str(path))
