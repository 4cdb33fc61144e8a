"""What is wrong within one sample: values, rows, and what its manifest says of it."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hsstore.integrity.content.form import Form
from hsstore.integrity.content.sample_scan import Looked
from hsstore.integrity.content.words import by_layer
from hsstore.model.manifest import Statistics

# As many neighbouring rows must be equal, unless all rows of the layer are.
REPEATED_ROWS = 4
# Sums are taken in another order, over values that float32 holds exactly.
STATISTICS_TOLERANCE = 1e-5

Fault = tuple[str, str, str]
"""Kind, detail, evidence."""


def faults(form: Form, looked: Looked, input_ids: NDArray[np.int32] | None) -> Iterator[Fault]:
    """Everything that is wrong with a sample by itself; without its tokens what shows anyway."""
    not_finite = looked.highest >= form.not_finite
    if not_finite.any():
        where = by_layer(not_finite, form.names)
        yield "content-nonfinite", "the sample holds values that are not finite", where
    if (zeros := zero_rows(form, looked)).any():
        yield "content-zero", "rows of the sample are all zeros", by_layer(zeros, form.names)
    if input_ids is not None:
        repeats = repeated_rows(form, looked, input_ids) & ~zeros
        if repeats.any():
            detail = "rows of the sample are equal, though their tokens are not"
            yield "content-constant", detail, by_layer(repeats, form.names)
    yield from _contradictions(form, looked)


def zero_rows(form: Form, looked: Looked) -> NDArray[np.bool_]:
    """[rows, layers], which are zeros; in the embedding only where all rows are."""
    zeros: NDArray[np.bool_] = looked.highest == 0
    return _without_table(form, zeros)


def repeated_rows(form: Form, looked: Looked, input_ids: NDArray[np.int32]) -> NDArray[np.bool_]:
    """[rows, layers], which are part of a run of equal rows whose tokens differ."""
    found = np.zeros_like(looked.repeats)
    # Most layers have no two equal neighbours at all.
    for layer in np.flatnonzero(looked.repeats.any(axis=0)):
        starts = np.flatnonzero(~looked.repeats[:, layer])
        for start, end in zip(starts, [*starts[1:], len(found)], strict=True):
            run = slice(int(start), int(end))
            long = end - start >= min(REPEATED_ROWS, len(found))
            if long and (input_ids[run] != input_ids[run.start]).any():
                found[run, layer] = True
    return _without_table(form, found)


def _without_table(form: Form, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Tokens that were never trained may share a row of the embedding; not all of a sample."""
    table = np.setdiff1d(np.arange(mask.shape[1]), form.telling)
    partly = table[~mask[:, table].all(axis=0)]
    mask[:, partly] = False
    return mask


def _contradictions(form: Form, looked: Looked) -> Iterator[Fault]:
    stored = looked.stored
    if looked.content != stored.content:
        evidence = f"xxh3_128 {looked.content}, expected {stored.content}"
        yield "content-differs", "the rows are not those of the content digest", evidence
    if not looked.padding:
        detail = "the padding after the last row is not zeros"
        yield "content-differs", detail, f"after row {stored.rows - 1}"
    if contradicted := [*_statistics(form, stored.statistics, looked.statistics)]:
        detail = "the rows do not have the statistics that the manifest gives"
        yield "content-differs", detail, "; ".join(contradicted)


def _statistics(form: Form, said: Statistics, found: Statistics) -> Iterator[str]:
    if said.rows != found.rows:
        yield f"statistics of {said.rows} rows, not {found.rows}"
        return
    for what in ("median_norm", "max_abs"):
        expected, actual = getattr(said, what), getattr(found, what)
        if len(expected) != len(actual):
            yield f"{what} of {len(expected)} layers, not {len(actual)}"
            continue
        # What is beyond float32 may be infinite in one order of summing and not in the other.
        close = np.isclose(actual, expected, STATISTICS_TOLERANCE, 0.0, equal_nan=True)
        for layer in np.flatnonzero(~close):
            yield f"{form.names[layer]}: {what} {actual[layer]:.6g}, said {expected[layer]:.6g}"
