"""What transformers computes for the same tokens, and how far a store's states are from it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hsstore.extraction.transformers_model import quiet, require_transformers
from hsstore.model.capture import FINAL, Layer
from hsstore.storage.store import Store
from hsstore.training.dataset import HiddenStateDataset

Floats = NDArray[np.float32]


class Reference:
    """A model in transformers, asked one prompt at a time, by none of the code of the sources."""

    def __init__(self, model: Path, *, dtype: str = "float32", attention: str = "sdpa") -> None:
        transformers = require_transformers()
        with quiet(transformers):
            self._model: Any = transformers.AutoModelForCausalLM.from_pretrained(
                model, dtype=getattr(torch, dtype), attn_implementation=attention
            )

    def states(self, input_ids: Sequence[int], layers: Sequence[Layer]) -> Floats:
        """The same as ``rows``, as an array."""
        states: Floats = self.rows(input_ids, layers).numpy()
        return states

    def rows(self, input_ids: Sequence[int], layers: Sequence[Layer]) -> Tensor:
        """float32 [tokens, layers, hidden]: ``hidden_states[k]``, and the last one for final."""
        with torch.inference_mode():
            found = self._model(torch.tensor([list(input_ids)]), output_hidden_states=True)
        states = found.hidden_states
        columns = [states[-1] if layer == FINAL else states[layer] for layer in layers]
        return torch.stack([column[0].float() for column in columns], 1)


def relative_errors(found: Floats, expected: Floats) -> Floats:
    """[tokens, layers]: the distance of each state from the expected one, over that one's norm."""
    norm = np.linalg.norm(expected, axis=-1)
    distance: Floats = np.linalg.norm(found - expected, axis=-1) / norm
    return distance


def cosines(found: Floats, expected: Floats) -> Floats:
    """[tokens, layers]: the cosine between each state and the expected one."""
    product = np.einsum("tlh,tlh->tl", found.astype(np.float64), expected.astype(np.float64))
    norms = np.linalg.norm(found, axis=-1) * np.linalg.norm(expected, axis=-1)
    cosine: Floats = (product / norms).astype(np.float32)
    return cosine


def compare(store: Path, reference: Reference) -> dict[str, Floats]:
    """The relative errors [tokens, layers] of every sample of a store, by key.

    Raises what HiddenStateDataset raises where a sample is missing, absent or damaged.
    """
    layers = Store.open(store).identity.capture.layers
    dataset = HiddenStateDataset(store, verify="always")
    found = {}
    for number in range(len(dataset)):
        sample = dataset[number]
        expected = reference.states(sample["input_ids"].tolist(), layers)
        found[sample["id"]] = relative_errors(sample["hidden_states"].float().numpy(), expected)
    return found
