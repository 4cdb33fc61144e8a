"""Batches in memory that is used again: the same bytes as from a collate, and nothing allocated."""

import os
import pickle
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from hsstore.errors import OutOfSpace
from hsstore.testing.stores import LENGTHS, empty_store, fill, filled_store
from hsstore.training import ring
from hsstore.training.buffered import BufferedPacked, BufferedPadded, as_read
from hsstore.training.collate import pack_collate, pad_collate
from hsstore.training.dataset import HiddenStateDataset
from hsstore.training.token_batches import TokenBatches

MAX_TOKENS = 80
pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> HiddenStateDataset:
    return HiddenStateDataset(filled_store(tmp_path_factory.mktemp("buffered") / "store").root)


def collated(dataset: HiddenStateDataset, kind: str, indices: Sequence[int]) -> dict[str, Any]:
    items = [dataset[index] for index in indices]
    if kind == "padded":
        return dict(pad_collate(items))
    return dict(pack_collate(items, MAX_TOKENS if kind == "packed" else None))


def buffered(dataset: HiddenStateDataset, kind: str, **options: int) -> Any:  # noqa: ANN401 - either
    if kind == "padded":
        return BufferedPadded(dataset, MAX_TOKENS, **options)
    return BufferedPacked(dataset, MAX_TOKENS, exact=kind == "exact", **options)


def same(batch: dict[str, Any], expected: dict[str, Any]) -> bool:
    assert batch.keys() == expected.keys()
    assert batch["id"] == expected["id"]
    tensors = expected.keys() - {"id"}
    assert all(batch[name].dtype == expected[name].dtype for name in tensors)
    return all(torch.equal(batch[name], expected[name]) for name in tensors)


KINDS = pytest.mark.parametrize("kind", ["padded", "packed", "exact"])


@KINDS
@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_they_are_those_of_the_collates_over_whatever_lay_there(
    tmp_path: Path, kind: str, codec: str
) -> None:
    dataset = HiddenStateDataset(filled_store(tmp_path / "store", codec=codec).root)
    batches = buffered(dataset, kind)
    for indices in ([0, 10], [1, 2, 5], [10, 0], [4], [2, 5, 8], [7, 9, 0]):
        assert same(batches[indices], collated(dataset, kind, indices))


@KINDS
def test_nothing_is_allocated_for_states_and_tokens(kind: str, tmp_path: Path) -> None:
    """No operation of torch makes memory of its own, and Python's and numpy's stays small."""
    tokens, samples = 2000, 6
    store = fill(
        empty_store(tmp_path / "store", [tokens] * samples, hidden_size=64, chunk_rows=500,
                    shard_rows=4000)
    )  # fmt: skip
    dataset = HiddenStateDataset(store.root)
    size = 3 * tokens
    batches: Any = (
        BufferedPadded(dataset, size) if kind == "padded"
        else BufferedPacked(dataset, size + 10, exact=kind == "exact")
    )  # fmt: skip
    first, second = [0, 2, 4], [5, 3, 1]
    for indices in (first, second, first):  # opens files, fills caches, makes the ring
        batches[indices]
    own = {memory for slot in batches._opened.ring._slots for memory in storages(slot.tensors())}
    own.add(batches._opened.counting.untyped_storage().data_ptr())
    with Storages() as seen:
        batches[second]
    assert seen.of_results <= own
    peak = traced_peak(lambda: batches[first])
    assert peak < 8 * tokens  # not even one sample's input ids
    items = traced_peak(lambda: [dataset[index] for index in first])
    assert items > 8 * tokens  # which is what the plain way takes, at least


def storages(tensors: dict[str, torch.Tensor]) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors.values()}


class Storages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The memory that the results of all operations lie in."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of_results: set[int] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        del types
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.of_results.add(result.untyped_storage().data_ptr())
        return result


def traced_peak(work: Callable[[], object]) -> int:
    """The most bytes that Python and numpy held at a time for some work."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_that_probe_sees_an_allocation() -> None:
    memory = torch.zeros(4)
    with Storages() as seen:
        memory.add_(1)
        kept = memory + 1
    assert seen.of_results == {memory.data_ptr(), kept.data_ptr()}


@KINDS
def test_a_batch_is_kept_while_as_many_others_are_read_as_are_held(
    dataset: HiddenStateDataset, kind: str
) -> None:
    batches = buffered(dataset, kind, held=2)
    turns = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    read: list[Any] = []
    for indices in turns:
        read.append(batches[indices])
        for kept, whose in list(zip(read, turns, strict=False))[-2:]:
            assert same(kept, collated(dataset, kind, whose))
    assert len({batch["hidden_states"].data_ptr() for batch in read}) == 3


@KINDS
@pytest.mark.parametrize("batch_sampler", [True, False])
@pytest.mark.parametrize("workers", [0, 1, 2])
def test_they_come_through_loaders(
    dataset: HiddenStateDataset, kind: str, workers: int, *, batch_sampler: bool
) -> None:
    shape: Any = "padded" if kind == "padded" else "packed"
    order = TokenBatches(dataset, MAX_TOKENS // 2, shape=shape, window=2)
    expected = [collated(dataset, kind, indices) for indices in order.turns(0)]
    way: dict[str, Any] = (
        {"batch_sampler": order, "collate_fn": as_read}
        if batch_sampler
        else {"batch_size": None, "sampler": order}
    )
    loader: DataLoader[Any] = DataLoader(buffered(dataset, kind), num_workers=workers, **way)
    assert len(expected) > 4
    for batch, wanted in zip(loader, expected, strict=True):
        assert same(batch, wanted)
        assert batch["hidden_states"].is_shared() == bool(workers)


@KINDS
def test_a_worker_that_is_ahead_leaves_alone_what_the_loop_holds(
    dataset: HiddenStateDataset, kind: str
) -> None:
    ahead, samples = 3, list(range(8))
    batches = buffered(dataset, kind, prefetch_factor=ahead)
    loader: DataLoader[Any] = DataLoader(
        batches, batch_size=None, sampler=[[n] for n in samples], num_workers=1,
        prefetch_factor=ahead,
    )  # fmt: skip
    reading: Any = iter(loader)
    for sample in samples:
        batch = next(reading)
        while reading._worker_result_queue.qsize() < min(ahead, len(samples) - 1 - sample):
            time.sleep(0.001)  # until it has read all that it may
        assert same(batch, collated(dataset, kind, [sample]))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resumed_loader_reads_on(dataset: HiddenStateDataset, workers: int) -> None:
    def loader() -> Any:  # noqa: ANN401 - untyped
        order = TokenBatches(dataset, MAX_TOKENS // 2, window=2)
        batches = BufferedPacked(dataset, MAX_TOKENS)
        return StatefulDataLoader(batches, batch_size=None, sampler=order, num_workers=workers)

    stopped, resumed = loader(), loader()
    reading: Iterator[Any] = iter(stopped)
    next(reading)
    next(reading)
    resumed.load_state_dict(stopped.state_dict())
    ids = [batch["id"] for batch in resumed]
    assert ids == [batch["id"] for batch in reading]
    assert ids


def test_a_pickled_one_leaves_its_memory_behind(dataset: HiddenStateDataset) -> None:
    batches = BufferedPacked(dataset, MAX_TOKENS)
    batches[[0]]
    raw = pickle.dumps(batches)
    copy = pickle.loads(raw)  # noqa: S301 - our own bytes
    assert len(raw) < batches[[0]]["hidden_states"].nbytes
    assert same(copy[[3, 4]], collated(dataset, "packed", [3, 4]))


@pytest.mark.parametrize(("kind", "indices"), [("padded", [10, 0, 1]), ("packed", [10, 3, 7])])
def test_what_does_not_fit_is_refused(
    dataset: HiddenStateDataset, kind: str, indices: list[int]
) -> None:
    assert sum(LENGTHS[index] for index in indices) <= MAX_TOKENS + 7
    with pytest.raises(ValueError, match="for memory of 80"):
        buffered(dataset, kind)[indices]


@KINDS
def test_a_batch_of_nothing_is_refused(dataset: HiddenStateDataset, kind: str) -> None:
    with pytest.raises(ValueError, match="no items"):
        buffered(dataset, kind)[[]]


@pytest.mark.parametrize("options", [{"held": 0}, {"prefetch_factor": 0}])
def test_no_memory_at_all_is_refused(dataset: HiddenStateDataset, options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        BufferedPadded(dataset, MAX_TOKENS, **options)


def test_too_little_shared_memory_is_said_before_it_is_touched(
    dataset: HiddenStateDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = SimpleNamespace(f_bavail=1, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda _: room)
    loader: DataLoader[Any] = DataLoader(
        BufferedPacked(dataset, MAX_TOKENS), batch_size=None, sampler=[[0, 1]], num_workers=1
    )
    with pytest.raises(OutOfSpace, match=r"bytes of shared memory, and 4096 are left.*--shm-size"):
        list(loader)


def test_where_there_is_cuda_a_slot_is_pinned_and_waits_for_its_copy(
    dataset: HiddenStateDataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of calls alone: a machine without CUDA cannot show more."""
    said: list[str] = []

    class Event:
        def __init__(self) -> None:
            self.name = f"event {len(said)}"

        def record(self, stream: str) -> None:
            said.append(f"record on {stream}")

        def synchronize(self) -> None:
            said.append("wait")

    def pin(memory: torch.Tensor) -> torch.Tensor:
        said.append("pin")
        return memory

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: "stream")
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    slots = ring.Ring(dataset, 8, 2)
    assert said == ["pin"] * 16
    said.clear()
    slots.take()
    assert said == []
    slots.take()
    assert said == ["record on stream"]
    slots.take()
    assert said == ["record on stream", "record on stream", "wait"]
