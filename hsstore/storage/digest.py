"""Hashes and statistics of states, taken while they are written."""

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.model.manifest import Statistics
from hsstore.storage.filesystem import Buffer

STATISTICS_ROWS = 64
_ZEROS = bytes(1 << 20)


def chunk_digest(stored: Buffer, padding_bytes: int = 0) -> str:
    """xxh3_64 (16 hex digits) over a chunk's stored bytes; ``padding_bytes`` zeros follow them."""
    digest = xxhash.xxh3_64(stored)
    while padding_bytes > 0:
        piece = memoryview(_ZEROS)[:padding_bytes]
        digest.update(piece)
        padding_bytes -= len(piece)
    return digest.hexdigest()


def content_digest(states: NDArray[Any]) -> str:
    """xxh3_128 (32 hex digits) over a sample's decoded rows [tokens, layers, hidden]."""
    return xxhash.xxh3_128_hexdigest(states.data)


def as_float32(states: NDArray[Any]) -> NDArray[np.float32]:
    """Stored values as float32; uint16 holds the bits of bfloat16."""
    if states.dtype == np.uint16:
        return (states.astype(np.uint32) << 16).view(np.float32)
    return states.astype(np.float32)


def statistics(states: NDArray[Any]) -> Statistics:
    """Per-layer figures over evenly spaced rows of a sample [tokens, layers, hidden]."""
    tokens = len(states)
    rows = min(tokens, STATISTICS_ROWS)
    # A writer stores what it is given; figures that are not finite are the evidence.
    with np.errstate(all="ignore"):
        chosen = as_float32(states[np.arange(rows) * tokens // rows])
        # Sums in float64 without a float64 copy of all rows.
        norms = np.sqrt(np.einsum("rlh,rlh->rl", chosen, chosen, dtype=np.float64))
        median_norm, max_abs = np.median(norms, axis=0), np.abs(chosen, out=chosen).max((0, 2))
    return Statistics(rows, tuple(map(float, median_norm)), tuple(map(float, max_abs)))
