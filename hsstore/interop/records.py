"""A sample as the trainers' own files hold it: what their readers get before they touch it.

Sources: SpecForge 0.2.0, ``specforge/algorithms/eagle3/providers.py`` (its offline storage
contract); speculators 0.9.0, ``speculators/train/data.py`` (``ArrowDataset._get_raw_data``).
"""

from collections.abc import Sequence
from typing import TypedDict

import torch

from hsstore.model.capture import FINAL, FINAL_PRE, Layer
from hsstore.views.eagle3 import DraftLayers
from hsstore.views.item import Item
from hsstore.views.layers import side_by_side, take
from hsstore.views.specforge import SpecForgeView


class SpecForgeRecord(TypedDict):
    """A ``.ckpt`` file.

    ``input_ids`` and ``loss_mask`` int64 [tokens], ``aux_hidden_state`` [1, tokens, 3 * hidden],
    ``hidden_state`` [1, tokens, hidden] after the final norm.
    """

    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    aux_hidden_state: torch.Tensor
    hidden_state: torch.Tensor


class SpeculatorsRecord(TypedDict):
    """A ``.safetensors`` file.

    ``hidden_states`` [tokens, auxiliary + 1, hidden], the last of them before the final norm;
    ``token_ids`` int64 [tokens].
    """

    hidden_states: torch.Tensor
    token_ids: torch.Tensor


def specforge_layers(
    stored: Sequence[Layer], wanted: Sequence[Layer] | None, *, place: str
) -> DraftLayers:
    """The layers of a store that SpecForge's EAGLE-3 takes; MalformedInput where it has others."""
    return SpecForgeView(DraftLayers.of(stored, wanted, FINAL, place=place)).layers


def speculators_layers(
    stored: Sequence[Layer], wanted: Sequence[Layer] | None, *, place: str
) -> DraftLayers:
    """The layers of a store that speculators takes; MalformedInput where it has others."""
    return DraftLayers.of(stored, wanted, FINAL_PRE, place=place)


def specforge_record(item: Item, layers: DraftLayers) -> SpecForgeRecord:
    """What SpecForge would have on disk of a sample; states are views of the item's where they can.

    Nothing is shifted or cut, and the mask is whole: its reader sees to all of that.
    """
    states = item["hidden_states"]
    return SpecForgeRecord(
        input_ids=item["input_ids"],
        loss_mask=item["loss_mask"].long(),
        aux_hidden_state=side_by_side(states, layers.auxiliary)[None],
        hidden_state=states[None, :, layers.last],
    )


def speculators_record(item: Item, layers: DraftLayers) -> SpeculatorsRecord:
    """What speculators would have on disk of a sample; states are views where they can be."""
    chosen = (*layers.auxiliary, layers.last)
    return SpeculatorsRecord(
        hidden_states=take(item["hidden_states"], chosen), token_ids=item["input_ids"]
    )
