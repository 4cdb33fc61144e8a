"""The order of an epoch: who comes when, on which rank, and how it goes on after a stop."""

import itertools
import json
import pickle
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hsstore.errors import MalformedInput, SnapshotChanged
from hsstore.training.epochs import EpochSampler
from hsstore.training.order import Windows, WindowShuffle
from hsstore.training.token_batches import TokenBatches

SHARDS, OF_EACH = 7, 5


@dataclass(frozen=True)
class Known:
    """What a sampler knows of a store."""

    lengths: NDArray[np.int32] = field(
        default_factory=lambda: np.random.default_rng(0).integers(1, 60, SHARDS * OF_EACH, np.int32)
    )
    shards: NDArray[np.int64] = field(
        default_factory=lambda: np.repeat(np.arange(SHARDS, dtype=np.int64), OF_EACH)
    )
    snapshot_id: str = "a"
    fingerprint: str = "b"


def samplers(known: Known, **options: Any) -> list[EpochSampler[Any]]:  # noqa: ANN401 - options
    options = {"window": 2, **options}
    return [WindowShuffle(known, **options), TokenBatches(known, 64, **options)]


KINDS = pytest.mark.parametrize("kind", [0, 1], ids=["WindowShuffle", "TokenBatches"])


def test_an_epoch_has_every_sample_once_and_no_two_are_alike() -> None:
    shuffle = WindowShuffle(Known(), window=3)
    epochs = [list(shuffle) for _ in range(3)]
    assert all(sorted(epoch) == list(range(SHARDS * OF_EACH)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert {type(sample) for sample in epochs[0]} == {int}


@KINDS
def test_an_order_depends_on_seed_and_epoch_alone(kind: int) -> None:
    first, again = (samplers(Known(), seed=3)[kind] for _ in range(2))
    other = samplers(Known(), seed=4)[kind]
    np.random.default_rng().random()
    again.set_epoch(1)
    assert list(again) == [list(first), list(first)][1]
    other.set_epoch(1)
    assert list(other) != list(again)


def test_the_orders_are_those_of_every_other_machine_and_release() -> None:
    """A resumed run may have another numpy than the one that was stopped."""
    shuffle = WindowShuffle(Known(), window=2, seed=7)
    assert list(shuffle)[:10] == [30, 17, 16, 32, 33, 19, 18, 15, 31, 34]
    assert TokenBatches(Known(), 64, window=2, seed=7).turns(0)[:3] == [[18], [31, 33], [30]]


@pytest.mark.parametrize("window", [1, 2, 3, 7, 100])
def test_a_window_is_over_before_the_next_begins(window: int) -> None:
    known = Known()
    order, windows = Windows(known.shards, window, seed=0).order(0)
    assert (np.diff(windows) >= 0).all()
    opened = [
        set(known.shards[order[list(of_one)]].tolist())
        for _, of_one in itertools.groupby(range(len(order)), lambda k: windows[k])
    ]
    assert sum(map(len, opened)) == SHARDS  # no shard is in two windows
    sizes = [len(shards) for shards in opened]
    assert max(sizes) <= window
    assert max(sizes) - min(sizes) <= 1


def test_within_a_window_the_samples_of_its_shards_are_mixed() -> None:
    order, _ = Windows(Known().shards, 7, seed=0).order(0)
    assert len(set((order[:12] // OF_EACH).tolist())) > 3


def test_shards_that_hold_nothing_for_the_dataset_do_not_count() -> None:
    """A filter or an exclusion leaves shards without samples."""
    shards = np.array([5, 5, 900, 900, 7])
    order, windows = Windows(shards, 2, seed=0).order(0)
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
    assert set(windows.tolist()) == {0, 1}


@pytest.mark.parametrize("world", [2, 3, 36])
def test_ranks_share_an_epoch_with_no_duplicate_and_no_loss(world: int) -> None:
    ranks = [list(WindowShuffle(Known(), world=world, rank=rank)) for rank in range(world)]
    assert sorted(itertools.chain(*ranks)) == list(range(SHARDS * OF_EACH))
    assert max(map(len, ranks)) - min(map(len, ranks)) <= 1
    assert [len(rank) for rank in ranks] == [
        len(WindowShuffle(Known(), world=world, rank=rank)) for rank in range(world)
    ]


def test_a_store_without_samples_has_an_epoch_of_none() -> None:
    none = Known(lengths=np.empty(0, np.int32), shards=np.empty(0, np.int64))
    assert [list(sampler) for sampler in samplers(none)] == [[], []]


@pytest.mark.parametrize(
    "options", [{"rank": 2, "world": 2}, {"rank": -1}, {"window": 0}, {"seed": -1}, {"world": 0}]
)
def test_options_out_of_range_are_refused(options: dict[str, int]) -> None:
    for kind in range(2):
        with pytest.raises(ValueError, match=r"rank|window|seed|world"):
            samplers(Known(), **options)[kind]


@pytest.mark.parametrize("value", ["3", 2.5, float("nan"), True, None])
@pytest.mark.parametrize("name", ["rank", "world", "window", "seed", "max_tokens", "max_samples"])
def test_options_that_are_no_whole_numbers_are_refused(name: str, value: object) -> None:
    if (name, value) == ("max_samples", None):
        return
    options: dict[str, Any] = {"max_tokens": 64, name: value}
    with pytest.raises(ValueError, match=f"{name} is .*must be a whole number, at least"):
        TokenBatches(Known(), **options)


def test_a_state_of_numpys_numbers_is_plain() -> None:
    shuffle = WindowShuffle(Known(), seed=np.int64(3), window=np.int64(2))  # type: ignore[arg-type]
    assert json.loads(json.dumps(shuffle.state_dict())) == shuffle.state_dict()


# -- going on -----------------------------------------------------------------------------------


@KINDS
@pytest.mark.parametrize("stop", [0, 1, 6])
def test_a_loaded_state_goes_on_with_the_same_turns(kind: int, stop: int) -> None:
    sampler, other = samplers(Known())[kind], samplers(Known())[kind]
    sampler.set_epoch(4)
    turns = iter(sampler)
    for _ in range(stop):
        next(turns)
    other.load_state_dict(sampler.state_dict())
    iter(other)  # loaders make iterators that they do not use
    assert list(other) == list(turns)
    assert list(other) == list(sampler)  # and the epoch after it is whole


@KINDS
def test_the_state_of_a_batch_can_be_counted_instead(kind: int) -> None:
    sampler, other = samplers(Known())[kind], samplers(Known())[kind]
    whole = list(sampler)
    other.load_state_dict(sampler.state_at(0, 5))
    assert list(other) == whole[5:]


@KINDS
def test_more_turns_than_an_epoch_has_are_no_state(kind: int) -> None:
    sampler = samplers(Known())[kind]
    assert sampler.state_at(0, len(sampler))["position"] == len(sampler)
    with pytest.raises(ValueError, match="count anew in each epoch"):
        sampler.state_at(0, len(sampler) + 1)


def test_a_rank_with_a_turn_less_saves_the_end_of_the_others() -> None:
    ranks = [WindowShuffle(Known(), rank=rank, world=8) for rank in range(8)]
    most = max(map(len, ranks))
    assert {len(rank) for rank in ranks} == {most - 1, most}
    assert all(rank.state_at(0, most) == ranks[0].state_at(0, most) for rank in ranks)
    with pytest.raises(ValueError, match="count anew"):
        ranks[-1].state_at(0, most + 1)


@KINDS
@pytest.mark.parametrize("taken", [1, 2, None])
def test_behind_an_epoch_that_is_left_the_next_one_comes_however_far_ahead_a_loader_was(
    kind: int, taken: int | None
) -> None:
    sampler = samplers(Known())[kind]
    second = list(sampler.turns(1))
    list(itertools.islice(sampler, taken))
    assert list(sampler) == second
    next(iter(sampler))
    sampler.set_epoch(1)
    assert list(sampler) == second


@KINDS
@pytest.mark.parametrize("use", [len, lambda sampler: next(iter(sampler)), list])
def test_a_used_sampler_pickles_for_a_spawned_worker(
    kind: int, use: Callable[[EpochSampler[Any]], object]
) -> None:
    sampler = samplers(Known())[kind]
    use(sampler)
    copy = pickle.loads(pickle.dumps(sampler))  # noqa: S301 - our own bytes
    expected = list(sampler.turns(copy.epoch))
    assert list(copy) == expected


@KINDS
def test_the_end_of_an_epoch_is_the_beginning_of_the_next(kind: int) -> None:
    sampler, other = samplers(Known())[kind], samplers(Known())[kind]
    before_the_end = sampler.state_at(0, len(sampler))
    list(sampler)
    assert (sampler.state_dict()["epoch"], sampler.state_dict()["position"]) == (1, 0)
    other.load_state_dict(before_the_end)
    turns = iter(other)
    assert [list(turns), list(turns)] == [[], []]
    assert other.epoch == 1
    assert list(other) == list(sampler)


def test_setting_the_epoch_keeps_a_place_in_it_and_drops_one_in_another() -> None:
    shuffle = WindowShuffle(Known())
    shuffle.load_state_dict(shuffle.state_at(2, 30))
    shuffle.set_epoch(2)
    assert len(list(shuffle)) == SHARDS * OF_EACH - 30
    shuffle.load_state_dict(shuffle.state_at(2, 30))
    shuffle.set_epoch(3)
    assert len(list(shuffle)) == SHARDS * OF_EACH


@KINDS
def test_any_rank_can_go_on_from_the_state_of_one(kind: int) -> None:
    ranks = [samplers(Known(), world=2, rank=rank)[kind] for rank in range(2)]
    rest = [list(rank.turns(0))[3:] for rank in ranks]
    turns = iter(ranks[0])
    for _ in range(3):
        next(turns)
    ranks[1].load_state_dict(ranks[0].state_dict())
    assert list(ranks[1]) == rest[1]


@pytest.mark.parametrize(
    ("options", "named"),
    [({"seed": 1}, "seed"), ({"window": 3}, "window"), ({"world": 2}, "world")],
)
def test_a_state_of_other_options_is_refused(options: dict[str, int], named: str) -> None:
    state = WindowShuffle(Known(), **options).state_dict()  # type: ignore[arg-type]
    with pytest.raises(MalformedInput, match=f"saved with {named}="):
        WindowShuffle(Known()).load_state_dict(state)


def test_a_state_of_another_kind_of_order_is_refused() -> None:
    with pytest.raises(MalformedInput, match=r"saved with max_tokens=64|saved with order="):
        WindowShuffle(Known()).load_state_dict(TokenBatches(Known(), 64).state_dict())


@pytest.mark.parametrize("change", [{"epoch": None}, {"position": -1}, {"epoch": True}, {}])
def test_what_is_no_state_is_refused(change: dict[str, object]) -> None:
    state = WindowShuffle(Known()).state_dict() | change if change else {}
    with pytest.raises(MalformedInput, match="not the state of an order"):
        WindowShuffle(Known()).load_state_dict(state)


def test_a_store_with_other_samples_is_refused_whatever_is_accepted() -> None:
    state = WindowShuffle(Known()).state_dict()
    changed = replace(Known(), fingerprint="c", snapshot_id="d")
    with pytest.raises(SnapshotChanged, match="other samples"):
        WindowShuffle(changed, replaced="accept").load_state_dict(state)


def test_a_store_with_replaced_shards_is_refused_unless_accepted() -> None:
    state = WindowShuffle(Known()).state_dict()
    changed = replace(Known(), snapshot_id="d")
    with pytest.raises(SnapshotChanged, match=r"replaced since.*replaced=.accept"):
        WindowShuffle(changed).load_state_dict(state)
    WindowShuffle(changed, replaced="accept").load_state_dict(state)


def test_a_refused_state_changes_nothing() -> None:
    shuffle = WindowShuffle(Known())
    with pytest.raises(MalformedInput):
        shuffle.load_state_dict(WindowShuffle(Known(), seed=1).state_at(3, 3))
    assert (shuffle.epoch, len(list(shuffle))) == (0, SHARDS * OF_EACH)
