"""One sample as it is read from a store: where every view begins."""

from typing import TypedDict

import torch


class Item(TypedDict):
    """One sample.

    ``input_ids`` int64 [tokens], ``loss_mask`` bool [tokens], ``hidden_states`` [tokens, layers,
    hidden] in the stored dtype. Row t of all three belongs to token t; nothing is shifted.
    """

    id: str
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    hidden_states: torch.Tensor
