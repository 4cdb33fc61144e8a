"""A filesystem that can be interrupted between any two of its operations."""

import os
from collections.abc import Callable, Collection
from pathlib import Path

from hsstore.storage.filesystem import Buffer, Filesystem

Before = Callable[[int, str, Path], None]


class SteppedFilesystem(Filesystem):
    """The local filesystem, which calls ``before(number, kind, path)`` ahead of each operation.

    Operations are numbered from 0. Those that change something count, and those that look into
    a folder with a name in ``looking``; a heartbeat is neither. What ``before`` raises, the
    operation raises.
    """

    def __init__(self, before: Before, *, looking: Collection[str] = ()) -> None:
        self.operations = 0
        self._before = before
        self._looking = frozenset(looking)

    def _step(self, kind: str, path: Path) -> None:
        number = self.operations
        self.operations += 1
        self._before(number, kind, path)

    def _look(self, kind: str, path: Path) -> None:
        if not self._looking.isdisjoint(path.parts):
            self._step(kind, path)

    def open(self, path: Path, flags: int = os.O_RDONLY) -> int:
        """A new file is a change, any other a look."""
        if flags & os.O_CREAT and not super().exists(path):
            self._step("create", path)
        else:
            self._look("open", path)
        return super().open(path, flags)

    def write_at(self, fd: int, data: Buffer, offset: int, path: Path) -> None:
        """Step."""
        self._step("write", path)
        super().write_at(fd, data, offset, path)

    def truncate(self, fd: int, size: int, path: Path) -> None:
        """Step."""
        self._step("truncate", path)
        super().truncate(fd, size, path)

    def sync_data(self, fd: int, path: Path) -> None:
        """Step."""
        self._step("sync", path)
        super().sync_data(fd, path)

    def sync(self, fd: int, path: Path) -> None:
        """Step."""
        self._step("sync", path)
        super().sync(fd, path)

    def make_folder(self, path: Path) -> None:
        """Step; the sync of its parent is another."""
        self._step("folder", path)
        super().make_folder(path)

    def link(self, source: Path, target: Path) -> None:
        """Step."""
        self._step("link", target)
        super().link(source, target)

    def rename(self, source: Path, target: Path) -> None:
        """Step."""
        self._step("rename", target)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        """Step."""
        self._step("unlink", path)
        super().unlink(path)

    def remove_folder(self, path: Path) -> None:
        """Step; the removal of each file in it is another."""
        self._step("remove", path)
        super().remove_folder(path)

    def names(self, path: Path) -> list[str]:
        """Look."""
        self._look("list", path)
        return super().names(path)

    def status(self, path: Path) -> os.stat_result:
        """Look."""
        self._look("status", path)
        return super().status(path)

    def exists(self, path: Path) -> bool:
        """Look."""
        self._look("exists", path)
        return super().exists(path)
