"""A sample as SpecForge's EAGLE-3 trainer gets it from its own files.

Source: SpecForge 0.2.0, ``specforge/algorithms/eagle3/data.py``, ``normalize_offline_sample``: what
its collator is given for a sample of its ``.ckpt`` files.
"""

from dataclasses import dataclass
from typing import TypedDict

import torch

from hsstore.errors import MalformedInput
from hsstore.views.cast import cast
from hsstore.views.eagle3 import DraftLayers
from hsstore.views.item import Item
from hsstore.views.layers import side_by_side

AUXILIARY = 3


class SpecForgeItem(TypedDict):
    """One sample, with a leading dimension of 1.

    ``attention_mask``, ``loss_mask`` and ``input_ids`` int64 [1, tokens]; ``target`` [1, tokens,
    hidden], the last state after the final norm; ``hidden_state`` [1, tokens, 3 * hidden], the
    auxiliary layers. Nothing is shifted: SpecForge's strategy does that.
    """

    attention_mask: torch.Tensor
    loss_mask: torch.Tensor
    target: torch.Tensor
    hidden_state: torch.Tensor
    input_ids: torch.Tensor


@dataclass(frozen=True, slots=True)
class SpecForgeView:
    """SpecForge's item of an item with a store's layers.

    ``target`` is always, and ``hidden_state`` where the auxiliary layers are stored next to each
    other in ascending order, a view of the memory that was read; otherwise, and where they are
    cast, they are copies. SpecForge casts nothing: ``dtype`` must be its model's.
    """

    layers: DraftLayers
    dtype: torch.dtype | None = None

    def __post_init__(self) -> None:
        found = len(self.layers.auxiliary)
        if found != AUXILIARY:
            raise MalformedInput(
                f"SpecForge's EAGLE-3 model takes {AUXILIARY} auxiliary layers, not {found}",
                remedy="name them with layers=, the last state behind them",
            )

    def __call__(self, item: Item) -> SpecForgeItem:
        """The same sample; MalformedInput as for ``cast``."""
        states, key = item["hidden_states"], item["id"]
        mask = item["loss_mask"].long()  # a copy, which may be written to
        mask[-1] = 0
        return SpecForgeItem(
            attention_mask=torch.ones_like(mask)[None],
            loss_mask=mask[None],
            target=cast(states[:, self.layers.last], self.dtype, key)[None],
            hidden_state=cast(side_by_side(states, self.layers.auxiliary), self.dtype, key)[None],
            input_ids=item["input_ids"][None],
        )
