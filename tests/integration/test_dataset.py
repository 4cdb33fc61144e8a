"""The dataset: what training reads from a store, in one process and in DataLoader workers."""

import logging
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from hsstore.errors import (
    InvalidDocument,
    SampleAbsent,
    SampleDamaged,
    SampleMissing,
    SnapshotChanged,
)
from hsstore.integrity.mending.waive import waive
from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing.sources import seeded_states
from hsstore.testing.stores import empty_store, fill, filled_store, ids_of, key_of, replace
from hsstore.training.collate import pad_collate
from hsstore.training.dataset import HiddenStateDataset, Item, Verify

LENGTHS = [5, 3, 9, 16, 1, 2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fill(empty_store(tmp_path / "store", LENGTHS))


def expected(store: Store, sample: int) -> torch.Tensor:
    states = seeded_states(store.identity, ids_of(sample, LENGTHS[sample]))
    tensor = torch.from_numpy(states)
    return tensor.view(torch.bfloat16) if states.dtype == np.uint16 else tensor


def damage(store: Store, shard: int) -> None:
    path = store.root / keys.shard_file(shard)
    raw = bytearray(path.read_bytes())
    raw[0] ^= 1
    path.write_bytes(raw)


def test_items_are_whole_samples_in_dataset_order(store: Store) -> None:
    dataset = HiddenStateDataset(store.root)
    assert len(dataset) == len(LENGTHS)
    assert dataset.lengths.tolist() == LENGTHS
    assert dataset.layers == (1, "final")
    for sample, length in enumerate(LENGTHS):
        item = dataset[sample]
        assert item["id"] == key_of(sample)
        assert item["input_ids"].dtype == torch.int64
        assert item["input_ids"].tolist() == ids_of(sample, length).tolist()
        assert item["loss_mask"].dtype == torch.bool
        assert item["loss_mask"].tolist() == [False] + [True] * (length - 1)
        assert item["hidden_states"].dtype == torch.bfloat16
        assert torch.equal(item["hidden_states"], expected(store, sample))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_states_come_in_the_stored_dtype(tmp_path: Path, dtype: str, codec: str) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS, dtype=dtype, codec=codec))
    states = HiddenStateDataset(store.root, verify="always")[2]["hidden_states"]
    assert states.dtype == getattr(torch, dtype)
    assert torch.equal(states, expected(store, 2))


def test_indexes_count_from_both_ends_and_no_further(store: Store) -> None:
    dataset = HiddenStateDataset(store.root)
    assert dataset[-1]["id"] == dataset[len(LENGTHS) - 1]["id"]
    for index in (len(LENGTHS), -len(LENGTHS) - 1):
        with pytest.raises(IndexError):
            dataset[index]


def test_a_store_that_is_not_filled_is_refused(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS), shards=range(1))
    with pytest.raises(SampleMissing, match=r"4 missing and 0 absent samples, first: sample-2,"):
        HiddenStateDataset(store.root)


def test_a_store_with_absent_samples_is_refused(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS), failing={key_of(1): "too long"})
    with pytest.raises(SampleAbsent, match=r"0 missing and 1 absent samples, first: sample-1;"):
        HiddenStateDataset(store.root)


def test_lacking_samples_are_left_out_counted_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = empty_store(tmp_path / "store", LENGTHS)
    fill(store, shards=range(2), failing={key_of(1): "too long"})
    with caplog.at_level(logging.WARNING):
        dataset = HiddenStateDataset(store.root, absent="exclude")
    assert dataset.excluded == 4
    assert [dataset[i]["id"] for i in range(len(dataset))] == [key_of(0), key_of(2)]
    assert dataset.lengths.tolist() == [5, 9]
    assert "3 missing and 1 absent samples" in caplog.text


@pytest.mark.parametrize(
    "options", [{"absent": "ignore"}, {"verify": "sometimes"}, {"on_damage": "hide"}]
)
def test_unknown_options_are_refused(store: Store, options: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="not one of"):
        HiddenStateDataset(store.root, **options)  # type: ignore[call-overload]


def test_verifying_finds_damage_that_a_plain_read_serves(store: Store) -> None:
    damage(store, 0)
    HiddenStateDataset(store.root)[0]
    modes: tuple[Verify, ...] = ("first", "always")
    for verify in modes:
        with pytest.raises(SampleDamaged, match="sample-0"):
            HiddenStateDataset(store.root, verify=verify)[0]


def test_the_first_read_alone_is_verified_if_so_asked(store: Store) -> None:
    dataset = HiddenStateDataset(store.root, verify="first")
    dataset[0]
    damage(store, 0)
    dataset[0]
    with pytest.raises(SampleDamaged):
        HiddenStateDataset(store.root, verify="first")[0]


def test_damaged_tokens_are_named_with_their_sample(store: Store) -> None:
    dataset = HiddenStateDataset(store.root)
    path = store.root / keys.tokens(0, 1)
    path.write_bytes(path.read_bytes() + b"x")
    dataset[0]
    with pytest.raises(SampleDamaged, match="sample #2 cannot be read"):
        dataset[2]


def test_states_can_be_read_into_memory_that_is_kept(store: Store) -> None:
    dataset = HiddenStateDataset(store.root)
    memory = torch.zeros((16, 2, 8), dtype=torch.bfloat16)
    item = dataset.read_into(2, memory)
    assert item["hidden_states"].data_ptr() == memory.data_ptr()
    assert torch.equal(item["hidden_states"], expected(store, 2))
    assert not memory[9:].any()


@pytest.mark.parametrize(
    "out",
    [
        torch.empty((8, 2, 8), dtype=torch.bfloat16),
        torch.empty((9, 2, 8), dtype=torch.float16),
        torch.empty((9, 8, 2), dtype=torch.bfloat16),
        torch.empty((9, 2, 16), dtype=torch.bfloat16)[..., ::2],
    ],
)
def test_memory_that_does_not_fit_is_refused(store: Store, out: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="out is"):
        HiddenStateDataset(store.root).read_into(2, out)


def test_a_batch_is_padded_with_zeros_on_the_right(store: Store) -> None:
    dataset = HiddenStateDataset(store.root)
    batch = pad_collate([dataset[0], dataset[1]])
    assert batch["id"] == [key_of(0), key_of(1)]
    assert batch["lengths"].tolist() == [5, 3]
    assert batch["attention_mask"].tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert batch["input_ids"][1, 3:].tolist() == [0, 0]
    assert batch["loss_mask"][1].tolist() == [False, True, True, False, False]
    assert batch["hidden_states"].shape == (2, 5, 2, 8)
    assert torch.equal(batch["hidden_states"][0], expected(store, 0))
    assert torch.equal(batch["hidden_states"][1, :3], expected(store, 1))
    assert not batch["hidden_states"][1, 3:].any()


def test_a_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no items"):
        pad_collate([])


@pytest.mark.parametrize(("start", "workers"), [("fork", 2), ("spawn", 1)])
def test_dataloader_workers_read_the_same(store: Store, start: str, workers: int) -> None:
    dataset = HiddenStateDataset(store.root)
    dataset[0]  # what the parent has open must not leak into its children
    loader: DataLoader[Item] = DataLoader(
        dataset,
        batch_size=4,
        num_workers=workers,
        collate_fn=pad_collate,
        multiprocessing_context=start,
    )
    batches = list(loader)
    assert [key for batch in batches for key in batch["id"]] == [key_of(i) for i in range(6)]
    assert torch.equal(batches[0]["hidden_states"][3], expected(store, 3))


def test_an_error_in_a_worker_names_its_sample(store: Store) -> None:
    damage(store, 0)
    dataset = HiddenStateDataset(store.root, verify="always")
    loader: DataLoader[Item] = DataLoader(dataset, batch_size=None, num_workers=1)
    with pytest.raises(SampleDamaged, match="'sample-0' cannot be read"):
        list(loader)


def test_a_pickled_dataset_keeps_its_snapshot(store: Store) -> None:
    dataset = HiddenStateDataset(store.root)
    dataset[0]
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own bytes
    assert copy.snapshot_id == dataset.snapshot_id
    assert torch.equal(copy[3]["hidden_states"], dataset[3]["hidden_states"])


def test_a_store_that_grew_is_told_and_its_snapshot_still_served(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS), shards=range(1))
    dataset = HiddenStateDataset(store.root, absent="exclude")
    dataset.check_snapshot()
    fill(store)
    with pytest.raises(SnapshotChanged):
        dataset.check_snapshot()
    assert len(dataset) == 2
    assert torch.equal(dataset[1]["hidden_states"], expected(store, 1))


def test_a_replaced_shard_is_served_from_its_replacement(store: Store) -> None:
    dataset = HiddenStateDataset(store.root, verify="always")
    replace(store, 1)
    assert torch.equal(dataset[2]["hidden_states"], expected(store, 2))
    with pytest.raises(SnapshotChanged):
        dataset.check_snapshot()


def test_a_shard_replaced_after_its_first_read_is_served_too(store: Store) -> None:
    dataset = HiddenStateDataset(store.root, verify="always")
    dataset[2]
    replace(store, 1)
    assert torch.equal(dataset[2]["hidden_states"], expected(store, 2))


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "torn"])
def test_a_shard_that_cannot_tell_what_it_lacks_is_left_out(tmp_path: Path, *, gone: bool) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS), failing={key_of(0): "too hot"})
    manifest = store.root / store.marker(0).manifest_name
    manifest.unlink() if gone else manifest.write_bytes(manifest.read_bytes()[:-9])
    lost = len(store.samples.shard_samples(0))
    dataset = HiddenStateDataset(store.root, absent="exclude")
    assert (dataset.excluded, len(dataset)) == (lost, len(LENGTHS) - lost)
    assert dataset[0]["id"] == key_of(lost)
    with pytest.raises(InvalidDocument, match=r"shard 0 lacks samples.*run: hsstore fsck"):
        HiddenStateDataset(store.root)


def test_the_remedy_for_absent_samples_can_be_pasted(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "a store", LENGTHS), failing={key_of(0): "too hot"})
    command = f"run: hsstore repair '{store.root}' --source transformers:PATH --apply, or"
    with pytest.raises(SampleAbsent, match=command):
        HiddenStateDataset(store.root)


def test_waived_samples_are_left_out_logged_and_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = {key_of(1): "broken", key_of(4): "broken"}
    store = filled_store(tmp_path / "store", failing=broken)
    waive(store, [key_of(1)], "too long", apply=True)
    with pytest.raises(SampleAbsent, match=r"0 missing and 1 absent samples, first: sample-4;"):
        HiddenStateDataset(store.root)
    waive(store, [key_of(4)], "too long", apply=True)
    with caplog.at_level("WARNING", logger="hsstore.training.dataset"):
        dataset = HiddenStateDataset(store.root)
    assert (dataset.waived, dataset.excluded, len(dataset)) == (2, 2, store.plan.samples - 2)
    assert "0 missing and 0 absent samples, and 2 waived ones" in caplog.text
    assert {key_of(1), key_of(4)}.isdisjoint(dataset[n]["id"] for n in range(len(dataset)))
