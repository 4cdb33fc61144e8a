"""How a chunk's bytes are stored: as they are, or compressed so that any Zarr reader decodes it."""

import struct
from typing import Any

import numpy as np
from numcodecs import blosc
from numpy.typing import NDArray

from hsstore.storage.filesystem import Buffer

COMPRESSOR = "zstd"
LEVEL = 1
BLOCK_BYTES = 1 << 20
HEADER_BYTES = 16

# blosc's own thread pool does not survive a fork, and DataLoader workers are forked; without it
# every call also releases the GIL, so chunks decode in parallel on our threads instead.
blosc.use_threads = False


def compress(chunk: Buffer, itemsize: int) -> bytes:
    """The stored bytes of one whole decoded chunk."""
    compressed: bytes = blosc.compress(
        np.frombuffer(chunk, np.uint8),
        COMPRESSOR.encode(),
        LEVEL,
        blosc.SHUFFLE,
        BLOCK_BYTES,
        itemsize,
    )
    return compressed


def decompress(stored: Buffer, into: NDArray[np.uint8]) -> None:
    """Decode one chunk into a buffer of exactly its decoded size; ValueError if it does not fit."""
    # The decoder trusts its header: one that lies about a length reads past the buffer.
    if _header_sizes(stored) != (len(into), len(stored)):
        raise ValueError("the compressed chunk's header does not give its sizes")
    try:
        blosc.decompress(stored, into)
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"the compressed chunk does not decode: {error}") from None


def _header_sizes(stored: Buffer) -> tuple[int, int] | None:
    """Decoded and stored bytes as a blosc header gives them (c-blosc README_HEADER, version 2)."""
    if len(stored) < HEADER_BYTES:
        return None
    decoded, _, compressed = struct.unpack_from("<III", stored, 4)
    return decoded, compressed


def stored_dtype(dtype: str) -> np.dtype[Any]:
    """The numpy dtype that a capture dtype is stored as, little endian."""
    return np.dtype({"bfloat16": "<u2", "float16": "<f2", "float32": "<f4"}[dtype])
