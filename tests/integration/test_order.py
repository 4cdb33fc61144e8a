"""The order of training in real loaders: workers, ranks, and going on in mid-epoch."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from hsstore.errors import SnapshotChanged
from hsstore.storage.store import Store
from hsstore.testing.stores import LENGTHS, fill, filled_store, grown, key_of, replace
from hsstore.training.collate import pack_collate, pad_collate
from hsstore.training.dataset import HiddenStateDataset
from hsstore.training.order import WindowShuffle
from hsstore.training.token_batches import TokenBatches

pytestmark = [
    # torchdata 0.11 calls what torch 2.13 no longer wants called.
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
    # More workers than cores is what some of these tests are about.
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
]
KEYS = sorted(key_of(sample) for sample in range(len(LENGTHS)))
MAX_TOKENS = 40


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return filled_store(tmp_path / "store")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> HiddenStateDataset:
    return HiddenStateDataset(filled_store(tmp_path_factory.mktemp("order") / "store").root)


def batches(dataset: HiddenStateDataset, **options: Any) -> TokenBatches:  # noqa: ANN401 - options
    return TokenBatches(dataset, MAX_TOKENS, window=2, **options)


def keys_of(loader: Any) -> Iterator[list[str]]:  # noqa: ANN401 - either kind of loader
    return (batch["id"] for batch in loader)


def test_a_dataset_tells_where_its_samples_are(dataset: HiddenStateDataset) -> None:
    table = Store.open(dataset._store.root).samples
    expected = [table.extent(sample).shard for sample in range(len(table))]
    assert dataset.shards.tolist() == expected
    assert len(set(expected)) > 2


@pytest.mark.parametrize(
    ("workers", "start"),
    [
        (0, None),
        (2, "fork"),
        (4, "fork"),
        # Each of these processes imports torch anew.
        pytest.param(2, "spawn", marks=pytest.mark.sweep),
        pytest.param(4, "spawn", marks=pytest.mark.sweep),
    ],
)
def test_two_ranks_read_every_sample_once_an_epoch(
    dataset: HiddenStateDataset, workers: int, start: str | None
) -> None:
    read: list[str] = []
    for rank in range(2):
        loader: DataLoader[Any] = DataLoader(
            dataset,
            batch_sampler=batches(dataset, rank=rank, world=2),
            num_workers=workers,
            multiprocessing_context=start,
            collate_fn=pad_collate,
        )
        read += itertools.chain(*keys_of(loader))
    assert sorted(read) == KEYS


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_in_a_sampler_are_shared_too(dataset: HiddenStateDataset, workers: int) -> None:
    read: list[str] = []
    for rank in range(2):
        order = WindowShuffle(dataset, window=2, rank=rank, world=2)
        loader: DataLoader[Any] = DataLoader(
            dataset, 3, sampler=order, num_workers=workers, collate_fn=pack_collate
        )
        read += itertools.chain(*keys_of(loader))
    assert sorted(read) == KEYS


def test_epochs_of_one_loader_differ(dataset: HiddenStateDataset) -> None:
    order = batches(dataset)
    loader: DataLoader[Any] = DataLoader(
        dataset, batch_sampler=order, num_workers=2, collate_fn=pad_collate, persistent_workers=True
    )
    epochs = [list(keys_of(loader)) for _ in range(3)]
    assert [sorted(itertools.chain(*epoch)) for epoch in epochs] == [KEYS] * 3
    assert epochs[0] != epochs[1] != epochs[2]
    order.set_epoch(0)
    assert list(keys_of(loader)) == epochs[0]


# -- going on with a StatefulDataLoader -----------------------------------------------------------


def stateful(dataset: HiddenStateDataset, workers: int, *, one_by_one: bool = False) -> Any:  # noqa: ANN401 - untyped
    options = {"num_workers": workers, "collate_fn": pad_collate}
    if one_by_one:
        sampler = WindowShuffle(dataset, window=2, seed=5)
        return StatefulDataLoader(dataset, 2, sampler=sampler, **options)
    return StatefulDataLoader(dataset, batch_sampler=batches(dataset, seed=5), **options)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("stop", [0, 1, 3])
def test_a_resumed_loader_gives_the_remaining_batches(
    dataset: HiddenStateDataset, workers: int, stop: int
) -> None:
    loader, resumed = stateful(dataset, workers), stateful(dataset, workers)
    first = list(loader)
    whole = list(keys_of(loader))  # of the second epoch
    assert len(whole) > 4
    loader.batch_sampler.set_epoch(1)
    reading = iter(loader)
    for _ in range(stop):
        next(reading)
    resumed.load_state_dict(loader.state_dict())
    rest = list(resumed)
    assert [batch["id"] for batch in rest] == whole[stop:]
    for batch, expected in zip(rest, reading, strict=True):
        assert torch.equal(batch["hidden_states"], expected["hidden_states"])
    # The next epoch is whole, and neither of those before.
    third = list(keys_of(resumed))
    assert sorted(itertools.chain(*third)) == KEYS
    assert third not in (whole, [batch["id"] for batch in first])


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_stopped_at_the_end_of_an_epoch_goes_on_with_the_next(
    dataset: HiddenStateDataset, workers: int
) -> None:
    loader, resumed = stateful(dataset, workers), stateful(dataset, workers)
    first = list(keys_of(loader))
    resumed.load_state_dict(loader.state_dict())
    second = list(keys_of(resumed))
    assert second == list(keys_of(loader)) != first


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_samples_stopped_at_the_end_goes_on_with_the_next_epoch(
    dataset: HiddenStateDataset, workers: int
) -> None:
    """Its last batch is not full, so that the sampler is at its end with it."""

    def loader() -> Any:  # noqa: ANN401 - untyped
        order = WindowShuffle(dataset, window=2, seed=5)
        return StatefulDataLoader(
            dataset, 5, sampler=order, num_workers=workers, collate_fn=pad_collate,
            prefetch_factor=1 if workers else None,
        )  # fmt: skip

    stopped, resumed = loader(), loader()
    first = list(keys_of(stopped))
    resumed.load_state_dict(stopped.state_dict())
    second = list(keys_of(resumed))
    assert second == list(keys_of(stopped)) != first
    assert list(keys_of(resumed)) == list(keys_of(stopped)) != second


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_loader_of_samples_gives_the_remaining_ones(
    dataset: HiddenStateDataset, workers: int
) -> None:
    loader, resumed = (stateful(dataset, workers, one_by_one=True) for _ in range(2))
    reading = iter(loader)
    read = [next(reading)["id"] for _ in range(2)]
    resumed.load_state_dict(loader.state_dict())
    rest = list(keys_of(resumed))
    assert rest == list(keys_of(reading))
    assert sorted(itertools.chain(*read, *rest)) == KEYS


def test_a_plain_loader_goes_on_from_counted_batches(dataset: HiddenStateDataset) -> None:
    order, again = batches(dataset), batches(dataset)
    plain: DataLoader[Any] = DataLoader(
        dataset, batch_sampler=order, num_workers=2, collate_fn=pad_collate
    )
    reading = iter(plain)
    next(reading)
    assert order.state_dict()["position"] > 1  # the workers are ahead
    again.load_state_dict(order.state_at(0, 1))
    resumed: DataLoader[Any] = DataLoader(
        dataset, batch_sampler=again, num_workers=2, collate_fn=pad_collate
    )
    assert list(keys_of(resumed)) == list(keys_of(reading))


def test_a_grown_store_refuses_the_state_of_before(store: Store) -> None:
    state = batches(HiddenStateDataset(store.root)).state_dict()
    fill(grown(store, [4, 5]))
    with pytest.raises(SnapshotChanged, match="other samples"):
        batches(HiddenStateDataset(store.root), replaced="accept").load_state_dict(state)


def test_a_repaired_store_refuses_it_unless_accepted(store: Store) -> None:
    state = batches(HiddenStateDataset(store.root)).state_dict()
    replace(store, 1)
    repaired = HiddenStateDataset(store.root)
    with pytest.raises(SnapshotChanged, match="shards were replaced"):
        batches(repaired).load_state_dict(state)
    batches(repaired, replaced="accept").load_state_dict(state)


def test_another_store_with_the_same_samples_is_another(store: Store, tmp_path: Path) -> None:
    state = batches(HiddenStateDataset(store.root)).state_dict()
    twin = HiddenStateDataset(filled_store(tmp_path / "twin").root)
    with pytest.raises(SnapshotChanged, match="other samples"):
        batches(twin, replaced="accept").load_state_dict(state)
