"""Batches of so many tokens: nothing is lost, no bound is passed, little room is wasted."""

import itertools
import logging
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hsstore.training.order import Random, Windows
from hsstore.training.packing import GROUP, Batches, Shape, cut, evened
from hsstore.training.token_batches import TokenBatches

MAX_TOKENS = 64


@dataclass(frozen=True)
class Known:
    lengths: NDArray[np.int32]
    shards: NDArray[np.int64]
    snapshot_id: str = "a"
    fingerprint: str = "b"

    @classmethod
    def of(cls, lengths: list[int], per_shard: int = 5) -> "Known":
        return cls(
            np.array(lengths, np.int32), np.arange(len(lengths), dtype=np.int64) // per_shard
        )


def cost(lengths: list[int], shape: Shape) -> int:
    return sum(lengths) if shape == "packed" else len(lengths) * max(lengths)


@given(
    lengths=st.lists(st.integers(1, MAX_TOKENS), max_size=60),
    shape=st.sampled_from(["packed", "padded"]),
    max_samples=st.integers(1, 9),
    window=st.integers(1, 5),
    world=st.integers(1, 4),
)
def test_every_sample_is_in_one_batch_within_its_bounds(
    lengths: list[int], shape: Shape, max_samples: int, window: int, world: int
) -> None:
    known = Known.of(lengths)
    ranks = [
        list(TokenBatches(known, MAX_TOKENS, max_samples=max_samples, shape=shape, window=window,
                          rank=rank, world=world))
        for rank in range(world)
    ]  # fmt: skip
    batches = list(itertools.chain(*ranks))
    assert sorted(itertools.chain(*batches)) == list(range(len(lengths)))
    for batch in batches:
        assert 1 <= len(batch) <= max_samples
        assert cost([lengths[sample] for sample in batch], shape) <= MAX_TOKENS
    steps = [len(rank) for rank in ranks]
    if max(steps) != min(steps):
        assert max(steps) - min(steps) == 1
        assert {len(batch) for batch in batches} == {1}


def test_no_batch_is_of_two_windows() -> None:
    shards = np.arange(300) // 10
    order, window = Windows(shards, 3, seed=0).order(0)
    batches = cut(order, window, np.full(300, 9, np.int32), (64, 300), "packed", Random(0, 0, 1))
    of_sample = dict(zip(order.tolist(), window.tolist(), strict=True))
    windows = [{of_sample[sample] for sample in batches.of(k)} for k in range(len(batches))]
    assert {len(found) for found in windows} == {1}
    assert [min(found) for found in windows] == sorted(min(found) for found in windows)


def test_samples_of_a_batch_come_in_the_order_of_the_disk() -> None:
    known = Known.of([5] * 100)
    assert all(batch == sorted(batch) for batch in TokenBatches(known, MAX_TOKENS))


def test_batches_of_a_window_are_not_sorted_by_length() -> None:
    lengths = np.random.default_rng(0).integers(1, 65, 400).tolist()
    batches = TokenBatches(Known.of(lengths), MAX_TOKENS, window=1000)
    longest = [max(lengths[sample] for sample in batch) for batch in batches]
    steps = np.sign(np.diff(longest)).tolist()
    assert 0.3 < steps.count(1) / len(steps) < 0.7


@pytest.mark.parametrize("count", [GROUP - 1, GROUP, GROUP + 1, 3 * GROUP + 5])
def test_windows_of_many_samples_are_cut_in_groups(count: int) -> None:
    random = np.random.default_rng(0)
    known = Known.of(random.integers(1, 65, count).tolist(), per_shard=count)
    batches = TokenBatches(known, MAX_TOKENS)
    assert sorted(itertools.chain(*batches)) == list(range(count))


def test_a_usual_corpus_leaves_little_room() -> None:
    random = np.random.default_rng(0)
    lengths = np.clip(random.lognormal(6, 0.8, 5000), 16, 4096).astype(int).tolist()
    batches = TokenBatches(Known.of(lengths, per_shard=40), 8192)
    assert batches.fill > 0.97
    tokens = [sum(lengths[sample] for sample in batch) for batch in batches.turns(0)]
    assert batches.fill == pytest.approx(np.mean(tokens) / 8192)


def test_a_long_sample_is_refused_by_number_and_length() -> None:
    with pytest.raises(ValueError, match=r"2 samples .* first: sample 1; allow 90 tokens"):
        TokenBatches(Known.of([3, 70, 5, 90]), MAX_TOKENS)


@pytest.mark.parametrize(("tokens", "samples"), [(0, None), (64, 0)])
def test_batches_of_nothing_are_refused(tokens: int, samples: int | None) -> None:
    with pytest.raises(ValueError, match=r"max_\w+ is 0; .* at least 1"):
        TokenBatches(Known.of([3]), tokens, max_samples=samples)


def test_an_unknown_shape_is_refused() -> None:
    with pytest.raises(ValueError, match="not one of packed, padded"):
        TokenBatches(Known.of([3]), 4, shape="round")  # type: ignore[arg-type]


def test_ends_are_made_even_by_halving_the_last_batches() -> None:
    batches = Batches(np.arange(10), np.array([4, 8, 9, 10]))
    even = evened(batches, 3)
    assert [even.of(k) for k in range(6)] == [[0, 1], [2, 3], [4, 5], [6, 7], [8], [9]]
    assert evened(batches, 4) is not None
    assert len(evened(batches, 4)) == 4


def test_ends_that_cannot_be_even_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    known = Known.of([60] * 7)
    with caplog.at_level(logging.WARNING):
        ranks = [list(TokenBatches(known, MAX_TOKENS, rank=rank, world=3)) for rank in range(3)]
    assert [len(rank) for rank in ranks] == [3, 2, 2]
    assert "1 of 3 ranks have a batch more than the others" in caplog.text
