"""A sample as speculators' trainers get it from their own files.

Source: speculators 0.9.0, ``speculators/train/data.py``, ``ArrowDataset.__getitem__`` over a folder
that its ``data_generation/preprocessing.py`` wrote, which is where the mask's dtype comes from.
"""

from dataclasses import dataclass
from typing import TypedDict

import torch

from hsstore.views.cast import cast
from hsstore.views.eagle3 import DraftLayers
from hsstore.views.item import Item
from hsstore.views.layers import side_by_side


class SpeculatorsItem(TypedDict):
    """One sample, before the shift of the trainer's preprocessing.

    ``hidden_states`` [tokens, auxiliary * hidden]; ``input_ids`` int64 [tokens];
    ``verifier_last_hidden_states`` [tokens, hidden], the last state before the final norm;
    ``loss_mask`` int64 [tokens] of 0 and 1; ``lengths`` int64 [1]; ``position_ids`` int64 [tokens],
    from 0.
    """

    hidden_states: torch.Tensor
    input_ids: torch.Tensor
    verifier_last_hidden_states: torch.Tensor
    loss_mask: torch.Tensor
    lengths: torch.Tensor
    position_ids: torch.Tensor


@dataclass(frozen=True, slots=True)
class SpeculatorsView:
    """speculators' item of an item with a store's layers.

    ``verifier_last_hidden_states`` is always, and ``hidden_states`` where the auxiliary layers are
    stored next to each other in ascending order, a view of the memory that was read; otherwise, and
    where they are cast, they are copies. speculators' own collate casts to the trainer's dtype.
    """

    layers: DraftLayers
    dtype: torch.dtype | None = None

    def __call__(self, item: Item) -> SpeculatorsItem:
        """The same sample; MalformedInput as for ``cast``."""
        states, key, tokens = item["hidden_states"], item["id"], len(item["input_ids"])
        return SpeculatorsItem(
            hidden_states=cast(side_by_side(states, self.layers.auxiliary), self.dtype, key),
            input_ids=item["input_ids"],
            verifier_last_hidden_states=cast(states[:, self.layers.last], self.dtype, key),
            loss_mask=item["loss_mask"].long(),
            lengths=torch.tensor([tokens]),
            position_ids=torch.arange(tokens),
        )
