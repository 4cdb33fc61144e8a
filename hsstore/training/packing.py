"""Cutting an order of samples into batches of so many tokens: multipack.

Samples of one window are dealt, as the shuffle has them, to groups of a few thousand. In each, a
batch begins with the longest sample that is left and takes the longest that still fits, until none
does: best-fit decreasing, see Johnson, "Near-optimal bin packing algorithms" (MIT, 1973). Groups
keep that fast, and keep the batches of a large window from always pairing the same lengths.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hsstore.training.order import Random

GROUP = 4096

Shape = Literal["packed", "padded"]
Cut = Callable[[list[int], int, int], Iterator[list[int]]]


@dataclass(frozen=True, eq=False)
class Batches:
    """Batch k holds ``order[ends[k - 1] : ends[k]]``: int64 [samples] and int64 [batches]."""

    order: NDArray[np.int64]
    ends: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ends)

    def sizes(self) -> NDArray[np.int64]:
        """Samples of every batch, int64 [batches]."""
        return np.diff(self.ends, prepend=0)

    def of(self, batch: int) -> list[int]:
        """The samples of one batch."""
        first = int(self.ends[batch - 1]) if batch else 0
        chosen: list[int] = self.order[first : self.ends[batch]].tolist()
        return chosen


def cut(
    order: NDArray[np.int64],
    window: NDArray[np.int64],
    lengths: NDArray[np.int32],
    limits: tuple[int, int],
    shape: Shape,
    random: Random,
) -> Batches:
    """Batches of at most ``limits`` tokens and samples, none of them from two windows.

    ``order`` and ``window`` are int64 [samples], as ``Windows.order`` has them; ``lengths`` is
    indexed by sample. ``"packed"`` counts the samples' tokens, ``"padded"`` those of as many
    samples as long as the longest. Batches of a window come in random order; within one, samples
    come in the dataset's, which is the disk's.
    """
    cutter, (max_tokens, max_samples) = _CUTTERS[shape], limits
    members: list[int] = []
    sizes: list[int] = []
    windows: list[int] = []
    for start, stop in _groups(window):
        for batch in cutter(_keys(lengths[order[start:stop]]), max_tokens, max_samples):
            members.extend(start + key % GROUP for key in batch)
            sizes.append(len(batch))
            windows.append(int(window[start]))
    turn = np.empty(len(sizes), np.int64)
    turn[random.shuffled_within(np.array(windows, np.int64))] = np.arange(len(sizes))
    samples, turns = order[np.array(members, np.int64)], np.repeat(turn, sizes)
    in_turn = np.array(sizes, np.int64)[np.argsort(turn)]
    return Batches(samples[np.lexsort((samples, turns))], np.cumsum(in_turn))


def evened(batches: Batches, world: int) -> Batches:
    """The same samples in a number of batches that ``world`` ranks can share evenly.

    The last batches of several samples are halved for it; where all are of one, they stay uneven.
    """
    order, ends = batches.order, batches.ends
    while lacking := -len(ends) % world:
        sizes = np.diff(ends, prepend=0)
        halved = np.flatnonzero(sizes > 1)[-lacking:]
        if not len(halved):
            break
        ends = np.sort(np.concatenate([ends, ends[halved] - sizes[halved] // 2]))
    return Batches(order, ends)


def _groups(window: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """Start and stop of every group: the runs of equal windows, in pieces that differ little."""
    edges = [0, *(np.flatnonzero(np.diff(window)) + 1).tolist(), len(window)]
    for first, last in pairwise(edges):
        pieces = -(-(last - first) // GROUP)
        bounds = [first + (last - first) * k // pieces for k in range(pieces + 1)] if pieces else []
        yield from pairwise(bounds)


def _keys(lengths: NDArray[np.int32]) -> list[int]:
    """``length * GROUP + place`` in the group, ascending: a list to find the longest that fits."""
    keys: list[int] = np.sort(lengths * np.int64(GROUP) + np.arange(len(lengths))).tolist()
    return keys


def _packed(keys: list[int], max_tokens: int, max_samples: int) -> Iterator[list[int]]:
    while keys:
        batch: list[int] = []
        room = max_tokens
        while len(batch) < max_samples and (at := bisect_right(keys, room * GROUP + GROUP - 1)):
            key = keys.pop(at - 1)
            room -= key // GROUP
            batch.append(key)
        yield batch


def _padded(keys: list[int], max_tokens: int, max_samples: int) -> Iterator[list[int]]:
    while keys:
        size = min(max_tokens // (keys[-1] // GROUP), max_samples)
        yield keys[-size:]
        del keys[-size:]


_CUTTERS: dict[Shape, Cut] = {"packed": _packed, "padded": _padded}
