"""Batches of so many tokens, from lengths that are known without reading payload."""

import logging
from collections.abc import Sequence
from typing import overload

import numpy as np

from hsstore.training.epochs import EpochSampler, Replaced, Samples
from hsstore.training.order import WINDOW, Random, Windows
from hsstore.training.packing import Batches, Shape, cut, evened
from hsstore.views.options import one_of, whole_number

_log = logging.getLogger(__name__)
_CUTTING = 1  # a stream of random numbers apart from the order's


class TokenBatches(EpochSampler[list[int]]):
    """A DataLoader's ``batch_sampler``: every sample once an epoch, over all ranks together.

    The order is that of ``WindowShuffle``, cut into batches window by window. All ranks cut the
    same batches and take turns in them. As many of the last batches are halved as it takes to give
    every rank the same number; only where all batches are of one sample, a rank may have one more
    than another, which is logged.
    """

    def __init__(  # noqa: PLR0913 - each is an option of its own
        self,
        samples: Samples,
        max_tokens: int,
        *,
        max_samples: int | None = None,
        shape: Shape = "packed",
        window: int = WINDOW,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        replaced: Replaced = "raise",
    ) -> None:
        """Batches of at most ``max_tokens`` tokens and ``max_samples`` samples.

        ``shape`` says what a batch costs: the tokens of its samples, or those of its samples padded
        to the longest. ``window``, ``seed`` and ``replaced`` are those of ``WindowShuffle``. Raises
        ValueError for values out of range, and where a sample is longer than a batch.
        """
        one_of("shape", shape, ("packed", "padded"))
        max_tokens = whole_number("max_tokens", max_tokens, 1)
        if max_samples is not None:
            max_samples = whole_number("max_samples", max_samples, 1)
        _refuse_longer(samples, max_tokens)
        self._limits = max_tokens, max_samples or len(samples.lengths)
        self._windows = Windows(samples.shards, window, seed)
        options = {"max_tokens": max_tokens, "max_samples": max_samples, "shape": shape,
                   **self._windows.options}  # fmt: skip
        super().__init__(samples, options=options, rank=rank, world=world, replaced=replaced)
        self._shape, self._seed = shape, self._windows.options["seed"]
        self._cut: tuple[int, Batches] | None = None

    @property
    def fill(self) -> float:
        """The share of all ranks' batches that are tokens, had each ``max_tokens``: 0 to 1."""
        tokens = int(self._samples.lengths.sum(dtype=np.int64))
        room = len(self._batches(self.epoch)) * self._limits[0]
        return tokens / room if room else 1.0

    def _batches(self, epoch: int) -> Batches:
        """The batches of all ranks in an epoch; those of the last epoch asked for are kept."""
        if self._cut is None or self._cut[0] != epoch:
            self._cut = epoch, self._cut_epoch(epoch)
        return self._cut[1]

    def _cut_epoch(self, epoch: int) -> Batches:
        order, window = self._windows.order(epoch)
        random = Random(self._seed, epoch, _CUTTING)
        lengths = self._samples.lengths
        batches = evened(cut(order, window, lengths, self._limits, self._shape, random), self.world)
        if left := len(batches) % self.world:
            _log.warning(
                "epoch %d: %d of %d ranks have a batch more than the others, since every batch "
                "is one sample", epoch, left, self.world,
            )  # fmt: skip
        return batches

    def _turns(self, epoch: int) -> Sequence[list[int]]:
        return _Share(self._batches(epoch), self._rank, self.world)


class _Share(Sequence[list[int]]):
    """Every ``world``-th batch, from ``rank`` on."""

    def __init__(self, batches: Batches, rank: int, world: int) -> None:
        self._batches = batches
        self._turns = range(rank, len(batches), world)

    def __len__(self) -> int:
        return len(self._turns)

    @overload
    def __getitem__(self, turn: int) -> list[int]: ...
    @overload
    def __getitem__(self, turn: slice) -> list[list[int]]: ...
    def __getitem__(self, turn: int | slice) -> list[int] | list[list[int]]:
        if isinstance(turn, slice):
            return [self._batches.of(batch) for batch in self._turns[turn]]
        return self._batches.of(self._turns[turn])


def _refuse_longer(samples: Samples, max_tokens: int) -> None:
    longer = np.flatnonzero(samples.lengths > max_tokens)
    if len(longer):
        longest = int(samples.lengths[longer].max())
        raise ValueError(
            f"{len(longer)} samples are longer than a batch of {max_tokens} tokens, first: sample "
            f"{longer[0]}; allow {longest} tokens, or leave these samples out of the dataset"
        )
