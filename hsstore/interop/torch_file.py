"""Files of torch.save: what their zip container proves, and their tensors without torch.

The container is a zip of stored records (never compressed): ``data.pkl`` describes, ``data/KEY``
holds a storage each. Every record that is read has its CRC-32 checked. torch.load does not check
it, and believes what a file says of the size of its storages.
"""

import contextlib
import io
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.file_bytes import PIECE_BYTES, opened_bytes
from hsstore.interop.foreign import Broken, ForeignFile, TensorHeader
from hsstore.interop.torch_pickle import NotPlain, TensorRef, described
from hsstore.storage.filesystem import LOCAL, Filesystem

NUMPY = {
    "float64": "<f8", "float32": "<f4", "float16": "<f2", "bfloat16": "<u2", "int64": "<i8",
    "int32": "<i4", "int16": "<i2", "int8": "<i1", "uint8": "<u1", "bool": "|b1",
    "float8_e4m3fn": "<u1", "float8_e5m2": "<u1", "uint16": "<u2", "uint32": "<u4",
    "uint64": "<u8", "untyped": "<u1",
}  # fmt: skip
ZIP_START, ZIP_END, ZIP_END_BYTES = b"PK\x03\x04", b"PK\x05\x06", 22
LOCAL_HEADER = struct.Struct("<4s22xHH")
DESCRIPTION = "/data.pkl"
ENCRYPTED = 1
ZIP_ERRORS = (
    zipfile.BadZipFile, struct.error, ValueError, NotImplementedError, EOFError, OverflowError,
)  # fmt: skip


class TorchFile:
    """An open file of torch.save that holds a dict; a Container of its members that are tensors."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._records = _records(stream)
        # torch.serialization.set_crc32_options(False) leaves zeros in the place of every CRC.
        self.verifiable = any(record.CRC for record in self._records.values())
        self._proven: set[str] = set()
        self._prefix = _prefix(self._records)
        self._refs = tensors_of(self._description())
        self._refuse_big_endian()
        self._refuse_lost()

    @property
    def tensors(self) -> Mapping[str, TensorHeader]:
        """The header of each tensor by its name."""
        return {name: TensorHeader(ref.dtype, ref.shape) for name, ref in self._refs.items()}

    def array(self, name: str) -> NDArray[Any]:
        """A tensor's values, its record's CRC checked; C-contiguous.

        Raises Broken: ``crc``, ``truncated``, ``no-container``, and ``shape`` for a tensor that
        reaches out of its storage or repeats it.
        """
        ref = self._refs[name]
        data = self._record(self._record_of(ref))
        return strided(name, data.view(NUMPY[ref.dtype]), ref)

    def prove(self) -> None:
        """Check the CRC of every record that was not read yet; raises Broken."""
        left = self._records.keys() - self._proven
        for name in sorted(left, key=lambda name: self._records[name].header_offset):
            self._check(name)

    def _check(self, name: str) -> None:
        """Check the CRC of a record of any size in little memory; raises Broken."""
        record = self._records[name]
        begin = _begin(self._stream, record)
        left = _fitting(self._stream, record, begin) if self.verifiable else 0
        piece = memoryview(bytearray(min(left, PIECE_BYTES)))
        found = 0
        self._stream.seek(begin)
        while left:
            view = piece[:left]
            if self._stream.readinto(view) != len(view):  # type: ignore[attr-defined]
                raise Broken("truncated", f"the file ends within its record {name!r:.120}")
            found = zlib.crc32(view, found)
            left -= len(view)
        self._compare(name, found)

    def _compare(self, name: str, found: int) -> None:
        if self.verifiable and found != self._records[name].CRC:
            raise Broken("crc", f"record {name!r:.120} differs from its CRC-32")
        self._proven.add(name)

    def _description(self) -> Any:  # noqa: ANN401 - whatever was saved
        data = self._record(self._prefix + DESCRIPTION)
        try:
            return described(data.tobytes())
        except NotPlain as error:
            raise Broken("pickle", str(error)) from None

    def _record_of(self, ref: TensorRef) -> str:
        """The name of the record that holds a tensor's storage."""
        return f"{self._prefix}/data/{ref.storage.key}"

    def _refuse_lost(self) -> None:
        """Each storage has a record of its length: no CRC tells of a record that is not there."""
        for name, ref in self._refs.items():
            record = self._records.get(self._record_of(ref))
            if record is None:
                raise Broken("no-container", f"it has no record for {name!r:.120}")
            if record.file_size != ref.storage.values * _itemsize(ref.storage.dtype):
                raise Broken("truncated", f"{name!r:.120}: its record has {record.file_size} "
                             f"bytes, not as many as its {ref.storage.values} values")  # fmt: skip

    def _refuse_big_endian(self) -> None:
        name = f"{self._prefix}/byteorder"
        if name in self._records and (order := self._record(name).tobytes()) != b"little":
            raise Broken("dtype", f"its bytes are in the order {order!r:.40}, not little")

    def _record(self, name: str) -> NDArray[np.uint8]:
        """The bytes of a record; memory is taken for no more than the file has."""
        record = self._records.get(name)
        if record is None:
            raise Broken("no-container", f"it has no record {name!r:.120}")
        begin = _begin(self._stream, record)
        data = np.empty(_fitting(self._stream, record, begin), np.uint8)
        self._stream.seek(begin)
        if self._stream.readinto(data.data) != len(data):  # type: ignore[attr-defined]
            raise Broken("truncated", f"the file ends within its record {name!r:.120}")
        self._compare(name, zlib.crc32(data.data))
        return data


@contextlib.contextmanager
def open_torch(file: ForeignFile, filesystem: Filesystem = LOCAL) -> Iterator[TorchFile]:
    """A file of torch.save, plain or within gzip; what is wrong with it is raised as Broken."""
    with opened_bytes(file, filesystem) as stream:
        yield TorchFile(stream)


def _records(stream: BinaryIO) -> dict[str, zipfile.ZipInfo]:
    start = stream.read(len(ZIP_START))
    try:
        with zipfile.ZipFile(stream) as archive:
            listed = archive.infolist()
    except ZIP_ERRORS as error:
        if start == ZIP_START:
            raise Broken("truncated", f"the zip has no directory at its end ({error})") from None
        raise Broken("no-container", "not a zip as torch.save writes it") from None
    _refuse_extended(stream)
    found = {record.filename: record for record in listed}
    # The directory tells where records begin; readers make up for what lies before the first.
    if min((record.header_offset for record in listed), default=0):
        raise Broken("no-container", "the first record of the zip is not where the file begins")
    if len(found) != len(listed):
        raise Broken("no-container", "two records of the zip have one name")
    return found


def _refuse_extended(stream: BinaryIO) -> None:
    """Readers of zips skip what follows behind the end; torch.save puts nothing there."""
    stream.seek(-ZIP_END_BYTES, io.SEEK_END)
    end = stream.read(ZIP_END_BYTES)
    if not end.startswith(ZIP_END) or end[-2:] != b"\0\0":
        raise Broken("no-container", "bytes follow behind the end of the zip")


def _prefix(records: Mapping[str, zipfile.ZipInfo]) -> str:
    named = [name for name in records if name.endswith(DESCRIPTION) and name.count("/") == 1]
    if len(named) != 1:
        raise Broken("no-container", "a zip, but not of torch.save: it has no data.pkl")
    return named[0].removesuffix(DESCRIPTION)


def _begin(stream: BinaryIO, record: zipfile.ZipInfo) -> int:
    """Where the bytes of a record begin: behind its own header, its name and its padding."""
    if record.header_offset < 0:
        raise Broken("no-container", "the zip's directory says that a record is before the file")
    stream.seek(record.header_offset)
    header = stream.read(LOCAL_HEADER.size)
    if len(header) < LOCAL_HEADER.size:
        raise Broken("truncated", f"the file ends before its record {record.filename!r:.120}")
    mark, name_bytes, extra_bytes = LOCAL_HEADER.unpack(header)
    if mark != ZIP_START:
        raise Broken("crc", f"record {record.filename!r:.120} has no header where it begins")
    return int(record.header_offset + LOCAL_HEADER.size + name_bytes + extra_bytes)


def _fitting(stream: BinaryIO, record: zipfile.ZipInfo, begin: int) -> int:
    """A record's bytes, once it is certain that the file has them."""
    stored = record.compress_type == zipfile.ZIP_STORED and not record.flag_bits & ENCRYPTED
    if not stored or record.file_size != record.compress_size:
        raise Broken("no-container", "a record is compressed, which torch.save never does")
    if begin + record.file_size > stream.seek(0, io.SEEK_END):
        raise Broken("truncated", f"the file ends within its record {record.filename!r:.120}")
    return record.file_size


def tensors_of(saved: object) -> dict[str, TensorRef]:
    """The tensors of what was saved; Broken where that is no dict of names."""
    if not isinstance(saved, dict) or not all(isinstance(name, str) for name in saved):
        raise Broken("keys", "what was saved is not a dict of names")
    return {name: value for name, value in saved.items() if isinstance(value, TensorRef)}


def strided(name: str, values: NDArray[Any], ref: TensorRef) -> NDArray[Any]:
    """The part of a storage that a tensor is; Broken where it is not within it, once over."""
    count = math.prod(ref.shape)
    if not count:
        return np.empty(ref.shape, values.dtype)
    steps = zip(ref.shape, ref.stride, strict=True)
    last = ref.offset + sum((size - 1) * step for size, step in steps)
    if last >= len(values) or count > len(values):
        raise Broken("shape", f"{name}: its values lie outside of its record")
    stride = [step * values.itemsize for step in ref.stride]
    view = np.lib.stride_tricks.as_strided(values[ref.offset :], ref.shape, stride, writeable=False)
    return np.ascontiguousarray(view).reshape(ref.shape)


def _itemsize(dtype: str) -> int:
    return np.dtype(NUMPY[dtype]).itemsize
