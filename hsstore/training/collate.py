"""Items to a batch: padded with zeros on the right, with a mask that says where."""

from collections.abc import Sequence
from typing import TypedDict

import torch

from hsstore.views.item import Item


class Batch(TypedDict):
    """B samples padded to N tokens.

    ``input_ids`` int64, ``loss_mask`` and ``attention_mask`` bool, all [B, N]; ``lengths`` int64
    [B]; ``hidden_states`` [B, N, layers, hidden] in the stored dtype. Row t belongs to token t.
    """

    id: list[str]
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    attention_mask: torch.Tensor
    lengths: torch.Tensor
    hidden_states: torch.Tensor


def pad_collate(items: Sequence[Item]) -> Batch:
    """A DataLoader's ``collate_fn``; ValueError for an empty list."""
    if not items:
        raise ValueError("no items to make a batch of")
    lengths = torch.tensor([len(item["input_ids"]) for item in items])
    longest = int(lengths.max())
    return Batch(
        id=[item["id"] for item in items],
        input_ids=_padded([item["input_ids"] for item in items], longest),
        loss_mask=_padded([item["loss_mask"] for item in items], longest),
        attention_mask=torch.arange(longest) < lengths[:, None],
        lengths=lengths,
        hidden_states=_padded([item["hidden_states"] for item in items], longest),
    )


def _padded(rows: list[torch.Tensor], longest: int) -> torch.Tensor:
    """[B, longest, ..] with zeros behind each of ``rows`` [tokens, ..]."""
    batch = rows[0].new_empty((len(rows), longest, *rows[0].shape[1:]))
    for place, values in zip(batch, rows, strict=True):
        place[: len(values)] = values
        place[len(values) :] = 0
    return batch
