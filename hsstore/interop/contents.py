"""What the values of states give away: infinities, NaN, layers, rows or stretches of zeros."""

from collections.abc import Iterator
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.foreign import Fault

# Without their signs, the bits of all infinities and NaN are no less than these; IEEE 754, and for
# float8 the types of the Open Compute Project (OFP8).
WILD_FROM = {
    "bfloat16": 0x7F80,
    "float16": 0x7C00,
    "float32": 0x7F80_0000,
    "float64": 0x7FF0_0000_0000_0000,
    "float8_e5m2": 0x7C,
    "float8_e4m3fn": 0x7F,
}
# A page that a disk lost is 4 KiB of zeros, and holds one such stretch whole wherever it begins.
STRETCH_BYTES = 2048
# What fits into a cache, with what is made of it.
PIECE_BYTES = 1 << 19


def state_faults(key: str, dtype: str, states: NDArray[Any], tokens: int) -> Iterator[Fault]:
    """What is wrong with the states of one key, C-contiguous [rows, layers, hidden].

    bfloat16 comes as its uint16 bits, float8 as uint8. No model computes a layer, a row or a
    stretch of zeros: they are pages that were never written, or states never computed. Behind the
    ``tokens`` of a padded sample zeros are no fault; infinities and NaN are one anywhere, for
    trainers read the padding too.
    """
    highest, stretches = _highest(states)
    wild = np.argwhere(highest >= WILD_FROM[dtype])
    if len(wild):
        row, layer = wild[0]
        where = f"{len(np.unique(wild[:, 0]))} rows of {key}, the first is {row}, layer {layer}"
        yield Fault("non-finite", where)
    if dtype.startswith("float8"):
        # One scale for all layers of a token leaves zeros of a layer that is much smaller.
        stretches = stretches[:0]
    row_bytes = states.nbytes // len(states)
    highest, stretches = highest[:tokens], stretches[: tokens * row_bytes // STRETCH_BYTES]
    layers, rows = (np.flatnonzero(~highest.any(axis=axis)) for axis in (0, 1))
    if len(layers) == highest.shape[1]:
        yield Fault("all-zero", f"all of {key}")
    elif len(layers):
        yield Fault("all-zero", f"layers {', '.join(map(str, layers))} of {key}, counted from 0")
    elif len(rows):
        yield Fault("all-zero", f"{len(rows)} rows of {key}, the first is {rows[0]}")
    elif not stretches.all():
        gone = np.flatnonzero(stretches == 0)
        row = int(gone[0]) * STRETCH_BYTES // row_bytes
        detail = f"{len(gone)} stretches of {STRETCH_BYTES} bytes of {key}, the first in row {row}"
        yield Fault("all-zero", detail)


def _highest(states: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """The highest bits without a sign: of each row's layers [tokens, layers], and of stretches."""
    bits = states.view(f"u{states.itemsize}")
    unsigned = bits.dtype.type((1 << 8 * bits.itemsize - 1) - 1)
    values = STRETCH_BYTES // bits.itemsize
    highest, stretches = [], []
    for begin in range(0, len(bits), step := _piece_rows(bits)):
        piece = bits[begin : begin + step] & unsigned
        highest.append(piece.max(axis=2))
        whole = piece.reshape(-1)[: piece.size // values * values]
        stretches.append(whole.reshape(-1, values).max(axis=1))
    return np.concatenate(highest), np.concatenate(stretches)


def _piece_rows(bits: NDArray[Any]) -> int:
    """So many rows that a piece ends where a stretch does."""
    row_bytes = bits.nbytes // len(bits)
    fitting = STRETCH_BYTES // gcd(row_bytes, STRETCH_BYTES)
    return max(PIECE_BYTES // (row_bytes * fitting), 1) * fitting
