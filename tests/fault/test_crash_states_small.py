"""Power cuts after every operation: a committed shard is right, and the same command goes on."""

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hsstore.errors import SampleDamaged, StoreError
from hsstore.extraction.extractor import extract
from hsstore.model import keys
from hsstore.storage import writer
from hsstore.storage.store import Store
from hsstore.testing.crash_states import RecordingFilesystem, write_state
from hsstore.testing.faults import FaultyFilesystem
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import empty_store, fill, replace
from hsstore.testing.verdicts import assert_complete, assert_exact

LENGTHS = (3, 16)
CODECS = ["none", pytest.param("blosc-zstd", marks=pytest.mark.sweep)]


@pytest.fixture(autouse=True)
def journal_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SYNC_BYTES", 1)


def extraction(store: Store) -> None:
    extract(store, SeededSource(store.identity))


def replacement(store: Store) -> None:
    replace(store, 0)


def cuts(
    root: Path, work: Callable[[Store], None], omitted: Callable[[Path], bool] = lambda _: False
) -> Iterator[Path]:
    """The stores that a power cut during ``work`` may leave, one after the other."""
    filesystem = RecordingFilesystem(root, omitted)
    work(Store.open(root, filesystem=filesystem))
    after = root.with_name("after")
    for state in filesystem.states:
        shutil.rmtree(after, ignore_errors=True)
        write_state(state, after)
        # The machine was away for a while, and came back with another boot id.
        for claim in (after / keys.CLAIM).iterdir():
            os.utime(claim, (0, time.time() - 61))
        yield after


@pytest.mark.parametrize("codec", CODECS)
def test_extraction_goes_on_after_any_power_cut(tmp_path: Path, codec: str) -> None:
    seen = 0
    for root in cuts(empty_store(tmp_path / "store", LENGTHS, codec=codec).root, extraction):
        seen += 1
        assert_exact(root)
        store = Store.open(root, filesystem=FaultyFilesystem())
        assert extract(store, SeededSource(store.identity)).complete
        assert_complete(root)
    assert seen > 60


@pytest.mark.parametrize("codec", CODECS)
def test_a_replacement_cut_short_leaves_the_old_or_the_new_generation(
    tmp_path: Path, codec: str
) -> None:
    generations = set()
    for root in cuts(fill(empty_store(tmp_path / "store", (5, 3), codec=codec)).root, replacement):
        assert_exact(root)
        store = Store.open(root, filesystem=FaultyFilesystem())
        assert extract(store, SeededSource(store.identity)).samples_extracted == 0
        assert assert_exact(root) == 2
        generations.add(store.marker(0).version.generation)
        assert not list((root / keys.INTENT).iterdir())
    assert generations == {1, 2}


@pytest.mark.parametrize(
    "omitted",
    [
        lambda path: path.name == "data",
        lambda path: path.suffix == ".json" or ".json." in path.name,
        lambda path: path.as_posix() == keys.MANIFEST,
        lambda path: path.as_posix().startswith("states.zarr"),
    ],
    ids=["shard file", "documents", "manifest/", "states.zarr/"],
)
def test_every_sync_is_needed(tmp_path: Path, omitted: Callable[[Path], bool]) -> None:
    store = empty_store(tmp_path / "store", LENGTHS)
    with pytest.raises((SampleDamaged, StoreError)):  # noqa: PT012 - any of the cuts
        for root in cuts(store.root, extraction, omitted):
            assert_exact(root)
