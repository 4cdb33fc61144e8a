"""Files of safetensors: what their header proves, and their tensors.

The format (huggingface/safetensors, "Format"): the header's length in 8 bytes, a JSON object of
dtype, shape and extent by name, then the values, without holes. There is no checksum, so all that
can be proven is that the header fits the file.
"""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from hsstore.interop.file_bytes import opened_bytes
from hsstore.interop.foreign import Broken, ForeignFile, TensorHeader
from hsstore.storage.filesystem import LOCAL, Filesystem

HEADER_BYTES = 100_000_000
LENGTH_BYTES = 8
DIMENSIONS = 16
VALUES = 2**60
DTYPES = {
    "F64": ("float64", "<f8"),
    "F32": ("float32", "<f4"),
    "F16": ("float16", "<f2"),
    "BF16": ("bfloat16", "<u2"),
    "F8_E4M3": ("float8_e4m3fn", "<u1"),
    "F8_E5M2": ("float8_e5m2", "<u1"),
    "I64": ("int64", "<i8"),
    "I32": ("int32", "<i4"),
    "I16": ("int16", "<i2"),
    "I8": ("int8", "<i1"),
    "U64": ("uint64", "<u8"),
    "U32": ("uint32", "<u4"),
    "U16": ("uint16", "<u2"),
    "U8": ("uint8", "<u1"),
    "BOOL": ("bool", "|b1"),
}


@dataclass(frozen=True, slots=True)
class _Extent:
    header: TensorHeader
    numpy: str
    begin: int
    end: int


class SafetensorsFile:
    """An open safetensors file; a Container that cannot verify values."""

    verifiable = False

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        size = stream.seek(0, 2)
        header_bytes = _header_bytes(stream, size)
        self._base = LENGTH_BYTES + header_bytes
        self._extents = _extents(stream.read(header_bytes))
        _refuse_misfit(self._extents, size - self._base)

    @property
    def tensors(self) -> Mapping[str, TensorHeader]:
        """The header of each tensor by its name."""
        return {name: extent.header for name, extent in self._extents.items()}

    def array(self, name: str) -> NDArray[Any]:
        """A tensor's values, C-contiguous; Broken (``truncated``) where the file ends in them."""
        extent = self._extents[name]
        values = np.empty(extent.header.shape, extent.numpy)
        self._stream.seek(self._base + extent.begin)
        into = values.reshape(-1).view(np.uint8)
        if self._stream.readinto(into.data) != len(into):  # type: ignore[attr-defined]
            raise Broken("truncated", f"the file ends within {name!r:.120}")
        return values

    def prove(self) -> None:
        """Nothing more can be proven."""


@contextlib.contextmanager
def open_safetensors(
    file: ForeignFile, filesystem: Filesystem = LOCAL
) -> Iterator[SafetensorsFile]:
    """A safetensors file; what is wrong with it is raised as Broken."""
    with opened_bytes(file, filesystem) as stream:
        yield SafetensorsFile(stream)


def _header_bytes(stream: BinaryIO, size: int) -> int:
    stream.seek(0)
    told = int.from_bytes(stream.read(LENGTH_BYTES), "little")
    if size < LENGTH_BYTES or not told or told > HEADER_BYTES:
        kind = "truncated" if size < LENGTH_BYTES else "no-container"
        raise Broken(kind, f"a header of {told} bytes in a file of {size}")
    if LENGTH_BYTES + told > size:
        raise Broken("truncated", f"the file ends within its header ({size} bytes)")
    return told


def _extents(header: bytes) -> dict[str, _Extent]:
    try:
        parsed = orjson.loads(header)
    except orjson.JSONDecodeError as error:
        raise Broken("no-container", f"its header is no JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise Broken("no-container", "its header is no JSON object")
    parsed.pop("__metadata__", None)
    return {name: _extent(name, told) for name, told in parsed.items()}


def _extent(name: str, told: object) -> _Extent:
    match told:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [int(begin), int(end)]}:
            pass
        case _:
            raise Broken("no-container", f"its header tells no tensor of {name!r:.120}")
    if dtype not in DTYPES:
        raise Broken("dtype", f"{name!r:.120} is of dtype {dtype!r:.40}")
    known, code = DTYPES[dtype]
    sized = all(type(size) is int and size >= 0 for size in shape)
    # No array has more values than these, counted without the sizes that are 0.
    if not sized or len(shape) > DIMENSIONS or math.prod(filter(None, shape)) >= VALUES:
        raise Broken("no-container", f"{name!r:.120} has a shape that is none")
    if end - begin != math.prod(shape) * np.dtype(code).itemsize:
        raise Broken(
            "no-container", f"{name!r:.120} has {end - begin} bytes for shape {shape!s:.80}"
        )
    return _Extent(TensorHeader(known, tuple(shape)), code, begin, end)


def _refuse_misfit(extents: Mapping[str, _Extent], size: int) -> None:
    """Tensors follow each other without a hole, from the first byte to the last of the file."""
    at = 0
    for extent in sorted(extents.values(), key=lambda extent: (extent.begin, extent.end)):
        if extent.begin != at:
            raise Broken("no-container", "its tensors overlap or leave a hole")
        at = extent.end
    if at > size:
        raise Broken("truncated", f"values of {size} bytes, where the header tells of {at}")
    if at < size:
        raise Broken("no-container", f"{size - at} bytes follow behind the last tensor")
