"""How sequential the reads of a windowed shuffle are, and how random its order is.

``python benchmarks/order.py [--shards N] [--per-shard N]``. No store is read: an order is made of
lengths and shards alone. Each figure of randomness is a ratio to a plain shuffle of all samples:
1.00 is as good. The made-up corpus has the trouble that a shuffle is to mend: it comes source by
source, as datasets that were put together from others do.
"""

import argparse
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hsstore.training.order import WindowShuffle
from hsstore.training.token_batches import TokenBatches

SHARDS, PER_SHARD = 1000, 35  # 2 GiB of 1000 tokens of 4 x 7168 in bfloat16
SOURCES = 10
BATCH = 256
MAX_TOKENS = 8192
WINDOWS = (1, 4, 16, 64, 256)
EPOCHS = 4

HEAD = """\
       |            how sequential               | how random: plain shuffle = 1.00 |  filled
       |   shards    a shard  shards to the next |  spread of   shards      pairs   |  batches
window |  at once  read over   the next   in one |    sources in batch  met again   |  packed"""

Order = NDArray[np.int64]


@dataclass(frozen=True)
class Corpus:
    """Lengths spread as those of conversations, int32 [samples], in shards of equal size."""

    lengths: NDArray[np.int32]
    shards: NDArray[np.int64]
    fingerprint: str = "made up"
    snapshot_id: str = "made up"

    @classmethod
    def of(cls, shards: int, per_shard: int) -> "Corpus":
        """So many shards of so many samples."""
        drawn = np.random.default_rng(0).lognormal(6.3, 0.8, shards * per_shard)
        lengths = np.clip(drawn, 16, MAX_TOKENS // 2).astype(np.int32)
        return cls(lengths, np.repeat(np.arange(shards, dtype=np.int64), per_shard))


def main() -> None:
    """Make the orders, look at them, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--per-shard", type=int, default=PER_SHARD)
    chosen = parser.parse_args()
    corpus = Corpus.of(chosen.shards, chosen.per_shard)
    print(f"{len(corpus.lengths)} samples in {chosen.shards} shards; batches of {BATCH} samples")
    print(HEAD)
    windows = [window for window in WINDOWS if window < chosen.shards]
    for window in [*windows, chosen.shards]:
        print(row(corpus, window))


def row(corpus: Corpus, window: int) -> str:
    """One line of the table."""
    orders = [shuffled(corpus, window, epoch) for epoch in range(EPOCHS)]
    plain = [shuffled(corpus, len(corpus.lengths), epoch + 99) for epoch in range(EPOCHS)]
    shards = [corpus.shards[order] for order in orders]
    packed = TokenBatches(corpus, MAX_TOKENS, window=window).fill
    sequential = (
        f"{mean(open_at_a_time(s) for s in shards):9.0f} {mean(span(s) for s in shards):10.1%} "
        f"{mean(np.abs(np.diff(s)).mean() for s in shards):10.1f} "
        f"{mean((np.diff(s) == 0).mean() for s in shards):8.1%}"
    )
    random = (
        f"{ratio(orders, plain, lambda order: source_spread(corpus, order)):11.2f}"
        f"{ratio(orders, plain, lambda order: shards_in_a_batch(corpus, order)):10.2f}"
        f"{met_again(orders) / met_again(plain):11.2f}"
    )
    return f"{window:6} |{sequential} |{random}   |{packed:8.1%}"


def mean(values: Iterable[float]) -> float:
    """Of a few figures."""
    return float(np.mean(list(values)))


def ratio(orders: list[Order], plain: list[Order], figure: Callable[[Order], float]) -> float:
    """A figure of these orders to the same of plain shuffles."""
    return mean(map(figure, orders)) / mean(map(figure, plain))


def shuffled(corpus: Corpus, window: int, epoch: int) -> Order:
    """The order of one epoch."""
    return np.array(WindowShuffle(corpus, window=window).turns(epoch), np.int64)


def open_at_a_time(shards: Order) -> float:
    """Most shards of which some samples are read and others still to come."""
    first, last = _ends(shards)
    changes = np.zeros(len(shards) + 1, np.int64)
    np.add.at(changes, first, 1)
    np.add.at(changes, last + 1, -1)
    return float(np.cumsum(changes).max())


def span(shards: Order) -> float:
    """The share of an epoch between the first and the last read of a shard, on average."""
    first, last = _ends(shards)
    return float((last - first + 1).mean() / len(shards))


def _ends(shards: Order) -> tuple[Order, Order]:
    _, first = np.unique(shards, return_index=True)
    _, from_behind = np.unique(shards[::-1], return_index=True)
    return first, len(shards) - 1 - from_behind


def source_spread(corpus: Corpus, order: Order) -> float:
    """The standard deviation of a source's share in a batch."""
    source = order * SOURCES // len(corpus.lengths)
    shares = [np.bincount(batch, minlength=SOURCES) / BATCH for batch in _batches(source)]
    return float(np.std(shares, axis=0).mean())


def shards_in_a_batch(corpus: Corpus, order: Order) -> float:
    """Distinct shards in a batch, on average."""
    return mean(len(np.unique(batch)) for batch in _batches(corpus.shards[order]))


def met_again(orders: list[Order]) -> float:
    """The share of pairs in one batch that are in one batch in the next epoch too."""
    met = pairs = 0
    for before, after in itertools.pairwise(orders):
        batch_before = np.empty(len(before), np.int64)
        batch_before[before] = np.arange(len(before)) // BATCH
        for batch in _batches(batch_before[after]):
            _, counts = np.unique(batch, return_counts=True)
            met += int((counts * (counts - 1)).sum())
            pairs += BATCH * (BATCH - 1)
    return met / max(pairs, 1)


def _batches(order: Order) -> Iterator[Order]:
    whole = len(order) // BATCH
    return iter(order[: whole * BATCH].reshape(whole, BATCH))


if __name__ == "__main__":
    main()
