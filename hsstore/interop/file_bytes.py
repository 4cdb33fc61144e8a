"""The bytes of one foreign file: through the seam, never through a link, never past its end."""

import contextlib
import errno
import io
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from hsstore.interop.foreign import Broken, ForeignFile, is_plain
from hsstore.storage.filesystem import LOCAL, Filesystem

# States of a model hardly shrink; a file that grows by more than this is no sample.
GROWTH = 64
SMALLEST_LIMIT_BYTES = 64 << 20
PIECE_BYTES = 4 << 20
GZIP = b"\x1f\x8b"
# Tells zlib that what it gets is wrapped as gzip wraps it.
GZIP_WRAPPED = 16
# What a process or its machine is out of: it says nothing about any file.
EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class FileBytes(io.RawIOBase):
    """A plain file for reading, in whole pieces: a read is short only at the end of the file."""

    def __init__(self, filesystem: Filesystem, fd: int, path: Path) -> None:
        super().__init__()
        self.size = filesystem.size(fd)
        self._filesystem = filesystem
        self._fd = fd
        self._path = path
        self._at = 0

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move as ``io.IOBase`` says; ValueError for a place before the beginning."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if base + offset < 0:
            raise ValueError("a place before the beginning of the file")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def readinto(self, into: object) -> int:
        """Fill a buffer, up to the end of the file."""
        view = memoryview(cast("bytearray", into)).cast("B")
        count = self._filesystem.read_at(self._fd, view, self._at, self._path)
        self._at += count
        return count

    def read(self, size: int | None = -1) -> bytes:
        """So many bytes, or all that are left; memory is taken for what the file has only."""
        left = max(self.size - self._at, 0)
        piece = bytearray(left if size is None or size < 0 else min(size, left))
        return bytes(memoryview(piece)[: self.readinto(piece)])


@contextlib.contextmanager
def opened_bytes(file: ForeignFile, filesystem: Filesystem = LOCAL) -> Iterator[BinaryIO]:
    """The file for reading; one that ends in ``.gz`` is expanded in memory, its CRC checked.

    Raises Broken: ``unreadable``, ``empty``, and for ``.gz`` also ``truncated``, ``crc`` and
    ``no-container``. Inside of the block an OSError becomes ``unreadable`` too. OSError where
    descriptors or memory have run out, by which no file is condemned.
    """
    try:
        if not is_plain(filesystem.status(file.path).st_mode):
            raise Broken("unreadable", "no plain file; links are not followed")
        with filesystem.opened(file.path) as fd:
            raw = FileBytes(filesystem, fd, file.path)
            if not raw.size:
                raise Broken("empty", "0 bytes")
            plain = cast("BinaryIO", raw)
            yield expanded(raw) if file.name.endswith(".gz") else plain
    except OSError as error:
        if error.errno in EXHAUSTED:
            raise
        raise Broken("unreadable", error.strerror or str(error)) from error


def expanded(raw: FileBytes) -> BinaryIO:
    """All bytes of a gzip file; raises Broken where its CRC, its length or its form is wrong.

    Python's gzip passes over zeros behind the end, which are no part of what was written.
    """
    limit = max(raw.size * GROWTH, SMALLEST_LIMIT_BYTES)
    whole = io.BytesIO()
    packed = raw.read(PIECE_BYTES)
    try:
        while packed:
            if not packed.startswith(GZIP):
                where = "bytes follow behind the end of" if whole.tell() else "no"
                raise Broken("no-container", f"{where} gzip stream")
            packed = _expand(raw, packed, whole, limit) or raw.read(PIECE_BYTES)
    except zlib.error as error:
        raise Broken("crc", f"gzip: {error}") from None
    whole.seek(0)
    return whole


def _expand(raw: FileBytes, packed: bytes, whole: io.BytesIO, limit: int) -> bytes:
    """Expand one member, which begins with ``packed``; the bytes that were read behind its end.

    Raises Broken, zlib.error.
    """
    member = zlib.decompressobj(zlib.MAX_WBITS + GZIP_WRAPPED)
    while not member.eof:
        packed = member.unconsumed_tail or packed or raw.read(PIECE_BYTES)
        piece = member.decompress(packed, PIECE_BYTES)
        if not packed and not piece and not member.eof:
            raise Broken("truncated", f"the gzip stream breaks off after {raw.size} bytes")
        packed = b""
        whole.write(piece)
        if whole.tell() > limit:
            raise Broken("no-container", f"expands to more than {limit} bytes: no sample")
    return member.unused_data
