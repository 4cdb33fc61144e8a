"""The I/O seam: the only module that calls os for what is inside a store.

Everything here raises OSError as the system gave it, with the path in it. A test may pass a
Filesystem of its own to script faults. Every call that may wait for the storage is announced to
``Filesystem.in_flight``, where there is one, until it has returned.
"""

import contextlib
import ctypes
import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import ClassVar

from hsstore.storage.in_flight import InFlight

# An array's memory is its ``.data``.
Buffer = bytes | bytearray | memoryview

# fallocate(2), of which Python has only the form that writes zeros where it must.
_FALLOCATE = ctypes.CDLL(None, use_errno=True).fallocate
_FALLOCATE.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
KEEP_SIZE, PUNCH_HOLE = 1, 2
# What opening a folder, a symbolic link or a socket as a file says.
NO_PLAIN_FILE = frozenset({errno.EISDIR, errno.ELOOP, errno.ENXIO})
NO_RESERVATION = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class Filesystem:
    """Operations of the local filesystem, each as durable as its name says.

    ``in_flight`` is for the whole process, whichever Filesystem an operation goes through.
    """

    in_flight: ClassVar[InFlight | None] = None

    # -- whole small files ------------------------------------------------------------------

    def read(self, path: Path) -> bytes:
        """All bytes of a small file."""
        with self.opened(path) as fd:
            pieces = []
            while piece := self._read_piece(fd, path):
                pieces.append(piece)
            return b"".join(pieces)

    def _read_piece(self, fd: int, path: Path) -> bytes:
        with _Call("read", path):
            return os.read(fd, 1 << 20)

    def publish(self, path: Path, data: bytes, *, within: Path | None = None) -> None:
        """Make a new file appear whole and durable, or not at all.

        Writes a temporary file (in the folder ``within``, by default beside the target), syncs
        it, links it to its final name and syncs the folder. FileExistsError where another got
        there first; a ``within`` that was renamed away meanwhile makes it FileNotFoundError.
        """
        temporary = (within or path.parent) / f".{path.name}.{secrets.token_hex(4)}"
        try:
            self.write_new(temporary, data)
            self.link(temporary, path)
        finally:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
        self.sync_folder(path.parent)

    def replace(self, path: Path, data: bytes) -> None:
        """Put a small file in the place of another, or of none: the old one or the new, durably."""
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}"
        try:
            self.write_new(temporary, data)
            self.rename(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                self.unlink(temporary)
            raise
        self.sync_folder(path.parent)

    def write_new(self, path: Path, data: Buffer) -> None:
        """Write a new file and sync it; the folder entry is left to the caller."""
        with self.opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
            self.write_at(fd, data, 0, path)
            self.sync(fd, path)

    # -- open files ---------------------------------------------------------------------------

    def open(self, path: Path, flags: int = os.O_RDONLY) -> int:
        """A file descriptor, never waiting for a pipe, never of a file that a link names.

        Folders are opened through a link: a store may itself be reached through one.
        """
        follow = 0 if flags & os.O_DIRECTORY else os.O_NOFOLLOW
        with _Call("open", path):
            return os.open(path, flags | follow | os.O_CLOEXEC | os.O_NONBLOCK, 0o644)

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        with _Call("close", _of(fd)):
            os.close(fd)

    @contextlib.contextmanager
    def opened(self, path: Path, flags: int = os.O_RDONLY) -> Iterator[int]:
        """A descriptor for the length of a with block."""
        fd = self.open(path, flags)
        try:
            yield fd
        finally:
            self.close(fd)

    def write_at(self, fd: int, data: Buffer, offset: int, path: Path) -> None:
        """Write all of ``data`` at ``offset``, over short writes; EIO where nothing is taken."""
        view = memoryview(data).cast("B")
        while view:
            with _Call("pwrite", path):
                written = os.pwrite(fd, view, offset)
            if not written:
                raise OSError(errno.EIO, "nothing was written", str(path))
            view, offset = view[written:], offset + written

    def read_at(self, fd: int, into: Buffer, offset: int, path: Path) -> int:
        """Fill ``into`` from ``offset``; the bytes read, fewer only at the end of the file."""
        view = memoryview(into).cast("B")
        total = 0
        while total < len(view):
            with _Call("preadv", path):
                count = os.preadv(fd, [view[total:]], offset + total)
            if not count:
                break
            total += count
        return total

    def truncate(self, fd: int, size: int, path: Path) -> None:
        """Set a file's size; bytes added are a hole."""
        with _Call("ftruncate", path):
            os.ftruncate(fd, size)

    def reserve(self, fd: int, offset: int, length: int, path: Path) -> bool:
        """Take the blocks of a range before it is written; size and bytes stay as they are.

        False where the filesystem cannot. One that has no room may keep a part of the blocks.
        """
        try:
            self._allocate(fd, KEEP_SIZE, offset, length, path)
        except OSError as error:
            if error.errno in NO_RESERVATION:
                return False
            raise
        return True

    def make_hole(self, fd: int, offset: int, length: int, path: Path) -> None:
        """Give the blocks of a range back: it reads as zeros, and the size stays."""
        self._allocate(fd, KEEP_SIZE | PUNCH_HOLE, offset, length, path)

    def _allocate(self, fd: int, mode: int, offset: int, length: int, path: Path) -> None:
        # Again after a signal, as Python repeats its own calls.
        while (code := self._try_to_allocate(fd, mode, offset, length, path)) == errno.EINTR:
            pass
        if code:
            raise OSError(code, os.strerror(code), str(path))

    def _try_to_allocate(self, fd: int, mode: int, offset: int, length: int, path: Path) -> int:
        with _Call("fallocate", path):
            return ctypes.get_errno() if _FALLOCATE(fd, mode, offset, length) else 0

    def size(self, fd: int) -> int:
        """The size of an open file in bytes."""
        with _Call("fstat", _of(fd)):
            return os.fstat(fd).st_size

    def sync_data(self, fd: int, path: Path) -> None:
        """fdatasync; after an error this file must never be synced again."""
        with _Call("fdatasync", path):
            os.fdatasync(fd)

    def sync(self, fd: int, path: Path) -> None:
        """fsync; after an error this file must never be synced again."""
        with _Call("fsync", path):
            os.fsync(fd)

    def forget_cached(self, fd: int) -> None:
        """Ask the system to drop an open file's cached pages, so that reads reach the disk."""
        with _Call("fadvise", _of(fd)):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def start_writing(self, fd: int, offset: int, length: int) -> None:
        """Ask the system to begin writing a range of an open file to disk, and do not wait.

        Linux begins with dirty pages once they are declared not needed; whether they arrived is
        still for ``sync_data`` to say.
        """
        with _Call("fadvise", _of(fd)):
            os.posix_fadvise(fd, offset, length, os.POSIX_FADV_DONTNEED)

    # -- names --------------------------------------------------------------------------------

    def sync_folder(self, path: Path) -> None:
        """Make the entries of a folder durable."""
        with self.opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            self.sync(fd, path)

    def make_folder(self, path: Path) -> None:
        """Create a folder that may exist already, and make its entry durable."""
        try:
            with _Call("mkdir", path):
                os.mkdir(path)  # noqa: PTH102 - the seam calls os by name
        except FileExistsError:
            if not self._is_folder(path):
                raise
        # Also where it exists: who made it may have been killed before this.
        self.sync_folder(path.parent)

    def _is_folder(self, path: Path) -> bool:
        with _Call("stat", path):
            return path.is_dir()

    def make_folders(self, path: Path, *, below: Path) -> None:
        """Create a folder and its parents up to an existing ``below``."""
        for folder in reversed([path, *path.parents]):
            if folder.is_relative_to(below) and folder != below:
                self.make_folder(folder)

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name; never over another file.

        An error with both names on one file is a success: a network filesystem may have repeated
        a request that had gone through.
        """
        try:
            with _Call("link", target):
                os.link(source, target, follow_symlinks=False)
        except OSError:
            # Names that cannot be compared now are no proof that another came first.
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                if self.status(source).st_ino == self.status(target).st_ino:
                    return
            raise

    def rename(self, source: Path, target: Path) -> None:
        """Rename, over an existing file if there is one."""
        with _Call("rename", target):
            os.rename(source, target)  # noqa: PTH104 - the seam calls os by name

    def unlink(self, path: Path) -> None:
        """Remove a file."""
        with _Call("unlink", path):
            os.unlink(path)  # noqa: PTH108 - the seam calls os by name

    def remove_folder(self, path: Path) -> None:
        """Remove a folder of plain files, and the files; nothing where there is none.

        NotADirectoryError for a link: what it leads to is not ours to remove.
        """
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(self.status(path).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            for name in self.names(path):
                with contextlib.suppress(FileNotFoundError):
                    self.unlink(path / name)
            with _Call("rmdir", path):
                os.rmdir(path)  # noqa: PTH106 - the seam calls os by name

    def names(self, path: Path) -> list[str]:
        """The names in a folder, sorted."""
        with _Call("listdir", path):
            return sorted(os.listdir(path))  # noqa: PTH208 - strings, ten times faster

    def status(self, path: Path) -> os.stat_result:
        """What lstat says; symbolic links are never followed inside a store."""
        with _Call("lstat", path):
            return os.lstat(path)

    def touch(self, path: Path) -> None:
        """Set a file's times to the filesystem's own now."""
        with _Call("utime", path):
            os.utime(path)

    def exists(self, path: Path) -> bool:
        """Whether anything has that name; an error that leaves it open is raised."""
        try:
            self.status(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True


class _Call:
    """One system call: announced until it has returned, and the path in its error."""

    __slots__ = ("_in_flight", "_name", "_path", "_slot")

    def __init__(self, name: str, path: Path | str) -> None:
        self._name = name
        self._path = path

    def __enter__(self) -> None:
        self._in_flight = Filesystem.in_flight
        if self._in_flight is not None:
            self._slot = self._in_flight.begin(self._name, self._path)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._in_flight is not None:
            self._in_flight.end(self._slot)
        # Calls with a descriptor raise errors without a path.
        if isinstance(error, OSError) and isinstance(self._path, Path) and not error.filename:
            error.filename = str(self._path)


def _of(fd: int) -> str:
    """The name that leads to an open file, whatever its own is."""
    return f"/proc/self/fd/{fd}"


LOCAL = Filesystem()
