"""The index of a Zarr shard file, as Zarr's sharding_indexed codec lays it out.

For every chunk of the shard in order: offset and length in bytes, both uint64 little endian and
both 2**64 - 1 for a chunk that is not there; then the crc32c of those bytes, little endian. The
index is the last thing in the file.
Source: Zarr v3 specification, sharding codec, version 1.0; crc32c codec, version 1.0.
"""

from collections.abc import Iterable

import google_crc32c
import numpy as np
from numpy.typing import NDArray

from hsstore.model.geometry import INDEX_CHECKSUM_BYTES, Geometry
from hsstore.model.manifest import Chunk

MISSING = np.uint64(2**64 - 1)

Index = NDArray[np.uint64]


def encode_index(chunks: Iterable[Chunk], geometry: Geometry) -> bytes:
    """The stored index of a shard that holds ``chunks``."""
    entries = np.full((geometry.chunks_per_shard, 2), MISSING, "<u8")
    for chunk in chunks:
        entries[chunk.chunk] = chunk.offset, chunk.length
    raw = entries.tobytes()
    return raw + _checksum(raw)


def decode_index(raw: bytes, geometry: Geometry) -> Index:
    """Offsets and lengths [chunks, 2] of a stored index; ValueError when it is damaged."""
    if len(raw) != geometry.index_bytes:
        raise ValueError(f"the index has {len(raw)} bytes, not {geometry.index_bytes}")
    entries, checksum = raw[:-INDEX_CHECKSUM_BYTES], raw[-INDEX_CHECKSUM_BYTES:]
    if _checksum(entries) != checksum:
        raise ValueError("the crc32c of the index does not match")
    return np.frombuffer(entries, "<u8").reshape(-1, 2)


def _checksum(raw: bytes) -> bytes:
    return int(google_crc32c.value(raw)).to_bytes(INDEX_CHECKSUM_BYTES, "little")
