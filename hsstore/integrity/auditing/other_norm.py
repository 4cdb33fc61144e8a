"""Whether a state is on the other side of a final norm, told without the norm's weights.

A norm scales every row by a number of its own, and every value of a row by that value's weight. So
two rows on its two sides differ by a product of the two: what scales some of the rows, scales the
others too.
"""

import numpy as np
from numpy.typing import NDArray

from hsstore.integrity.auditing.likeness import Rows, relative_errors

LEAST_ROWS = 6
# Each brings the two sets of factors closer to their common fit.
ROUNDS = 12
Factors = NDArray[np.float64]


def side(stored: Rows, found: Rows, noise: float) -> str | None:
    """A phrase where the rows [tokens, hidden] are those on the other side of a norm.

    ``noise`` is the relative error of a row that is still believed.
    """
    usable = stored.any(axis=-1) & found.any(axis=-1)
    one, other = stored[usable].astype(np.float64), found[usable].astype(np.float64)
    if len(one) < LEAST_ROWS:
        return None
    weights = _weights(one[::2], other[::2])
    weighted = other[1::2] * weights
    rows = _fitted(one[1::2], weighted)
    if np.median(relative_errors(rows[:, None] * weighted, one[1::2])) > noise:
        return None
    before, after = _spread(_length(other * weights)), _spread(_length(one / weights))
    if min(before, after) > noise:
        return "the right state, but for a factor of each row and one of each value"
    if before < after:
        return "the state before the final norm"
    return "the state after the final norm"


def _weights(one: Factors, other: Factors) -> Factors:
    """What scales each value of ``other``, beside a factor of its row, to that of ``one``."""
    weights = np.ones(other.shape[1])
    for _ in range(ROUNDS):
        rows = _fitted(one, other * weights)
        weights = _fitted(one.T, (other * rows[:, None]).T)
    return weights


def _fitted(one: Factors, other: Factors) -> Factors:
    """The factor of each row of ``other`` that comes nearest to the row of ``one``."""
    product = np.einsum("ab,ab->a", one, other)
    fitted: Factors = product / np.maximum((other**2).sum(axis=-1), np.finfo(np.float64).tiny)
    return np.where(fitted == 0, 1.0, fitted)


def _length(rows: Factors) -> Factors:
    lengths: Factors = np.linalg.norm(rows, axis=-1)
    return lengths


def _spread(lengths: Factors) -> float:
    return float(np.median(abs(lengths / np.median(lengths) - 1)))
