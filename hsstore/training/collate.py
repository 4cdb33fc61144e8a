"""Items to a batch: padded into a rectangle, or packed end to end into one row."""

from collections.abc import Mapping, Sequence
from typing import TypedDict, final

import torch

from hsstore.errors import MalformedInput
from hsstore.views.item import Item

PADDING = -1
"""The document id of a position that belongs to no sample."""


@final
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


@final
class PackedBatch(TypedDict):
    """B samples end to end in M positions; behind the last one padding, where M is more.

    ``input_ids`` int64 and ``loss_mask`` bool [1, M]; ``document_ids`` int64 [1, M], the number in
    the batch of the sample that a position belongs to, -1 for padding; ``position_ids`` int64
    [1, M], which count from 0 in every sample; ``lengths`` int64 [B]; ``cumulative_lengths`` int32
    [B + 1], from 0 to the tokens of all, as kernels for attention over sequences of various lengths
    take them; ``hidden_states`` [1, M, layers, hidden] in the stored dtype. Padding is 0 but for
    its document id. Document and position ids are those of speculators' collate (release 0.9.0).
    """

    id: list[str]
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    document_ids: torch.Tensor
    position_ids: torch.Tensor
    lengths: torch.Tensor
    cumulative_lengths: torch.Tensor
    hidden_states: torch.Tensor


def pad_collate(items: Sequence[Item]) -> Batch:
    """A DataLoader's ``collate_fn``.

    ValueError for an empty list, MalformedInput for items of another view than ``"raw"``.
    """
    lengths = _lengths(items)
    longest = int(lengths.max())
    return Batch(
        id=[item["id"] for item in items],
        input_ids=_padded([item["input_ids"] for item in items], longest),
        loss_mask=_padded([item["loss_mask"] for item in items], longest),
        attention_mask=torch.arange(longest) < lengths[:, None],
        lengths=lengths,
        hidden_states=_padded([item["hidden_states"] for item in items], longest),
    )


def pack_collate(items: Sequence[Item], max_tokens: int | None = None) -> PackedBatch:
    """A DataLoader's ``collate_fn``, with ``functools.partial`` for a fixed number of positions.

    ``max_tokens`` pads to so many; without, the samples fill the row exactly. ValueError for an
    empty list, and for more tokens than that; MalformedInput as for ``pad_collate``.
    """
    lengths = _lengths(items)
    tokens = int(lengths.sum())
    width = tokens if max_tokens is None else max_tokens
    if tokens > width:
        raise ValueError(f"{len(items)} samples of {tokens} tokens for a batch of {width}")
    numbers = torch.arange(len(items)).repeat_interleave(lengths)
    positions = torch.cat([torch.arange(int(length)) for length in lengths])
    return PackedBatch(
        id=[item["id"] for item in items],
        input_ids=_packed([item["input_ids"] for item in items], width),
        loss_mask=_packed([item["loss_mask"] for item in items], width),
        document_ids=_packed([numbers], width, padding=PADDING),
        position_ids=_packed([positions], width),
        lengths=lengths,
        cumulative_lengths=torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).int(),
        hidden_states=_packed([item["hidden_states"] for item in items], width),
    )


def _lengths(items: Sequence[Item]) -> torch.Tensor:
    if not items:
        raise ValueError("no items to make a batch of")
    if not all(map(_is_raw, items)):
        raise MalformedInput(
            "only items of the view raw can be padded or packed; these are of another view",
            remedy='open the dataset with view="raw", or give the trainer\'s own collate_fn',
        )
    return torch.tensor([len(item["input_ids"]) for item in items])


def _is_raw(item: object) -> bool:
    """Whether an item is an Item, as far as its members tell."""
    members = item if isinstance(item, Mapping) else {}
    states, mask = members.get("hidden_states"), members.get("loss_mask")
    return "id" in members and isinstance(states, torch.Tensor) and isinstance(mask, torch.Tensor)


def _padded(rows: list[torch.Tensor], longest: int) -> torch.Tensor:
    """[B, longest, ..] with zeros behind each of ``rows`` [tokens, ..]."""
    batch = rows[0].new_empty((len(rows), longest, *rows[0].shape[1:]))
    for place, values in zip(batch, rows, strict=True):
        place[: len(values)] = values
        place[len(values) :] = 0
    return batch


def _packed(rows: list[torch.Tensor], width: int, padding: int = 0) -> torch.Tensor:
    """[1, width, ..]: ``rows`` [tokens, ..] end to end, and ``padding`` behind them."""
    batch = rows[0].new_empty((width, *rows[0].shape[1:]))
    tokens = sum(map(len, rows))
    torch.cat(rows, out=batch[:tokens])
    batch[tokens:] = padding
    return batch[None]
