"""How alike two computations of the same rows are, row by row.

States here are float32 [tokens, layers, hidden]; rows of one layer are float32 [tokens, hidden].
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.model.calibration import Agreement

Rows = NDArray[np.float32]


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
