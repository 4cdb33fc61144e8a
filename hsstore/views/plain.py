"""Items with some of the layers, in one tensor or each apart."""

from dataclasses import dataclass
from typing import TypedDict

import torch

from hsstore.model.capture import Layer
from hsstore.views.cast import cast
from hsstore.views.item import Item
from hsstore.views.layers import Positions, apart, take


class LayerItem(TypedDict):
    """An item whose ``hidden_states`` are [tokens, hidden] by layer, in the order asked for."""

    id: str
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    hidden_states: dict[Layer, torch.Tensor]


@dataclass(frozen=True, slots=True)
class RawView:
    """The item itself; its states reduced to ``chosen`` layers (None: all) and cast.

    What is a view of the memory that was read and what is a copy is said at ``layers.take``; a
    cast copies.
    """

    chosen: Positions | None = None
    dtype: torch.dtype | None = None

    def __call__(self, item: Item) -> Item:
        """The same sample; MalformedInput as for ``cast``."""
        states = item["hidden_states"]
        if self.chosen is not None:
            states = take(states, self.chosen)
        states = cast(states, self.dtype, item["id"])
        return Item(
            id=item["id"],
            input_ids=item["input_ids"],
            loss_mask=item["loss_mask"],
            hidden_states=states,
        )


@dataclass(frozen=True, slots=True)
class ByLayerView:
    """Each layer apart, in any choice and order: views of what was read; a cast copies."""

    layers: tuple[Layer, ...]
    chosen: Positions
    dtype: torch.dtype | None = None

    def __call__(self, item: Item) -> LayerItem:
        """The same sample; MalformedInput as for ``cast``."""
        rows = apart(item["hidden_states"], self.chosen)
        states = (cast(layer, self.dtype, item["id"]) for layer in rows)
        return LayerItem(
            id=item["id"],
            input_ids=item["input_ids"],
            loss_mask=item["loss_mask"],
            hidden_states=dict(zip(self.layers, states, strict=True)),
        )
