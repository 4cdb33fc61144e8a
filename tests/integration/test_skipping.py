"""Damaged samples that training leaves out: which, counted by whom, how many at most."""

import errno
import logging
import pickle
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from hsstore.errors import (
    HsstoreError,
    SampleAbsent,
    SampleDamaged,
    SampleMissing,
    StorageFailed,
)
from hsstore.model import keys
from hsstore.storage.filesystem import Buffer, Filesystem
from hsstore.storage.store import Store
from hsstore.testing.stores import empty_store, fill, key_of
from hsstore.training.buffered import BufferedPacked, BufferedPadded
from hsstore.training.collate import pack_collate, pad_collate
from hsstore.training.dataset import HiddenStateDataset
from hsstore.training.stream import HiddenStateStream

LENGTHS = [5, 3, 9, 16, 1, 2, 7, 4]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fill(empty_store(tmp_path / "store", LENGTHS))


def damage(store: Store, *samples: int) -> None:
    for sample in samples:
        extent = store.samples.extent(sample)
        path = store.root / keys.shard_file(extent.shard)
        raw = bytearray(path.read_bytes())
        raw[extent.first_row * store.identity.geometry.row_bytes] ^= 1
        path.write_bytes(raw)


def skipping(store: Store, max_skipped: int = 10) -> HiddenStateDataset:
    return HiddenStateDataset(
        store.root, verify="always", on_damage="skip", max_skipped=max_skipped
    )


def served(stream: HiddenStateStream) -> list[str]:
    return [item["id"] for item in stream]


def test_a_stream_leaves_damaged_samples_out(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    damage(store, 2, 5)
    dataset = skipping(store)
    stream = HiddenStateStream(dataset)
    whole = [key_of(n) for n in (0, 1, 3, 4, 6, 7)]
    with caplog.at_level(logging.WARNING):
        assert served(stream) == whole
        assert served(stream) == whole
    assert dataset.skipped == {key_of(2): "sample-damaged", key_of(5): "sample-damaged"}
    assert len(caplog.records) == 2, "each is logged once"
    assert "left out 2 of at most 10 samples: " in caplog.text
    assert f"'{key_of(5)}' cannot be read" in caplog.text
    assert "run: hsstore fsck" in caplog.text


def test_one_sample_that_is_asked_for_raises(store: Store) -> None:
    damage(store, 2)
    dataset = skipping(store)
    out = torch.empty((16, *dataset.row_shape), dtype=dataset.stored_dtype)
    with pytest.raises(SampleDamaged, match=key_of(2)):
        dataset[2]
    with pytest.raises(SampleDamaged, match=key_of(2)):
        dataset.read_into(2, out)
    assert dataset.skipped == {}


def test_without_the_option_nothing_is_skipped(store: Store) -> None:
    damage(store, 2)
    dataset = HiddenStateDataset(store.root, verify="always")
    with pytest.raises(SampleDamaged, match=key_of(2)):
        dataset.__getitems__([1, 2])
    with pytest.raises(SampleDamaged, match=key_of(2)):
        served(HiddenStateStream(dataset))


@pytest.mark.parametrize(("start", "workers"), [(None, 0), ("fork", 2), ("spawn", 1)])
def test_batches_become_smaller_and_workers_count_together(
    store: Store, start: str | None, workers: int
) -> None:
    damage(store, 2, 5)
    dataset = skipping(store)
    loader = DataLoader(
        dataset,
        batch_size=4,
        num_workers=workers,
        collate_fn=pad_collate,
        multiprocessing_context=start,
    )
    batches = [batch["id"] for batch in loader]
    assert batches == [[key_of(n) for n in (0, 1, 3)], [key_of(n) for n in (4, 6, 7)]]
    assert set(dataset.skipped) == {key_of(2), key_of(5)}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["padded", "packed"])
def test_batches_in_memory_that_is_used_again_become_smaller_likewise(
    store: Store, kind: str, workers: int
) -> None:
    """The longest sample is among the damaged: the rest is padded to its own longest."""
    damage(store, 3, 5)
    dataset, indices = skipping(store), [[0, 3, 1], [5, 4, 2, 5]]
    batches: Any = BufferedPadded(dataset, 48) if kind == "padded" else BufferedPacked(dataset, 48)
    collate: Any = pad_collate if kind == "padded" else partial(pack_collate, max_tokens=48)
    loader: DataLoader[Any] = DataLoader(
        batches, batch_size=None, sampler=indices, num_workers=workers
    )
    for batch, rest in zip(loader, [[0, 1], [4, 2]], strict=True):
        expected = collate([dataset[index] for index in rest])
        assert batch["id"] == expected["id"]
        tensors = batch.keys() - {"id"}
        assert all(torch.equal(batch[name], expected[name]) for name in tensors)
    assert set(dataset.skipped) == {key_of(3), key_of(5)}
    with pytest.raises(SampleDamaged, match="none of the 2 samples"):
        batches[[3, 5]]


def test_the_bound_holds_for_all_workers_together(store: Store) -> None:
    damage(store, 2, 5)
    loader = DataLoader(skipping(store, max_skipped=1), 4, num_workers=2, collate_fn=pad_collate)
    with pytest.raises(SampleDamaged, match="2 samples could not be read, more than max_skipped=1"):
        list(loader)


def test_beyond_the_bound_it_raises(store: Store) -> None:
    damage(store, 1, 2, 5)
    dataset = skipping(store, max_skipped=2)
    stream = iter(HiddenStateStream(dataset))
    assert [next(stream)["id"] for _ in range(3)] == [key_of(n) for n in (0, 3, 4)]
    with pytest.raises(SampleDamaged, match="3 samples could not be read") as caught:
        next(stream)
    assert key_of(5) in str(caught.value)
    assert "hsstore fsck" in str(caught.value)


def test_a_batch_of_which_nothing_is_left_raises(store: Store) -> None:
    damage(store, 2, 3)
    with pytest.raises(SampleDamaged, match="none of the 2 samples of a batch can be read"):
        skipping(store).__getitems__([2, 3])


def test_a_sample_that_was_mended_is_served_again(store: Store) -> None:
    damage(store, 2)
    dataset = skipping(store)
    assert len(dataset.__getitems__([2, 3])) == 1
    damage(store, 2)  # the same bit flips back
    assert len(dataset.__getitems__([2, -6])) == 2
    assert dataset.skipped == {key_of(2): "sample-damaged"}


def test_a_copy_in_another_process_counts_for_itself(store: Store) -> None:
    damage(store, 2, 5)
    dataset = skipping(store)
    list(dataset.readable([2]))
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own bytes
    list(copy.readable([5]))
    assert (len(dataset.skipped), len(copy.skipped)) == (1, 2)


class FailingDisk(Filesystem):
    """Reads of shard files end with an error."""

    def __init__(self, code: int) -> None:
        self.code = code

    def read_at(self, fd: int, into: Buffer, offset: int, path: Path) -> int:
        if path.parent.name == "0" and len(into) == 9 * 2 * 8 * 2:
            raise OSError(self.code, "the disk says no", str(path))
        return super().read_at(fd, into, offset, path)


def test_what_the_disk_cannot_read_is_skipped(store: Store) -> None:
    dataset = skipping(store)
    dataset._store.filesystem = FailingDisk(errno.EIO)
    assert [item["id"] for item in dataset.readable(range(4))] == [key_of(n) for n in (0, 1, 3)]
    assert dataset.skipped == {key_of(2): "storage-failed"}


def test_other_refusals_of_the_disk_are_not(store: Store) -> None:
    dataset = skipping(store)
    dataset._store.filesystem = FailingDisk(errno.EACCES)
    with pytest.raises(StorageFailed, match="sample #2 cannot be read"):
        list(dataset.readable(range(4)))
    assert dataset.skipped == {}


def vanish(store: Store) -> type[HsstoreError]:
    for marker in (store.root / "commit").iterdir():
        marker.unlink()
    return SampleMissing


def recommit_without(store: Store) -> type[HsstoreError]:
    """The shard of sample 2 as a second writer commits it that could not compute it."""
    shard = store.samples.extent(2).shard
    for name in ("commit", "manifest"):
        for path in (store.root / name).glob(f"{shard:08}-*"):
            path.unlink()
    (store.root / keys.shard_file(shard)).unlink()
    fill(store, failing={key_of(2): "too long"})
    return SampleAbsent


@pytest.mark.parametrize("lose", [vanish, recommit_without])
def test_lacking_samples_are_never_skipped(
    store: Store, lose: Callable[[Store], type[HsstoreError]]
) -> None:
    dataset = skipping(store)
    expected = lose(store)
    with pytest.raises(expected):
        list(dataset.readable(range(len(LENGTHS))))
    assert dataset.skipped == {}
