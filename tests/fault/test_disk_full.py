"""Refused operations, one at a time: what is journalled stays, what is committed is right."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hsstore.errors import OUT_OF_SPACE
from hsstore.extraction.extractor import extract
from hsstore.storage import writer
from hsstore.storage.commit import committed_versions
from hsstore.storage.filesystem import LOCAL
from hsstore.storage.store import Store
from hsstore.testing.faults import CHANGING, GROWING, FaultyFilesystem
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import contents, empty_store, fill
from hsstore.testing.verdicts import assert_complete, assert_exact, journalled

LENGTHS = (3, 4, 1, 5, 2, 4)


@pytest.fixture(autouse=True)
def journal_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SYNC_BYTES", 1)


def template(folder: Path, codec: str) -> Path:
    return empty_store(folder / codec, LENGTHS, shard_rows=32, codec=codec).root


def operations(template: Path, target: Path, kinds: frozenset[str]) -> int:
    shutil.copytree(template, target)
    filesystem = FaultyFilesystem(kinds)
    store = Store.open(target, filesystem=filesystem)
    extract(store, SeededSource(store.identity))
    assert_complete(target)
    return len(filesystem.operations)


def copies(template: Path, target: Path, kinds: frozenset[str]) -> Iterator[tuple[int, Path]]:
    """A fresh copy of a store for every operation that extracting it takes."""
    for n in range(operations(template, target, kinds)):
        shutil.rmtree(target)
        shutil.copytree(template, target)
        yield n, target


# Where not even a rename works, a folder cannot be marked as poisoned either.
ALL_BUT_RENAME = CHANGING - {"rename"}


@pytest.mark.parametrize(
    ("code", "forever", "kinds", "codec"),
    [
        (errno.ENOSPC, False, GROWING, "none"),
        (errno.ENOSPC, True, GROWING, "blosc-zstd"),
        pytest.param(errno.EDQUOT, True, GROWING, "none", marks=pytest.mark.sweep),
        pytest.param(errno.EFBIG, False, GROWING, "blosc-zstd", marks=pytest.mark.sweep),
        (errno.EIO, False, CHANGING, "none"),
        (errno.EIO, True, ALL_BUT_RENAME, "blosc-zstd"),
    ],
)
def test_any_refused_operation_costs_only_what_was_not_journalled(
    tmp_path: Path,
    code: int,
    forever: bool,  # noqa: FBT001 - a parameter of the test
    kinds: frozenset[str],
    codec: str,
) -> None:
    for n, root in copies(template(tmp_path, codec), tmp_path / "store", kinds):
        filesystem = FaultyFilesystem(kinds)
        filesystem.fail(n, code, forever=forever)
        store = Store.open(root, filesystem=filesystem)
        refused = refusal(store)
        if refused is not None:
            assert (refused.errno, refused.filename is not None) == (code, True), n
        assert assert_exact(root) in (0, len(LENGTHS))
        kept = journalled(root)
        filesystem.heal()
        again = SeededSource(store.identity)
        summary = extract(Store.open(root, filesystem=filesystem), again)
        assert summary.complete, n
        assert not kept & set(again.asked), f"operation {n} of {filesystem.operations}"
        assert len(again.asked) == len(set(again.asked))
        assert_complete(root)
        assert filesystem.touched_after_failure == [], n


def refusal(store: Store) -> OSError | None:
    try:
        extract(store, SeededSource(store.identity))
    except OSError as error:
        return error
    return None


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 1 MiB."""
    if os.geteuid():
        pytest.skip("mounting a filesystem takes root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "small", disk], check=True)
    yield disk
    subprocess.run(["/bin/umount", disk], check=True)


@pytest.mark.root
@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_extraction_goes_on_once_a_full_disk_is_enlarged(
    tmp_path: Path, small_disk: Path, codec: str
) -> None:
    expected = contents(fill(roomy(tmp_path / "elsewhere", codec)))
    store = roomy(small_disk / "store", codec)
    source = SeededSource(store.identity)
    with pytest.raises(OSError, match="No space left") as refused:
        extract(store, source)
    assert refused.value.errno in OUT_OF_SPACE
    before, kept = set(source.asked), journalled(store.root)
    assert kept or committed_versions(LOCAL, store.root)
    assert assert_exact(store.root) < store.plan.samples
    subprocess.run(["/bin/mount", "-o", "remount,size=16m", small_disk], check=True)
    assert extract(store, source).complete
    assert contents(store) == expected
    assert_complete(store.root)
    recomputed = [s for s in before if source.asked.count(s) > 1]
    assert not kept & set(recomputed)
    assert len(recomputed) <= 1


def roomy(root: Path, codec: str) -> Store:
    """A store that does not fit on the small disk."""
    lengths = np.random.default_rng(3).integers(1, 40, 40).tolist()
    return empty_store(root, lengths, hidden_size=512, shard_rows=512, codec=codec)
