"""The reference that a server's answer is held against: transformers on the same weights."""

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.errors import MalformedInput, SourceUnavailable
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.integrity.auditing.likeness import (
    Rows,
    agreement,
    cosines,
    distance,
    relative_errors,
    values_of,
)
from hsstore.model.calibration import Agreement
from hsstore.model.capture import FINAL, FINAL_PRE, Capture, Layer, ModelIdentity
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Request
from hsstore.storage.model_files import read_model, weight_files

# What a reference may cost that nobody asked for: its weights are loaded twice.
AT_HAND_BYTES = 4 << 30

FLOAT32_RELATIVE = 1e-3
FLOAT32_COSINE = 0.9999
# Below these nothing is asked of two engines that compute in 16 bits, however alike two
# implementations inside one of them happen to be.
LEAST_RELATIVE = 0.06
LEAST_COSINE = 0.995
FLOOR_FACTOR = 1.5
FLOOR_COSINE = 0.005

# How near a state must be to be called the one that an unexpected row looks like.
ALIKE_COSINE = 0.95


@dataclass(frozen=True, slots=True)
class Reference:
    """All states of one prompt: float32 [tokens, layers, hidden], the layers in ``layers``.

    ``floor`` is, for each layer, how far two implementations of attention lie apart in the stored
    dtype; None for float32, whose limits need no measure.
    """

    layers: tuple[Layer, ...]
    states: Rows
    floor: tuple[Agreement, ...] | None

    def rows(self, layer: Layer) -> Rows:
        """The rows of one layer: float32 [tokens, hidden]."""
        rows: Rows = self.states[:, self.layers.index(layer)]
        return rows

    def limit(self, layer: Layer) -> Agreement:
        """The worst agreement that is still believed."""
        if self.floor is None:
            return Agreement(FLOAT32_RELATIVE, FLOAT32_COSINE)
        floor = self.floor[self.layers.index(layer)]
        return Agreement(
            max(FLOOR_FACTOR * floor.relative_error, LEAST_RELATIVE),
            min(floor.cosine - FLOOR_COSINE, LEAST_COSINE),
        )


def compute_reference(
    path: str | Path, identity: StoreIdentity, input_ids: NDArray[np.int32]
) -> Reference:
    """Every layer of the model at ``path`` for one prompt (int32 [tokens]), in the stored dtype.

    Raises IdentityMismatch where it is another model than the store's, SourceUnavailable where
    transformers cannot compute it.
    """
    everything = (*range(identity.model.num_layers), FINAL_PRE, FINAL)
    capture = Capture(everything, identity.capture.dtype)
    whole = dataclasses.replace(identity, capture=capture)
    states = _states(path, whole, input_ids, None)
    if identity.capture.dtype == "float32":
        return Reference(everything, states, None)
    other = _states(path, whole, input_ids, "eager")
    floor = [agreement(other[:, n], states[:, n]) for n in range(len(everything))]
    return Reference(everything, states, tuple(floor))


def local_model(path: str | None) -> ModelIdentity | None:
    """The model in a folder of this machine; None where there is no such folder, or no model."""
    if path is None or not Path(path).is_dir():
        return None
    try:
        return read_model(path)
    except (MalformedInput, OSError):
        return None


def at_hand(path: str | None, identity: StoreIdentity) -> Path | None:
    """The folder of a server's model, where it is on this machine, the store's, and small."""
    found, own = local_model(path), identity.model
    if found is None or path is None or found.weights_digest is None:
        return None
    is_same = (found.config_digest, found.weights_digest) == (own.config_digest, own.weights_digest)
    size = sum(file.stat().st_size for file in weight_files(Path(path)))
    return Path(path) if is_same and size <= AT_HAND_BYTES else None


def contradictions(layers: tuple[Layer, ...], states: Rows, reference: Reference) -> Iterator[str]:
    """A phrase for each layer whose rows are not what the reference computes for it."""
    for column, layer in enumerate(layers):
        found, expected = states[:, column], reference.rows(layer)
        measured, limit = agreement(found, expected), reference.limit(layer)
        exact = measured.relative_error <= limit.relative_error and measured.cosine >= limit.cosine
        if not exact or _nearest(found, reference) != layer:
            yield (
                f"{_spoken(layer)} {_looks_like(layer, found, reference)} (relative error "
                f"{measured.relative_error:.2g} of {limit.relative_error:.2g} allowed, cosine "
                f"{measured.cosine:.4f} of {limit.cosine:.4f})"
            )


def _looks_like(layer: Layer, found: Rows, reference: Reference) -> str:
    expected = reference.rows(layer)
    own = distance(found, expected)
    for rows, shifted, what in (
        (found[1:], expected[:-1], "late"),
        (found[:-1], expected[1:], "early"),
    ):
        if distance(rows, shifted) < own / 2 and _is_alike(rows, shifted):
            return f"has its rows shifted: they come one token {what}"
    nearest = _nearest(found, reference)
    if nearest != layer and _is_alike(found, reference.rows(nearest)):
        return f"looks like {_seen(nearest)}"
    if _is_alike(found, expected):
        odd = int(np.argmax(relative_errors(found, expected)))
        return f"is the right state, but not exactly enough, the most at token {odd}"
    return "looks like no state of the reference: other weights"


def _nearest(found: Rows, reference: Reference) -> Layer:
    distances = [distance(found, reference.rows(layer)) for layer in reference.layers]
    return reference.layers[int(np.argmin(distances))]


def _is_alike(found: Rows, expected: Rows) -> bool:
    return float(np.median(cosines(found, expected))) >= ALIKE_COSINE


def _spoken(layer: Layer) -> str:
    return f"layer {layer} of the store" if isinstance(layer, int) else f"the state {layer!r}"


def _seen(layer: Layer) -> str:
    names = {FINAL: "the last one after the final norm", FINAL_PRE: "the last one before the norm"}
    return names[layer] if isinstance(layer, str) else f"the state after {layer} blocks"


def _states(
    path: str | Path, identity: StoreIdentity, ids: NDArray[np.int32], attention: str | None
) -> Rows:
    source = TransformersSource(path, identity, attention=attention)
    try:
        (answer,) = source.states([Request(0, "calibration", ids)])
        if not isinstance(answer, Extracted):
            raise SourceUnavailable(
                f"transformers cannot compute the calibration prompt: {answer.detail}",
                place=str(path),
            )
        states: NDArray[Any] = answer.states.copy()
        return values_of(states)
    finally:
        source.close()
