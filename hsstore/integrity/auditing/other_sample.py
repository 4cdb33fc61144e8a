"""Whether wrong rows are those of another sample, or are stored as another's."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.integrity.auditing.comparison import MIDDLE
from hsstore.integrity.auditing.likeness import relative_errors, values_of
from hsstore.integrity.auditing.verified import VerifiedSamples
from hsstore.model.source import Request

# How many samples to either side are looked at, and how many of their rows.
NEAR = 16
ROWS = 16


def whose_rows(
    samples: VerifiedSamples,
    request: Request,
    stored: NDArray[Any],
    found: NDArray[Any],
    dtype: str,
) -> str | None:
    """A sentence that names the sample nearby that has these rows; None where none has.

    ``stored`` and ``found`` [tokens, layers, hidden] are what the store holds and what was
    computed again.
    """
    for other, states in _nearby(samples, request.sample):
        rows = min(len(states), len(stored))
        theirs = _request(samples, other)
        if theirs is None or np.array_equal(theirs.input_ids[:rows], request.input_ids[:rows]):
            continue
        # Samples that begin alike have the same rows there, rightly.
        last = slice(max(0, rows - ROWS), rows)
        if _alike(stored[last], states[last], dtype):
            return f"its rows are also stored as sample {theirs.key!r}"
        if _alike(found[last], states[last], dtype):
            return f"what belongs here is stored as sample {theirs.key!r}"
    return None


def _nearby(samples: VerifiedSamples, sample: int) -> Iterator[tuple[int, NDArray[Any]]]:
    total = samples.store.plan.samples
    near = range(max(0, sample - NEAR), min(total, sample + NEAR + 1))
    for other in sorted(near, key=lambda other: abs(other - sample)):
        if other != sample and (states := samples.peek(other)) is not None:
            yield other, states


def _request(samples: VerifiedSamples, sample: int) -> Request | None:
    return samples.request(samples.store.samples.extent(sample).shard, sample)


def _alike(one: NDArray[Any], other: NDArray[Any], dtype: str) -> bool:
    """Whether rows [rows, layers, hidden] are the same but for noise, in every layer."""
    with np.errstate(all="ignore"):
        errors = relative_errors(values_of(one), values_of(other))
    return bool((np.median(errors, axis=0) <= MIDDLE[dtype]).all())
