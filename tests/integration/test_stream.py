"""The stream: each sample once, over ranks and workers, and exactly the rest after a stop."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler
from torchdata.stateful_dataloader import StatefulDataLoader

from hsstore.errors import MalformedInput, SnapshotChanged
from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing.stores import empty_store, fill, key_of, replace
from hsstore.training.collate import pad_collate
from hsstore.training.dataset import HiddenStateDataset
from hsstore.training.order import WindowShuffle
from hsstore.training.stream import HiddenStateStream, StatefulOrder
from hsstore.views.where import Where

LENGTHS = [5, 3, 9, 16, 1, 2, 7, 4, 6, 3, 8]
ORDER = [7, 2, 9, 0, 4, 10, 1, 8, 3, 6, 5]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return fill(empty_store(tmp_path_factory.mktemp("stream") / "store", LENGTHS))


@pytest.fixture
def dataset(store: Store) -> HiddenStateDataset:
    return HiddenStateDataset(store.root)


def served(stream: HiddenStateStream) -> list[str]:
    return [item["id"] for item in stream]


def named(order: list[int]) -> list[str]:
    return [key_of(sample) for sample in order]


class Shuffled:
    """A sampler with its own state: every epoch another order, resumed without passing over."""

    def __init__(self, samples: int) -> None:
        self.samples, self.epoch, self.at = samples, 0, 0

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        order = torch.randperm(self.samples, generator=torch.Generator().manual_seed(self.epoch))
        while self.at < self.samples:
            self.at += 1
            yield int(order[self.at - 1])
        self.epoch, self.at = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "at": self.at}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.epoch, self.at = state_dict["epoch"], state_dict["at"]


def test_it_serves_the_dataset_in_its_order(dataset: HiddenStateDataset) -> None:
    stream = HiddenStateStream(dataset)
    assert len(stream) == len(LENGTHS)
    assert served(stream) == named(list(range(11)))
    first = next(iter(stream))
    assert torch.equal(first["hidden_states"], dataset[0]["hidden_states"])


def test_it_serves_any_order(dataset: HiddenStateDataset) -> None:
    assert served(HiddenStateStream(dataset, ORDER)) == named(ORDER)
    assert served(HiddenStateStream(dataset, [3, 3, -1])) == named([3, 3, 10])
    with pytest.raises(IndexError):
        served(HiddenStateStream(dataset, [11]))


def test_its_length_is_known_where_that_of_the_order_is(dataset: HiddenStateDataset) -> None:
    lengths = [len(HiddenStateStream(dataset, ORDER, rank=rank, ranks=3)) for rank in range(3)]
    assert lengths == [4, 4, 3]
    with pytest.raises(TypeError, match="a list_iterator, does not tell its length"):
        len(HiddenStateStream(dataset, iter(ORDER)))


@pytest.mark.parametrize(("rank", "ranks"), [(2, 2), (-1, 2), (0, 0)])
def test_ranks_that_do_not_exist_are_refused(
    dataset: HiddenStateDataset, rank: int, ranks: int
) -> None:
    with pytest.raises(ValueError, match=r"ranks? is"):
        HiddenStateStream(dataset, rank=rank, ranks=ranks)


@pytest.mark.parametrize("value", ["2", 1.5, float("nan")])
def test_a_number_of_ranks_that_is_none_is_refused(
    dataset: HiddenStateDataset,
    value: Any,  # noqa: ANN401 - anything
) -> None:
    with pytest.raises(ValueError, match=r"ranks is .*must be a whole number"):
        HiddenStateStream(dataset, ranks=value)


def test_an_order_of_one_rank_is_not_dealt_out_again(dataset: HiddenStateDataset) -> None:
    ours = WindowShuffle(dataset, rank=1, world=2)
    theirs: Any = DistributedSampler(dataset, 2, 1)
    for order in (ours, theirs):
        with pytest.raises(ValueError, match=r"one of 2 ranks' already.*ranks=1"):
            HiddenStateStream(dataset, order, rank=1, ranks=2)
    assert served(HiddenStateStream(dataset, ours)) == named(list(ours.turns(0)))


def test_workers_that_stay_agree_on_the_epoch_when_one_is_left(dataset: HiddenStateDataset) -> None:
    """One worker has read ahead to its end by then, and the other has not."""
    for read in range(1, 7):
        loader: DataLoader[Any] = DataLoader(
            HiddenStateStream(dataset, WindowShuffle(dataset, window=1)), batch_size=2,
            num_workers=2, persistent_workers=True, collate_fn=pad_collate,
        )  # fmt: skip
        for _ in itertools.islice(loader, read):
            pass
        assert sorted(key for batch in loader for key in batch["id"]) == sorted(named(ORDER))


@pytest.mark.parametrize("state", [None, [], {}, {"rank": 0}])
def test_what_is_no_state_is_refused(dataset: HiddenStateDataset, state: Any) -> None:  # noqa: ANN401
    with pytest.raises(MalformedInput, match=r"not the state of a stream.*state_dict"):
        HiddenStateStream(dataset).load_state_dict(state)


def test_the_state_of_a_plain_order_is_no_place_in_one_with_a_state(
    dataset: HiddenStateDataset,
) -> None:
    stream = HiddenStateStream(dataset, WindowShuffle(dataset))
    stream.load_state_dict(HiddenStateStream(dataset, ORDER).state_dict())
    with pytest.raises(MalformedInput, match="an order that has no state of its own"):
        iter(stream)


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3")  # more than there are cores
@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_each_sample_is_served_once_over_ranks_and_workers(
    dataset: HiddenStateDataset, workers: int, ranks: int
) -> None:
    shares: list[str] = []
    for rank in range(ranks):
        stream = HiddenStateStream(dataset, ORDER, rank=rank, ranks=ranks)
        loader = DataLoader(stream, batch_size=2, num_workers=workers, collate_fn=pad_collate)
        share = [key for batch in loader for key in batch["id"]]
        assert Counter(share) == Counter(named(ORDER[rank::ranks]))
        shares += share
    assert Counter(shares) == Counter(named(ORDER))


def test_spawned_workers_serve_the_same(store: Store) -> None:
    """The trainers' views too: a target is the last stored layer."""
    dataset = HiddenStateDataset(store.root, view="by_layer", verify="first")
    stream = HiddenStateStream(dataset, ORDER)
    loader = DataLoader(stream, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    items = list(loader)
    assert Counter(item["id"] for item in items) == Counter(named(ORDER))
    assert items[0]["id"] == key_of(ORDER[0])
    assert torch.equal(items[0]["hidden_states"]["final"], dataset[7]["hidden_states"]["final"])


# -- resuming -----------------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("own_state", [True, False])
def test_the_rest_follows_a_stop_at_every_sample(
    dataset: HiddenStateDataset, ranks: int, *, own_state: bool
) -> None:
    def stream() -> HiddenStateStream:
        order = Shuffled(len(LENGTHS)) if own_state else ORDER
        return HiddenStateStream(dataset, order, rank=ranks - 1, ranks=ranks)

    uninterrupted = stream()
    whole, second = served(uninterrupted), served(uninterrupted)
    for stop in range(len(whole) + 1):
        first = stream()
        items = iter(first)
        begun = [next(items)["id"] for _ in range(stop)]
        state = json.loads(json.dumps(first.state_dict()))
        resumed = stream()
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert begun + served(resumed) == whole
        assert served(resumed) == second, "a whole epoch follows"


def test_the_end_of_an_epoch_is_a_place_to_stop_too(dataset: HiddenStateDataset) -> None:
    first, resumed = (HiddenStateStream(dataset, Shuffled(len(LENGTHS))) for _ in range(2))
    served(first)
    resumed.load_state_dict(first.state_dict())
    assert served(resumed) == []
    assert served(resumed) == served(first)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")  # torchdata 0.11 calls it
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("own_state", [True, False])
def test_a_stateful_loader_serves_the_remaining_batches(
    dataset: HiddenStateDataset, workers: int, *, own_state: bool
) -> None:
    def loader() -> StatefulDataLoader:
        order = Shuffled(len(LENGTHS)) if own_state else ORDER
        stream = HiddenStateStream(dataset, order)
        return StatefulDataLoader(stream, 2, num_workers=workers, collate_fn=pad_collate)

    whole = [batch["id"] for batch in loader()]
    assert Counter(itertools.chain(*whole)) == Counter(named(ORDER))
    for stop in (0, 1, 4, 5, len(whole)):
        first, resumed = loader(), loader()
        batches = iter(first)
        begun = [next(batches)["id"] for _ in range(stop)]
        resumed.load_state_dict(first.state_dict())
        assert begun + [batch["id"] for batch in resumed] == whole


def test_skipped_samples_do_not_move_the_place(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS))
    path = store.root / keys.shard_file(0)
    raw = bytearray(path.read_bytes())
    raw[0] ^= 1
    path.write_bytes(raw)
    dataset = HiddenStateDataset(store.root, verify="always", on_damage="skip")
    first, resumed = HiddenStateStream(dataset, ORDER), HiddenStateStream(dataset, ORDER)
    items = iter(first)
    begun = [next(items)["id"] for _ in range(4)]
    assert begun == named([7, 2, 9, 4])
    resumed.load_state_dict(first.state_dict())
    assert served(resumed) == named(ORDER[5:])


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"rank": 1, "ranks": 2}, r"the state is of another rank \(rank 0, here 1\)"),
        ({"ranks": 2}, "of another number of ranks"),
        ({"order": ORDER[::-1]}, "the order does not begin with the 3 indexes that were served"),
        ({"order": ORDER[:2]}, "the order does not begin with the 3 indexes"),
    ],
)
def test_the_state_of_another_stream_is_refused(
    dataset: HiddenStateDataset, changed: dict[str, Any], problem: str
) -> None:
    first = HiddenStateStream(dataset, ORDER)
    items = iter(first)
    for _ in range(3):
        next(items)
    other = HiddenStateStream(dataset, **{"order": ORDER, **changed})
    other.load_state_dict(first.state_dict())
    with pytest.raises(MalformedInput, match=problem):
        iter(other)


def test_the_state_of_another_selection_is_refused(store: Store) -> None:
    other = HiddenStateStream(HiddenStateDataset(store.root, where=Where(min_length=2)))
    other.load_state_dict(HiddenStateStream(HiddenStateDataset(store.root)).state_dict())
    with pytest.raises(SnapshotChanged, match="other samples, or other lengths"):
        iter(other)


def test_replaced_shards_are_told_or_accepted(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS))
    first = HiddenStateStream(HiddenStateDataset(store.root), ORDER)
    next(iter(first))
    replace(store, 1)
    dataset = HiddenStateDataset(store.root)
    other = HiddenStateStream(dataset, ORDER)
    other.load_state_dict(first.state_dict())
    with pytest.raises(SnapshotChanged, match="shards were replaced since the state was taken"):
        iter(other)
    accepting = HiddenStateStream(dataset, ORDER, replaced="accept")
    accepting.load_state_dict(first.state_dict())
    assert served(accepting) == named(ORDER[1:])
    with pytest.raises(ValueError, match="replaced is 'ignore'"):
        HiddenStateStream(dataset, replaced="ignore")  # type: ignore[arg-type]


def test_another_number_of_workers_is_refused(dataset: HiddenStateDataset) -> None:
    stream = HiddenStateStream(dataset, ORDER)
    state = stream.state_dict() | {"workers": 3}
    stream.load_state_dict(state)
    with pytest.raises(MalformedInput, match="of another number of DataLoader workers"):
        iter(stream)


def test_a_sampler_counts_as_stateful_by_what_it_can() -> None:
    assert isinstance(Shuffled(3), StatefulOrder)
    assert not isinstance(ORDER, StatefulOrder)
