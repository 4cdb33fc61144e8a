"""The sketch that stands in for an answer: what a calibration keeps of one, to compare others."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hsstore.integrity.auditing.likeness import Rows
from hsstore.model.calibration import PROJECTIONS, projection_bits

Sketch = NDArray[np.float64]


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
