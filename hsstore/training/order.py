"""The order of an epoch: shards shuffled, and samples shuffled within a window of shards.

All samples of a window come before any of the next, so that an epoch goes over the disk once, with
only the shards of one window open. Within it every order is equally likely. A window of all shards
is a plain shuffle; with one shard the samples of a shard stay together.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hsstore.training.epochs import EpochSampler, Replaced, Samples
from hsstore.views.options import whole_number

WINDOW = 64
"""Shards in a window, as many as a reader keeps open with room to spare."""


class WindowShuffle(EpochSampler[int]):
    """A DataLoader's ``sampler``: every sample once an epoch, over all ranks together.

    Ranks take turns, so that one may have a sample more than another; none is repeated or dropped.
    """

    def __init__(
        self,
        samples: Samples,
        *,
        window: int = WINDOW,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        replaced: Replaced = "raise",
    ) -> None:
        """Shuffle the samples of a dataset; ``window`` counts shards.

        ``replaced`` says whether ``load_state_dict`` takes a store in which shards were replaced
        since. Raises ValueError for values out of range.
        """
        self._windows = Windows(samples.shards, window, seed)
        super().__init__(
            samples, options=self._windows.options, rank=rank, world=world, replaced=replaced
        )

    def _turns(self, epoch: int) -> Sequence[int]:
        order, _ = self._windows.order(epoch)
        # Its elements are Python's own integers, made one by one.
        return order[self._rank :: self.world].copy().data


class Windows:
    """Orders of samples, each fixed by a seed and the number of an epoch.

    Attributes:
        options: the window and the seed, by name.

    """

    def __init__(self, shards: NDArray[np.int64], window: int, seed: int) -> None:
        """``shards`` int64 [samples] says where each lies; ``window`` counts shards.

        Raises ValueError for a window below 1 and a seed below 0.
        """
        window, self._seed = whole_number("window", window, 1), whole_number("seed", seed, 0)
        self.options = {"window": window, "seed": self._seed}
        present, self._place = np.unique(shards, return_inverse=True)
        self._shards = len(present)
        self._windows = -(-self._shards // window)

    def order(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The samples of an epoch in order, and the number of each one's window: int64 [samples].

        Shards are dealt to as few windows as there must be, whose sizes differ by one at most.
        """
        random = Random(self._seed, epoch)
        turn_of_shard = np.empty(self._shards, np.int64)
        turn_of_shard[random.permutation(self._shards)] = np.arange(self._shards)
        window = (turn_of_shard * self._windows // max(self._shards, 1))[self._place]
        order = random.shuffled_within(window)
        return order, window[order]


class Random:
    """Permutations that are the same under every release of numpy.

    numpy promises that of what a bit generator yields, and not of what is made from it: NEP 19.
    Sorting draws of 64 bits needs no more than that.
    """

    def __init__(self, seed: int, *stream: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence([seed, *stream]))

    def permutation(self, count: int) -> NDArray[np.int64]:
        """All of ``range(count)``, int64, in random order."""
        return np.argsort(self._draws(count), kind="stable")

    def shuffled_within(self, group: NDArray[np.int64]) -> NDArray[np.int64]:
        """All indexes of ``group`` [count], lower groups first, in random order within each."""
        return np.lexsort((self._draws(len(group)), group))

    def _draws(self, count: int) -> NDArray[np.uint64]:
        return np.asarray(self._bits.random_raw(count), np.uint64)
