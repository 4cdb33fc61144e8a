"""Everything that lies in a folder, as lstat tells it; links are never followed."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from hsstore.errors import MalformedInput
from hsstore.interop.file_bytes import EXHAUSTED
from hsstore.storage.filesystem import LOCAL, Filesystem

STATUS_BLOCK_BYTES = 512
# Filesystems keep the bytes of a small file beside its inode, and then it takes no block at all.
SPARSE_FROM_BYTES = 4096

What = Literal["file", "link", "special", "unreadable"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One name below the root: its path from there, what it is, and what it takes on disk.

    ``size`` is the file's length in bytes, ``allocated`` what its blocks take (0 for a further name
    of a file that was counted before). ``detail`` says why where it is ``unreadable``: a folder
    that cannot be listed, or a name whose status cannot be had.
    """

    path: str
    what: What
    size: int = 0
    allocated: int = 0
    detail: str = ""
    linked: bool = False

    @classmethod
    def of(cls, path: str, status: os.stat_result, *, counted: bool = False) -> Self:
        """The entry of a name that is no folder."""
        mode = status.st_mode
        if stat.S_ISREG(mode):
            taken = 0 if counted else status.st_blocks * STATUS_BLOCK_BYTES
            return cls(path, "file", status.st_size, taken, linked=status.st_nlink > 1)
        return cls(path, "link" if stat.S_ISLNK(mode) else "special")

    @property
    def folder(self) -> str:
        """The path of the folder that it lies in; empty for the root."""
        return self.path.rpartition("/")[0]

    @property
    def name(self) -> str:
        """Its name in that folder."""
        return self.path.rpartition("/")[2]

    @property
    def sparse(self) -> bool:
        """Whether it takes clearly less than its length: holes, or a disk that compresses."""
        unseen = self.linked and not self.allocated
        return not unseen and self.size - self.allocated >= SPARSE_FROM_BYTES


def walk(root: Path, filesystem: Filesystem = LOCAL) -> Iterator[Entry]:
    """Every file, link and special file below a folder, folder by folder, names in order.

    A folder below that cannot be listed is an entry; of the root itself MalformedInput where it is
    no folder, OSError where it cannot be listed, and where descriptors or memory have run out.
    """
    names = _names_in_root(root, filesystem)
    folders = [("", names)]
    seen: set[tuple[int, int]] = set()
    while folders:
        folder, names = folders.pop()
        below: list[tuple[str, list[str]]] = []
        for name in names:
            path = f"{folder}/{name}" if folder else name
            try:
                status = filesystem.status(root / path)
                if stat.S_ISDIR(status.st_mode):
                    below.append((path, filesystem.names(root / path)))
                    continue
            except OSError as error:
                if error.errno in EXHAUSTED:
                    raise
                yield Entry(path, "unreadable", detail=error.strerror or str(error))
                continue
            yield Entry.of(path, status, counted=_counted(status, seen))
        folders += reversed(below)


def _names_in_root(root: Path, filesystem: Filesystem) -> list[str]:
    try:
        return filesystem.names(root)
    except (FileNotFoundError, NotADirectoryError):
        remedy = "give the folder that holds the sample files"
        raise MalformedInput("no such folder", place=str(root), remedy=remedy) from None


def _counted(status: os.stat_result, seen: set[tuple[int, int]]) -> bool:
    """Whether the blocks of a file with several names were counted under another one."""
    if status.st_nlink == 1:
        return False
    file = (status.st_dev, status.st_ino)
    counted = file in seen
    seen.add(file)
    return counted


@dataclass(slots=True)
class FolderSize:
    """What lies directly in one folder: files, their lengths and what their blocks take."""

    folder: str
    files: int = 0
    bytes: int = 0
    allocated: int = 0
    sparse: int = 0

    def add(self, entry: Entry) -> None:
        """Count one more file."""
        self.files += 1
        self.bytes += entry.size
        self.allocated += entry.allocated
        self.sparse += entry.sparse
