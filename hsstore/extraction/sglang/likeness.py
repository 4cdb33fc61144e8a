"""How alike two answers to one prompt are, row by row, and the sketch that stands in for one.

States here are float32 [tokens, layers, hidden]; rows of one layer are float32 [tokens, hidden].
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.model.calibration import PROJECTIONS, Agreement, projection_bits

Rows = NDArray[np.float32]
Sketch = NDArray[np.float64]


def values_of(states: NDArray[Any]) -> Rows:
    """States as a store holds them (bfloat16 as uint16 bits) as float32 values."""
    if states.dtype == np.uint16:
        return (states.astype(np.uint32) << 16).view(np.float32)
    return states.astype(np.float32, copy=False)


def relative_errors(found: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.float64]:
    """The length of each row's difference over that of the expected row: float64 [tokens]."""
    difference = np.linalg.norm(found.astype(np.float64) - expected, axis=-1)
    length = np.linalg.norm(expected.astype(np.float64), axis=-1)
    return np.asarray(difference / np.maximum(length, np.finfo(np.float64).tiny))


def cosines(found: NDArray[Any], expected: NDArray[Any]) -> NDArray[np.float64]:
    """The cosine of each row with the expected row: float64 [tokens]; 0 where one is zero."""
    one, other = found.astype(np.float64), expected.astype(np.float64)
    lengths = np.linalg.norm(one, axis=-1) * np.linalg.norm(other, axis=-1)
    products = np.einsum("th,th->t", one, other)
    return np.asarray(products / np.maximum(lengths, np.finfo(np.float64).tiny))


def agreement(found: NDArray[Any], expected: NDArray[Any]) -> Agreement:
    """The worst relative error and the worst cosine of any row."""
    worst = float(relative_errors(found, expected).max())
    return Agreement(worst, float(cosines(found, expected).min()))


def distance(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """The relative error of the middle row: what one odd row cannot change."""
    return float(np.median(relative_errors(found, expected)))


def sketch(states: Rows) -> Sketch:
    """Projections of every row on fixed signs: [layers, tokens, PROJECTIONS].

    The relative error of a row's projections approximates that of the row.
    """
    hidden = states.shape[-1]
    raw = b"".join(projection_bits(n, hidden) for n in range(PROJECTIONS))
    packed = np.frombuffer(raw, np.uint8).reshape(PROJECTIONS, -1)
    signs = np.unpackbits(packed, axis=1, count=hidden, bitorder="little") * 2.0 - 1.0
    projected: Sketch = states.astype(np.float64).transpose(1, 0, 2) @ signs.T
    return projected


def as_recorded(projections: Sketch) -> tuple[tuple[float, ...], ...]:
    """A sketch as a calibration keeps it: one tuple of float32 values a layer."""
    return tuple(tuple(layer.astype(np.float32).ravel().tolist()) for layer in projections)


def from_record(recorded: Sequence[Sequence[float]]) -> Sketch:
    """The inverse of ``as_recorded``."""
    return np.array(recorded, np.float64).reshape(len(recorded), -1, PROJECTIONS)
