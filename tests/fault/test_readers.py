"""Readers of a shard that is being replaced: old bytes or new ones, never both, never an error."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

from hsstore.integrity.fsck import fsck
from hsstore.model.finding import Level
from hsstore.model.keys import ShardVersion
from hsstore.storage.claim import claimed
from hsstore.storage.commit import commit_replacement
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.reader import Reader
from hsstore.storage.stage import staging, take_over
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.steps import SteppedFilesystem
from hsstore.testing.stores import empty_store, fill, ids_of, key_of
from hsstore.training.dataset import HiddenStateDataset

LENGTHS = (5, 17, 9)
CODECS = ["none", "blosc-zstd"]
LEVELS: tuple[Level, ...] = ("quick", "data")


def states_of(store: Store, sample: int, generation: int) -> NDArray[Any]:
    """What a generation holds of a sample: every value differs between two of them."""
    states = seeded_states(store.identity, ids_of(sample, LENGTHS[sample]))
    return states if generation == 1 else states ^ np.uint16(generation)


def replace_by_others(root: Path, filesystem: Filesystem) -> None:
    """Commit the next generation of shard 0, with other states than those of the one before."""
    store = Store.open(root, filesystem=filesystem)
    origin = SeededSource(store.identity).origin()
    with claimed(filesystem, root, store.identity.uuid, 0) as claim:
        take_over(store, claim)
        committed, _ = store.committed()[0]
        version = ShardVersion(0, committed.generation + 1)
        with staging(store, version, claim) as writer:
            for sample in range(len(LENGTHS)):
                states = states_of(store, sample, version.generation)
                writer.add(store.samples.extent(sample), key_of(sample), states, origin)
            staged = writer.finish(range(len(LENGTHS)))
        commit_replacement(filesystem, root, staged, claim, store.identity, replaces=committed)


def whole_store(root: Path, codec: str) -> Store:
    return fill(empty_store(root, LENGTHS, shard_rows=64, codec=codec))


def generation_read(store: Store, sample: int, states: NDArray[Any], known: range) -> int:
    """The generation that states are of, wholly."""
    (found,) = (g for g in known if np.array_equal(states, states_of(store, sample, g)))
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_at_every_operation_of_a_replacement_each_read_is_of_one_generation(
    tmp_path: Path, codec: str, record_property: Callable[[str, object], None]
) -> None:
    store = whole_store(tmp_path / "store", codec)
    cached = Reader(store)
    latest: dict[int, int] = {}
    reads = 0

    def read_all(*_: object) -> None:
        nonlocal reads
        for reader in (cached, Reader(Store.open(store.root))):
            for sample in range(len(LENGTHS)):
                states = reader.read(sample, verify=True)
                found = generation_read(store, sample, states, range(1, 4))
                if reader is not cached:
                    assert found >= latest.get(sample, 1)
                    latest[sample] = found
                reads += 1

    operations = 0
    for generation in (2, 3):
        filesystem = SteppedFilesystem(read_all)
        replace_by_others(store.root, filesystem)
        operations += filesystem.operations
        read_all()
        assert set(latest.values()) == {generation}
    assert cached.read(0, verify=True) is not None
    record_property("reads", reads)
    print(f"{reads} reads at {operations} operations of replacements, 0 mixed or refused")  # noqa: T201


@pytest.mark.parametrize("codec", CODECS)
def test_a_reader_interrupted_anywhere_by_a_whole_replacement_reads_one_generation(
    tmp_path: Path, codec: str, record_property: Callable[[str, object], None]
) -> None:
    interrupted, generation, done = 0, 1, False
    store = whole_store(tmp_path / "store", codec)
    while not done:
        pending = interrupted

        def replaced(number: int, _: str, __: Path, pending: int = pending) -> None:
            if number == pending:
                replace_by_others(store.root, LOCAL)

        # Reads and looks into the whole store count.
        filesystem = SteppedFilesystem(replaced, looking=store.root.parts)
        reader = Reader(Store.open(store.root, filesystem=filesystem))
        for sample in range(len(LENGTHS)):
            states = reader.read(sample, verify=True)
            generation_read(store, sample, states, range(generation, generation + 2))
        done = filesystem.operations <= interrupted
        generation += not done
        interrupted += 1
    assert interrupted > 8
    record_property("interruptions", interrupted)
    print(f"{interrupted} readers interrupted by a replacement, 0 mixed or refused")  # noqa: T201


@pytest.mark.parametrize("level", LEVELS)
def test_fsck_beside_a_replacement_reports_no_damage(
    tmp_path: Path, level: Level, record_property: Callable[[str, object], None]
) -> None:
    store = whole_store(tmp_path / "store", "none")

    def check(*_: object) -> None:
        errors = [f for f in fsck(store.root, level, threads=1) if f.severity == "error"]
        assert errors == []

    filesystem = SteppedFilesystem(check)
    replace_by_others(store.root, filesystem)
    record_property("checks", filesystem.operations)


def test_dataloader_workers_read_through_replacements(tmp_path: Path) -> None:
    store = whole_store(tmp_path / "store", "none")
    dataset = HiddenStateDataset(store.root, verify="always")
    loader = DataLoader(dataset, batch_size=None, num_workers=1, persistent_workers=True)
    for generation in (1, 2, 3):
        for sample, item in enumerate(loader):
            states = item["hidden_states"].view(torch.int16).numpy().view(np.uint16)
            generation_read(store, sample, states, range(1, generation + 1))
        replace_by_others(store.root, LOCAL)
