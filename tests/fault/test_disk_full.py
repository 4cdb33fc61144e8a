"""Every refused operation, one at a time: what is journalled is kept, what is committed is right."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsstore.extraction.extractor import extract
from hsstore.storage import writer
from hsstore.storage.store import Store
from hsstore.testing.faults import CHANGING, GROWING, FaultyFilesystem
from hsstore.testing.stores import empty_store
from hsstore.testing.verdicts import CountingSource, assert_complete, assert_exact, journalled

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
    extract(store, CountingSource(store.identity))
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
        (errno.EDQUOT, True, GROWING, "none"),
        (errno.EFBIG, False, frozenset({"write"}), "blosc-zstd"),
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
        try:
            extract(store, CountingSource(store.identity))
        except OSError as error:
            assert error.errno == code, n
            assert error.filename is not None
        assert assert_exact(root) in (0, len(LENGTHS))
        kept = journalled(root)
        filesystem.heal()
        again = CountingSource(store.identity)
        summary = extract(Store.open(root, filesystem=filesystem), again)
        assert summary.complete, n
        assert not kept & set(again.computed), f"operation {n} of {filesystem.operations}"
        assert len(again.computed) == len(set(again.computed))
        assert_complete(root)
        assert filesystem.touched_after_failure == [], n
