"""What an answer shows by itself, without the model: contradictions, and what stays open."""

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hsstore.extraction.sglang.final_norm import (
    is_normalised,
    looks_unnormalised,
    norm_weights,
    spread,
)
from hsstore.integrity.auditing.likeness import Rows
from hsstore.model.capture import FINAL, FINAL_PRE, Layer

# The two ends of three layers lie further apart than either from the one between. Of all triples
# of SmolLM2-135M and of a random model, the worst fell short of that by 6 %.
ORDER_CERTAIN = 0.8
ORDERED_LAYERS = 3
WEIGHTS_DOUBT = "nothing shows that its weights are the store's"


def contradictions(
    layers: tuple[Layer, ...], states: Rows, ids: NDArray[np.int32]
) -> Iterator[str]:
    """A phrase for everything in these states (float32 [tokens, layers, hidden]) that cannot be."""
    for column, layer in enumerate(layers):
        same = _repeated(states[:, column], ids)
        if same is not None:
            yield f"layer {layer} has the same row for tokens {same} and {same + 1}, which differ"
    for one, other in itertools.combinations(range(len(layers)), 2):
        if np.array_equal(states[:, one], states[:, other]):
            yield f"layers {layers[one]} and {layers[other]} are one and the same state"
    for first, second, third, share in _triples(layers, states):
        if share < ORDER_CERTAIN:
            yield (
                f"layers {first}, {second} and {third} are not in this order: {first} and {third} "
                "are not the two furthest apart"
            )


def order_doubt(layers: tuple[Layer, ...], states: Rows) -> str:
    """What the states leave open about the order of the layers, empty where nothing."""
    numbered = [layer for layer in layers if isinstance(layer, int)]
    if not numbered:
        return ""
    which = "nothing shows that the numbered layers are not others of the model"
    if len(numbered) < ORDERED_LAYERS:
        return which
    unsure = [triple[:3] for triple in _triples(layers, states) if triple[3] < 1]
    if unsure:
        return f"{which}, and the order of {', '.join(map(str, unsure[0]))} is not sure"
    return f"{which} in the same order"


def judge_norm(layers: tuple[Layer, ...], states: Rows, folder: Path | None,
               dtype: str) -> tuple[list[str], str]:  # fmt: skip
    """Contradictions about the final norm, and the doubt that is left.

    ``folder`` is the model's, where it is on this machine: it holds the norm's weights.
    """
    ends = [layer for layer in (FINAL, FINAL_PRE) if layer in layers]
    if not ends:
        return [], ""
    candidates = norm_weights(folder, states.shape[-1]) if folder else []
    wrong, doubts = [], []
    for end in ends:
        rows = states[:, layers.index(end)]
        proved = any(is_normalised(rows, weights, dtype) for weights in candidates)
        refuted = bool(candidates) and all(
            looks_unnormalised(rows, weights, dtype) for weights in candidates
        )
        if end == FINAL and refuted:
            wrong.append("the state 'final' looks like the last one before the norm")
        elif end == FINAL_PRE and proved:
            wrong.append("the state 'final:pre' looks like the last one after the norm")
        elif (end == FINAL and not proved) or (end == FINAL_PRE and not refuted):
            doubts.append(
                f"that {end!r} is on the right side of the final norm rests on what the server "
                f"says: the lengths of its rows vary by {spread(rows):.0%}"
            )
    return wrong, "; ".join(doubts)


def _repeated(rows: Rows, ids: NDArray[np.int32]) -> int | None:
    """The first token whose row is the next one's too, though the tokens differ."""
    same = (rows[1:] == rows[:-1]).all(axis=-1) & (ids[1:] != ids[:-1])
    return int(same.argmax()) if same.any() else None


def _triples(layers: tuple[Layer, ...], states: Rows) -> Iterator[tuple[int, int, int, float]]:
    """Every three numbered layers, and how far apart the ends are beside the other two pairs."""
    numbered = sorted((layer, column) for column, layer in enumerate(layers) if layer not in
                      (FINAL, FINAL_PRE))  # fmt: skip
    for (a, i), (b, j), (c, k) in itertools.combinations(numbered, 3):
        inner = max(_apart(states, i, j), _apart(states, j, k))
        yield int(a), int(b), int(c), _apart(states, i, k) / inner if inner else 0.0


def _apart(states: Rows, one: int, other: int) -> float:
    """How far apart two layers are: the middle token's distance."""
    difference = states[:, one].astype(np.float64) - states[:, other]
    return float(np.median(np.linalg.norm(difference, axis=-1)))
