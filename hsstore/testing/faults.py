"""A filesystem whose Nth operation fails as scripted."""

import errno
import os
from pathlib import Path

from hsstore.storage.filesystem import Buffer, Filesystem

# Operations that change something; a full disk refuses those of GROWING.
CHANGING = frozenset(
    {"create", "write", "truncate", "sync", "folder", "link", "rename", "unlink", "remove", "touch"}
)
GROWING = frozenset({"create", "write", "sync", "folder"})


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

    def fail(self, at: int, code: int, *, forever: bool = False) -> None:
        """Fail the operation ``at`` (and all later ones) with an errno."""
        self._code, self._failing = code, True
        self._at, self._forever = len(self.operations) + at, forever

    def crash(self, at: int) -> None:
        """Raise Crash instead of the operation ``at`` and of all later ones."""
        self._code, self._failing = None, True
        self._at, self._forever = len(self.operations) + at, True

    def heal(self) -> None:
        """Fail no more; what follows is another writer, which may sync what it has verified."""
        self.failed_syncs.clear()
        self._failing = False

    def _count(self, kind: str, path: Path) -> None:
        if kind not in self.kinds:
            return
        now = len(self.operations)
        self.operations.append((kind, path))
        if self._failing and (now == self._at or (self._forever and now > self._at)):
            if self._code is None:
                raise Crash
            raise OSError(self._code, os.strerror(self._code), str(path))

    def open(self, path: Path, flags: int = os.O_RDONLY) -> int:
        """Count the making of a new file."""
        if flags & os.O_CREAT and not self.exists(path):
            self._count("create", path)
        return super().open(path, flags)

    def write_at(self, fd: int, data: Buffer, offset: int, path: Path) -> None:
        """Half of the data is written before the failure."""
        try:
            self._count("write", path)
        except BaseException:
            view = memoryview(data).cast("B")
            super().write_at(fd, view[: len(view) // 2], offset, path)
            raise
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
        if not self.exists(path):
            self._count("folder", path)
        super().make_folder(path)

    def link(self, source: Path, target: Path) -> None:
        """Count; remember the linking of a file whose sync failed."""
        if self.status(source).st_ino in self.failed_syncs:
            self.touched_after_failure.append(("link", target))
        self._count("link", target)
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Count; remember the renaming of a file whose sync failed."""
        if self.status(source).st_ino in self.failed_syncs:
            self.touched_after_failure.append(("rename", target))
        self._count("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        """Count."""
        self._count("unlink", path)
        status = self.status(path)
        if status.st_nlink == 1:
            self.failed_syncs.discard(status.st_ino)
        super().unlink(path)

    def remove_folder(self, path: Path) -> None:
        """Count."""
        if self.exists(path):
            self._count("remove", path)
        super().remove_folder(path)

    def touch(self, path: Path) -> None:
        """Count."""
        self._count("touch", path)
        super().touch(path)


OUT_OF_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
