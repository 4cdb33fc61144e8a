"""What wrong states look like: another layer, shifted rows, the other side of the norm, and so on.

Phrases say what is in a layer: "layer 3: all zeros".
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.integrity.auditing import other_norm, rounding
from hsstore.integrity.auditing.comparison import BLOCK_BYTES, MIDDLE, WORST, LayerFigures
from hsstore.integrity.auditing.likeness import Rows, cosines, relative_errors, values_of
from hsstore.model.capture import FINAL, FINAL_PRE, Layer

# Rows that are looked at, evenly spaced: of a long sample a few tell enough.
LOOKED_AT = 128
PROBES = 24
# The share of the probes that must tell the same shift, and of the rows that stand for all.
AGREED = 0.6
NEARLY_ALL = 0.8
ALIKE_COSINE = 0.99
# States of two models that have nothing in common have been seen at 0.1.
RELATED_COSINE = 0.3
# How much of a difference lies on the way to the next layer; see _on_the_way. Noise has been seen
# at 0.12, the neighbours of a layer between 0.02 and 0.6: what this finds is sure, and not all.
ON_THE_WAY = 0.3
LEAST_ROWS = 8

Which = slice | NDArray[np.int64] | NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Evidence:
    """One sample [tokens, layers, hidden] in the stored dtype, and how its layers compare.

    ``stored`` is what the store holds, ``found`` what was computed again.
    """

    layers: tuple[Layer, ...]
    dtype: str
    stored: NDArray[Any]
    found: NDArray[Any]
    figures: list[LayerFigures]

    @property
    def tokens(self) -> int:
        """How many rows there are."""
        return len(self.stored)

    def stored_rows(self, column: int, which: Which = slice(None)) -> Rows:
        """Rows of one layer as float32 [rows, hidden]."""
        return values_of(self.stored[which, column])

    def found_rows(self, column: int, which: Which = slice(None)) -> Rows:
        """The same of what was computed again."""
        return values_of(self.found[which, column])

    def alike(self, stored: Rows, found: Rows) -> bool:
        """Whether rows of one layer [tokens, hidden] are by and large the same but for noise."""
        return bool(np.median(relative_errors(stored, found)) <= MIDDLE[self.dtype])

    def wrong_rows(self, column: int) -> NDArray[np.bool_]:
        """Which rows of a layer are further off than noise brings any: bool [tokens]."""
        return self.figures[column].errors > WORST[self.dtype]


def wrongs(evidence: Evidence) -> dict[str, list[Layer]]:
    """What is wrong, in phrases, each with the layers that it is true of; empty where nothing is.

    A layer within noise is right, unless its difference has a pattern that noise does not have.
    """
    found: dict[str, list[Layer]] = {}
    for column, layer in enumerate(evidence.layers):
        if not evidence.figures[column].exact and (phrase := _phrase(evidence, column)):
            found.setdefault(phrase, []).append(layer)
    return found


def _phrase(evidence: Evidence, column: int) -> str | None:
    is_noise = evidence.figures[column].is_noise(evidence.dtype)
    looks = (_empty, _rounded, _neighbour) if is_noise else (_empty, _rounded, *IF_WRONG)
    return next((phrase for look in looks if (phrase := look(evidence, column))), None)


def _empty(evidence: Evidence, column: int) -> str | None:
    rows = evidence.stored_rows(column)
    odd = np.asarray(~np.isfinite(rows).all(axis=-1))
    if odd.any():
        return f"values that are not finite in {_some(odd)}"
    zero = np.asarray(~rows.any(axis=-1) & evidence.found_rows(column).any(axis=-1))
    if zero.any():
        return "all zeros" if zero.all() else f"zeros in {_some(zero)}"
    return None


def _rounded(evidence: Evidence, column: int) -> str | None:
    if np.median(evidence.figures[column].cosine) < ALIKE_COSINE:
        return None
    return rounding.coarser(evidence.stored[:, column], evidence.found[:, column], evidence.dtype)


def _other_layer(evidence: Evidence, column: int) -> str | None:
    chosen = _looked_at(evidence)
    own = evidence.stored_rows(column, chosen)
    for other, layer in enumerate(evidence.layers):
        if other != column and evidence.alike(own, evidence.found_rows(other, chosen)):
            return f"the state of layer {layer}"
    return None


def _shifted(evidence: Evidence, column: int) -> str | None:
    """By the places where a few of the wrong rows would fit."""
    wrong, votes = evidence.wrong_rows(column), Counter[int]()
    places = np.flatnonzero(wrong)
    probes = places[np.unique(np.linspace(0, len(places) - 1, PROBES).astype(int))] if len(
        places) else places  # fmt: skip
    for probe in probes:
        votes.update((probe - _fitting(evidence, column, int(probe))).tolist())
    shift = max(votes, key=lambda shift: (votes[shift], -abs(shift)), default=0)
    possible = sum(0 <= probe - shift < evidence.tokens for probe in probes)
    if not shift or votes[shift] < AGREED * possible:
        return None
    where = "" if wrong.mean() >= NEARLY_ALL else f" in {_some(wrong)}"
    return f"rows that come {abs(shift)} too {'late' if shift > 0 else 'early'}{where}"


def _fitting(evidence: Evidence, column: int, probe: int) -> NDArray[np.int64]:
    """The computed rows that a stored row is equal to but for noise."""
    row = evidence.stored_rows(column, slice(probe, probe + 1))
    step = max(1, BLOCK_BYTES // (8 * row.shape[-1]))
    errors = [
        relative_errors(evidence.found_rows(column, slice(at, at + step)), row)
        for at in range(0, evidence.tokens, step)
    ]
    return np.flatnonzero(np.concatenate(errors) <= MIDDLE[evidence.dtype])


def _scaled(evidence: Evidence, column: int) -> str | None:
    figures, chosen = evidence.figures[column], _looked_at(evidence)
    cosine = float(np.median(figures.cosine))
    if abs(cosine) < ALIKE_COSINE:
        return None
    scale = float(np.copysign(figures.middle_scale, cosine))
    stored, found = evidence.stored_rows(column, chosen), evidence.found_rows(column, chosen)
    is_it = evidence.alike(stored / np.float32(scale), found)
    return f"the right state times {scale:.3g}" if is_it else None


def _other_norm(evidence: Evidence, column: int) -> str | None:
    if evidence.layers[column] not in (FINAL, FINAL_PRE):
        return None
    chosen = _looked_at(evidence)
    stored, found = evidence.stored_rows(column, chosen), evidence.found_rows(column, chosen)
    return other_norm.side(stored, found, MIDDLE[evidence.dtype])


def _some_rows(evidence: Evidence, column: int) -> str | None:
    wrong = evidence.wrong_rows(column)
    if not wrong.any() or np.median(evidence.figures[column].errors) > MIDDLE[evidence.dtype]:
        return None
    return f"other values in {_some(wrong)}"


def _neighbour(evidence: Evidence, column: int) -> str | None:
    """A difference that leads to the next layer that is stored, or back to the one before."""
    layer = evidence.layers[column]
    for which, other in _neighbours(layer, evidence.layers):
        if _on_the_way(evidence, column, evidence.layers.index(other)) >= ON_THE_WAY:
            return f"likely the state of a{which} block, on the way to layer {other}"
    return None


def _on_the_way(evidence: Evidence, column: int, other: int) -> float:
    """The cosine of the stored difference and of the computed one between two layers.

    Both without what lies along the computed row, which any two states have in common that are
    wrong alike. The middle of the rows that differ; 0 where they are too few to tell.
    """
    chosen = _looked_at(evidence)
    own = evidence.found_rows(column, chosen).astype(np.float64)
    off = _beside(evidence.stored_rows(column, chosen) - own, own)
    way = _beside(evidence.found_rows(other, chosen) - own, own)
    moved = off.any(axis=-1) & way.any(axis=-1)
    return float(np.median(cosines(off[moved], way[moved]))) if moved.sum() >= LEAST_ROWS else 0.0


def _beside(rows: NDArray[np.float64], along: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows without their part along others: float64 [tokens, hidden]."""
    square = np.maximum((along**2).sum(axis=-1), np.finfo(np.float64).tiny)
    part = np.einsum("th,th->t", rows, along) / square
    beside: NDArray[np.float64] = rows - part[:, None] * along
    return beside


def _neighbours(layer: Layer, layers: tuple[Layer, ...]) -> Iterator[tuple[str, Layer]]:
    """The stored layers next to a numbered one."""
    numbered = sorted(k for k in layers if isinstance(k, int))
    if not isinstance(layer, int):
        return
    at = numbered.index(layer)
    if at + 1 < len(numbered):
        yield " later", numbered[at + 1]
    elif FINAL_PRE in layers:
        yield " later", FINAL_PRE
    if at:
        yield "n earlier", numbered[at - 1]


def _other_weights(evidence: Evidence, column: int) -> str:
    cosine = float(np.median(evidence.figures[column].cosine))
    if cosine < RELATED_COSINE:
        return "nothing in common with what was computed"
    return "akin to what was computed, but not the same: other weights, or a layer nearby"


def _some(rows: NDArray[np.bool_]) -> str:
    """Which rows of how many."""
    places = np.flatnonzero(rows)
    first, last = int(places[0]), int(places[-1])
    which = f"row {first}" if first == last else f"rows {first} to {last}"
    within = "" if last - first + 1 == len(places) else f", {len(places)} in all,"
    return f"{which}{within} of {len(rows)}"


def _looked_at(evidence: Evidence) -> NDArray[np.int64]:
    """Evenly spaced rows, all of a short sample."""
    count = min(evidence.tokens, LOOKED_AT)
    return np.linspace(0, evidence.tokens - 1, count).astype(np.int64)


Look = Callable[[Evidence, int], str | None]
IF_WRONG: tuple[Look, ...] = (
    _other_layer,
    _shifted,
    _some_rows,
    _scaled,
    _other_norm,
    _neighbour,
    _other_weights,
)
