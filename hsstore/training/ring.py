"""Memory for batches that is used again and again: a ring of slots."""

import os
from dataclasses import dataclass, fields
from typing import Self

import torch
from torch.utils.data import get_worker_info

from hsstore.errors import OutOfSpace
from hsstore.training.dataset import HiddenStateDataset

SHARED_MEMORY = "/dev/shm"  # noqa: S108 - where Linux keeps what torch shares with workers


@dataclass(frozen=True, eq=False)
class Slot:
    """Memory for one batch of up to R tokens.

    ``input_ids``, ``position_ids`` and ``document_ids`` int64 [R]; ``loss_mask`` and
    ``attention_mask`` bool [R]; ``lengths`` int64 [R]; ``cumulative_lengths`` int32 [R + 1];
    ``hidden_states`` [R, layers, hidden] in the stored dtype.
    """

    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    attention_mask: torch.Tensor
    document_ids: torch.Tensor
    position_ids: torch.Tensor
    lengths: torch.Tensor
    cumulative_lengths: torch.Tensor
    hidden_states: torch.Tensor

    @classmethod
    def of(cls, dataset: HiddenStateDataset, tokens: int) -> Self:
        """A slot for so many tokens of a dataset's samples."""
        return cls(
            input_ids=torch.empty(tokens, dtype=torch.int64),
            loss_mask=torch.empty(tokens, dtype=torch.bool),
            attention_mask=torch.empty(tokens, dtype=torch.bool),
            document_ids=torch.empty(tokens, dtype=torch.int64),
            position_ids=torch.empty(tokens, dtype=torch.int64),
            lengths=torch.empty(tokens, dtype=torch.int64),
            cumulative_lengths=torch.empty(tokens + 1, dtype=torch.int32),
            hidden_states=dataset.memory(tokens),
        )

    def tensors(self) -> dict[str, torch.Tensor]:
        """All of its memory, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def pinned(self) -> Self:
        """The same in memory that CUDA copies from by itself."""
        return type(self)(**{name: each.pin_memory() for name, each in self.tensors().items()})

    def shared(self, slots: int) -> Self:
        """The same in memory that other processes see; OutOfSpace if it has no room for ``slots``.

        Without that check the first write into memory that is not there would end the process.
        """
        needed = slots * sum(each.nbytes for each in self.tensors().values())
        room = os.statvfs(SHARED_MEMORY)
        free = room.f_bavail * room.f_frsize
        if needed > free:
            raise OutOfSpace(
                f"a worker's batches take {needed} bytes of shared memory, and {free} are left",
                place=SHARED_MEMORY,
                remedy="mount it larger (docker: --shm-size), or use smaller batches, fewer "
                "workers or a lower prefetch_factor",
            )
        for each in self.tensors().values():
            each.share_memory_()  # type: ignore[no-untyped-call]
        return self


class Ring:
    """Slots that are handed out in turn: the one that was taken longest ago.

    In a DataLoader's worker they are shared memory, so that a batch goes to the training process
    without a copy. Elsewhere, where there is CUDA, they are pinned; a slot is then not handed out
    again before that work has ended which was queued, by the time the next one was asked for, on
    the stream that was current then. So copies with ``non_blocking=True`` read what they should.
    """

    def __init__(self, dataset: HiddenStateDataset, tokens: int, slots: int) -> None:
        in_worker = get_worker_info() is not None
        self._pinned = not in_worker and torch.cuda.is_available()
        self._slots: list[Slot] = []
        for made in range(slots):
            slot = Slot.of(dataset, tokens)
            if in_worker:
                slot = slot.shared(slots - made)
            self._slots.append(slot.pinned() if self._pinned else slot)
        self._copied: dict[int, torch.cuda.Event] = {}
        self._turn = -1

    def take(self) -> Slot:
        """The next slot."""
        last, self._turn = self._turn, (self._turn + 1) % len(self._slots)
        if self._pinned and last >= 0:
            if last not in self._copied:
                self._copied[last] = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied[last].record(torch.cuda.current_stream())
        if self._turn in self._copied:
            self._copied[self._turn].synchronize()
        return self._slots[self._turn]
