"""How far stored states are from those computed again, layer by layer, and whether noise does that.

What noise can do was measured on a small random model and on SmolLM2-135M, between batches, two
implementations of attention, and SGLang and transformers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.integrity.auditing.likeness import Rows, cosines, relative_errors, values_of
from hsstore.model.capture import Layer

# Relative error of the middle row and of the worst one. In 16 bits 0.018 and 0.15 have been seen,
# in float32 1e-6 and 3e-6, but on GPUs products of float32 matrices may be rounded to TF32.
MIDDLE = {"float32": 1e-3, "bfloat16": 0.06, "float16": 0.06}
WORST = {"float32": 5e-3, "bfloat16": 0.25, "float16": 0.25}
# By how much the length of the middle row may differ: noise has no direction, and made 0.0024 in 16
# bits, 1e-7 in float32.
SCALE = {"float32": 1e-4, "bfloat16": 1e-2, "float16": 1e-2}
BLOCK_BYTES = 32 << 20

Values = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class LayerFigures:
    """How far one layer of a sample is from what was computed again.

    ``max_abs`` is the largest difference of two values; ``errors`` the length of each row's
    difference over that of the computed row, ``cosine`` the cosine of the two rows, ``scale`` the
    length of the stored row over the other: float64 [tokens]. Where one holds a value that is not
    finite, the error is infinite and the cosine 0.
    """

    layer: Layer
    exact: bool
    max_abs: float
    errors: Values
    cosine: Values
    scale: Values

    @property
    def middle_error(self) -> float:
        """The relative error of the middle row."""
        return float(np.median(self.errors))

    @property
    def worst_error(self) -> float:
        """The relative error of the worst row."""
        return float(self.errors.max())

    @property
    def middle_scale(self) -> float:
        """How long the middle row is beside the computed one."""
        return float(np.median(self.scale))

    def is_noise(self, dtype: str) -> bool:
        """Whether other kernels alone can explain this, in states of ``dtype``."""
        return (
            self.middle_error <= MIDDLE[dtype]
            and self.worst_error <= WORST[dtype]
            and abs(self.middle_scale - 1) <= SCALE[dtype]
        )

    def told(self) -> str:
        """The figures for people."""
        if self.exact:
            return f"layer {self.layer}: equal"
        return (
            f"layer {self.layer}: off by up to {self.max_abs:.3g}, relative error up to "
            f"{self.worst_error:.2g} (middle row {self.middle_error:.2g}), cosine from "
            f"{self.cosine.min():.4f} (middle row {np.median(self.cosine):.4f})"
        )


def compare(
    stored: NDArray[Any], found: NDArray[Any], layers: tuple[Layer, ...]
) -> list[LayerFigures]:
    """Figures for each layer of two samples [tokens, layers, hidden] in the stored dtype."""
    return [
        _figures(layer, stored[:, column], found[:, column]) for column, layer in enumerate(layers)
    ]


def _figures(layer: Layer, stored: NDArray[Any], found: NDArray[Any]) -> LayerFigures:
    """Of one layer [tokens, hidden]; in blocks, as float64 takes up to four times the memory."""
    step = max(1, BLOCK_BYTES // (8 * stored.shape[1]))
    parts = [
        _block(values_of(stored[at : at + step]), values_of(found[at : at + step]))
        for at in range(0, len(stored), step)
    ]
    apart, *by_row = zip(*parts, strict=True)
    errors, cosine, scale = map(np.concatenate, by_row)
    return LayerFigures(layer, same_bits(stored, found), max(apart), errors, cosine, scale)


def _block(stored: Rows, found: Rows) -> tuple[float, Values, Values, Values]:
    finite = np.isfinite(stored).all(axis=-1) & np.isfinite(found).all(axis=-1)
    one, other = stored[finite], found[finite]
    rows = len(stored)
    errors, cosine, scale = np.full(rows, np.inf), np.zeros(rows), np.full(rows, np.inf)
    errors[finite], cosine[finite] = relative_errors(one, other), cosines(one, other)
    scale[finite] = _lengths(one) / np.maximum(_lengths(other), np.finfo(np.float64).tiny)
    apart = float(np.abs(one.astype(np.float64) - other).max(initial=0.0))
    return apart if finite.all() else np.inf, errors, cosine, scale


def same_bits(stored: NDArray[Any], found: NDArray[Any]) -> bool:
    """Whether two arrays of one dtype are equal bit by bit: NaN to itself, and -0 not to 0."""
    bits = f"u{stored.dtype.itemsize}"
    rows = zip(stored, found, strict=True)
    return all(np.array_equal(one.view(bits), other.view(bits)) for one, other in rows)


def _lengths(rows: Rows) -> Values:
    lengths: Values = np.linalg.norm(rows.astype(np.float64), axis=-1)
    return lengths
