"""Whole batches read from a store into memory that is used again, with no copy on the way.

Each sample is one read, straight to its place in the batch. ``pad_collate`` and ``pack_collate``
make the same batches in memory that is allocated anew for every sample and every batch.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch.utils.data import Dataset, get_worker_info

from hsstore.errors import SampleDamaged, StorageFailed
from hsstore.training.collate import PADDING, Batch, PackedBatch
from hsstore.training.dataset import HiddenStateDataset
from hsstore.training.ring import Ring, Slot
from hsstore.views.options import whole_number

B = TypeVar("B", Batch, PackedBatch)


class _BufferedBatches(Dataset[B], ABC):
    """What both kinds of batches share."""

    def __init__(
        self, dataset: HiddenStateDataset, max_tokens: int, *, prefetch_factor: int = 2,
        held: int = 1,
    ) -> None:  # fmt: skip
        """Read batches of at most ``max_tokens`` positions.

        ``prefetch_factor`` is that of the DataLoader, if it has workers; ``held`` is how many
        batches the loop uses at a time. A batch is overwritten once ``held`` others were asked for.
        Raises ValueError for values below 1.
        """
        self._dataset, self._max_tokens = dataset, whole_number("max_tokens", max_tokens, 1)
        self._prefetch_factor = whole_number("prefetch_factor", prefetch_factor, 1)
        self._held = whole_number("held", held, 1)
        self._opened: _Opened | None = None

    def __getitem__(self, indices: Sequence[int]) -> B:
        """The batch of these samples, in this order.

        A DataLoader asks for it with ``batch_size=None``. What the dataset's ``on_damage`` skips is
        not among them. Raises ValueError where they do not fit or are none, and what reading a
        sample raises.
        """
        widths = self._widths(indices)
        if not widths:
            raise ValueError("no items to make a batch of")
        positions = self._positions(widths)
        if positions > self._max_tokens:
            raise ValueError(f"a batch of {positions} tokens for memory of {self._max_tokens}")
        opened, rest = self._process(), list(indices)
        slot = opened.ring.take()
        while rest:
            try:
                return self._read(slot, rest, self._widths(rest), opened.counting)
            except _LeftOutError as left_out:
                rest = [index for index in rest if index != left_out.index]
        raise self._dataset.nothing_left(len(indices))

    def __getitems__(self, indices: Sequence[int]) -> B:
        """The same, as a DataLoader with a ``batch_sampler`` asks for it."""
        return self[indices]

    def _widths(self, indices: Sequence[int]) -> list[int]:
        return [int(self._dataset.lengths[index]) for index in indices]

    @abstractmethod
    def _positions(self, widths: Sequence[int]) -> int:
        """How many positions samples of these lengths take."""

    @abstractmethod
    def _read(
        self, slot: Slot, indices: Sequence[int], widths: Sequence[int], counting: torch.Tensor
    ) -> B:
        """Read the batch into a slot; ``counting`` is int64 [max_tokens], 0, 1, 2 .."""

    def _process(self) -> "_Opened":
        """The memory of this process; a forked child has its own."""
        if self._opened is None or self._opened.pid != os.getpid():
            # Batches on their way to the loop are nobody's but the loader's.
            underway = 0 if get_worker_info() is None else self._prefetch_factor
            self._opened = _Opened(self._dataset, self._max_tokens, self._held + 1 + underway)
        return self._opened

    def _place(self, slot: Slot, index: int, first: int, width: int) -> str:
        """Read one sample to positions ``first`` and on, and return its id."""
        rows = slice(first, first + width)
        memory = slot.hidden_states[rows], slot.input_ids[rows], slot.loss_mask[rows]
        try:
            return self._dataset.fill(index, *memory)
        except (SampleDamaged, StorageFailed) as error:
            self._dataset.leave_out(index, error)
            raise _LeftOutError(index) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


class BufferedPadded(_BufferedBatches[Batch]):
    """The batches of ``pad_collate``; ``max_tokens`` bounds B x N."""

    def _positions(self, widths: Sequence[int]) -> int:
        return len(widths) * max(widths)

    def _read(
        self, slot: Slot, indices: Sequence[int], widths: Sequence[int], counting: torch.Tensor
    ) -> Batch:
        del counting
        keys, longest = [], max(widths)
        for row, (index, width) in enumerate(zip(indices, widths, strict=True)):
            first, end = row * longest, row * longest + width
            keys.append(self._place(slot, index, first, width))
            _clear(slot, end, first + longest)
            slot.attention_mask[first:end].fill_(value=True)
            slot.attention_mask[end : first + longest].zero_()
            slot.lengths[row].fill_(width)
        shape = len(widths), longest
        return Batch(
            id=keys,
            input_ids=_as(slot.input_ids, shape),
            loss_mask=_as(slot.loss_mask, shape),
            attention_mask=_as(slot.attention_mask, shape),
            lengths=slot.lengths[: len(widths)],
            hidden_states=_as(slot.hidden_states, shape),
        )


class BufferedPacked(_BufferedBatches[PackedBatch]):
    """The batches of ``pack_collate``: [1, max_tokens], or, ``exact``, without padding."""

    def __init__(
        self, dataset: HiddenStateDataset, max_tokens: int, *, exact: bool = False,
        prefetch_factor: int = 2, held: int = 1,
    ) -> None:  # fmt: skip
        """Read batches of at most ``max_tokens`` tokens; the rest is as for padded ones."""
        super().__init__(dataset, max_tokens, prefetch_factor=prefetch_factor, held=held)
        self._exact = exact

    def _positions(self, widths: Sequence[int]) -> int:
        return sum(widths)

    def _read(
        self, slot: Slot, indices: Sequence[int], widths: Sequence[int], counting: torch.Tensor
    ) -> PackedBatch:
        keys = []
        slot.cumulative_lengths[0].zero_()
        for number, (first, width) in enumerate(_end_to_end(widths)):
            keys.append(self._place(slot, indices[number], first, width))
            slot.document_ids[first : first + width].fill_(number)
            slot.position_ids[first : first + width].copy_(counting[:width])
            slot.lengths[number].fill_(width)
            slot.cumulative_lengths[number + 1].fill_(first + width)
        tokens = sum(widths)
        positions = tokens if self._exact else self._max_tokens
        _clear(slot, tokens, positions)
        slot.document_ids[tokens:positions].fill_(PADDING)
        slot.position_ids[tokens:positions].zero_()
        shape = 1, positions
        return PackedBatch(
            id=keys,
            input_ids=_as(slot.input_ids, shape),
            loss_mask=_as(slot.loss_mask, shape),
            document_ids=_as(slot.document_ids, shape),
            position_ids=_as(slot.position_ids, shape),
            lengths=slot.lengths[: len(widths)],
            cumulative_lengths=slot.cumulative_lengths[: len(widths) + 1],
            hidden_states=_as(slot.hidden_states, shape),
        )


class _LeftOutError(Exception):
    """The batch is to be laid out again without a sample that is skipped."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


class _Opened:
    """The memory of one process."""

    def __init__(self, dataset: HiddenStateDataset, tokens: int, slots: int) -> None:
        self.pid = os.getpid()
        self.ring = Ring(dataset, tokens, slots)
        self.counting = torch.arange(tokens)


def as_read(batch: B) -> B:
    """The ``collate_fn`` of a DataLoader with a ``batch_sampler``: what is read is a batch."""
    return batch


def _end_to_end(widths: Sequence[int]) -> Iterator[tuple[int, int]]:
    """The first position and the width of each."""
    first = 0
    for width in widths:
        yield first, width
        first += width


def _clear(slot: Slot, first: int, stop: int) -> None:
    """Zeros where no sample is."""
    for memory in (slot.hidden_states, slot.input_ids, slot.loss_mask):
        memory[first:stop].zero_()


def _as(memory: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """The first rows of [R, ..] as [*shape, ..]."""
    rows, columns = shape
    return memory[: rows * columns].view(rows, columns, *memory.shape[1:])
