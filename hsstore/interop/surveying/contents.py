"""What the values of states give away: infinities, NaN, layers, rows or stretches of zeros."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.foreign import Fault

# Exponents of ones are infinities and NaN; of float8_e4m3fn only this one pattern is NaN.
EXPONENT = {"bfloat16": 0x7F80, "float8_e5m2": 0x7C, "float8_e4m3fn": 0x7F}
SIGNLESS = {"bfloat16": 0x7FFF, "float8_e5m2": 0x7F, "float8_e4m3fn": 0x7F}
# A page that a disk lost is 4 KiB of zeros, and holds one such stretch whole wherever it begins.
STRETCH_BYTES = 2048


def state_faults(key: str, dtype: str, states: NDArray[Any]) -> Iterator[Fault]:
    """What is wrong with the states of one key, C-contiguous [tokens, layers, hidden].

    bfloat16 comes as its uint16 bits, float8 as uint8. No model computes a layer, a row or a
    stretch of zeros: they are pages that were never written, or states never computed.
    """
    wild = np.count_nonzero(_not_finite(dtype, states))
    if wild:
        yield Fault("non-finite", f"{wild} of {states.size} values of {key}")
    there = _not_zero(dtype, states)
    layers = np.flatnonzero(~there.any(axis=(0, 2)))
    if len(layers) == states.shape[1]:
        yield Fault("all-zero", f"all of {key}")
    elif len(layers):
        yield Fault("all-zero", f"layers {', '.join(map(str, layers))} of {key}, counted from 0")
    elif len(rows := np.flatnonzero(~there.any(axis=(1, 2)))):
        yield Fault("all-zero", f"{len(rows)} rows of {key}, the first is {rows[0]}")
    else:
        yield from _stretches(key, there, STRETCH_BYTES // states.itemsize)


def _not_finite(dtype: str, states: NDArray[Any]) -> NDArray[np.bool_]:
    if dtype in EXPONENT:
        bits = EXPONENT[dtype]
        return np.asarray((states & bits) == bits)
    return np.asarray(~np.isfinite(states))


def _not_zero(dtype: str, states: NDArray[Any]) -> NDArray[np.bool_]:
    if dtype in SIGNLESS:
        return np.asarray((states & SIGNLESS[dtype]) != 0)
    return np.asarray(states != 0)


def _stretches(key: str, there: NDArray[np.bool_], length: int) -> Iterator[Fault]:
    """Stretches of so many zeros; ``there`` [tokens, layers, hidden] tells what is not zero."""
    whole = there.reshape(-1)[: there.size // length * length].reshape(-1, length)
    gone = np.flatnonzero(~whole.any(axis=1))
    if len(gone):
        row = int(gone[0]) * length // (there.size // len(there))
        bytes_told = f"{len(gone)} stretches of {STRETCH_BYTES} bytes of zeros"
        yield Fault("all-zero", f"{bytes_told} in {key}, the first at row {row}")
