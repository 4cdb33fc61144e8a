"""The origin of hsstore: a disk that takes every write, has no room for it, and says so late.

All writes succeed and statvfs shows free space until a sync fails; what was read back before was
right, out of the page cache. Whatever was said to be committed must be so on the disk.
"""

import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsstore.errors import HsstoreError
from hsstore.extraction.extractor import extract
from hsstore.integrity.fsck import fsck
from hsstore.model.progress import Silent
from hsstore.storage import writer
from hsstore.storage.status import status
from hsstore.storage.store import Store
from hsstore.testing.power import Disk, thin_disk, why_not
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import contents, empty_store, fill
from hsstore.testing.verdicts import assert_complete, assert_exact, journalled
from hsstore_cli import extract as extract_command
from hsstore_cli.main import main

# What a disk says whose writes begin to fail, which ends with a journal that it cannot write.
ERRORS = ("waited for", "Input/output error", "Read-only file system")

PROMISED, POOL, ENOUGH = 64 << 20, 24 << 20, 128 << 20

Enlarge = Callable[[int], None]
Thin = tuple[Disk, Enlarge]


@pytest.fixture
def thin(monkeypatch: pytest.MonkeyPatch) -> Iterator[Thin]:
    if reason := why_not("ext4"):
        pytest.skip(reason)
    monkeypatch.setattr(writer, "SYNC_BYTES", 1 << 20)
    with thin_disk(PROMISED, POOL) as made:
        yield made


def store_of_40_mib(root: Path, codec: str) -> Store:
    lengths = np.random.default_rng(3).integers(1, 100, 200).tolist()
    return empty_store(root, lengths, hidden_size=1024, shard_rows=512, codec=codec)


@dataclass
class Reports(Silent):
    committed: set[int] = field(default_factory=set)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        if name == "shard-committed":
            self.committed.add(members["shard"])


def run_until_it_fails(store: Store, source: SeededSource, reports: Reports) -> str:
    """How an extraction onto a disk that is too small ended: it cannot have been completed."""
    try:
        summary = extract(store, source, progress=reports)
    except (HsstoreError, OSError) as error:
        return str(error)
    assert not summary.complete
    return "it stopped by itself"


def seen_anew(disk: Disk, enlarge: Enlarge) -> None:
    """What is on the disk, and no page cache; without room it could not even be mounted."""
    disk.unmount()
    enlarge(ENOUGH)
    disk.mount()


@pytest.mark.root
@pytest.mark.parametrize("codec", ["none", pytest.param("blosc-zstd", marks=pytest.mark.sweep)])
def test_what_was_committed_on_a_thin_device_is_there_and_the_rest_is_missing(
    tmp_path: Path, thin: Thin, codec: str, record_property: Callable[[str, object], None]
) -> None:
    disk, enlarge = thin
    store = store_of_40_mib(disk.mountpoint / "store", codec)
    source, reports = SeededSource(store.identity), Reports()
    ended = run_until_it_fails(store, source, reports)
    ended_again = run_until_it_fails(store, SeededSource(store.identity), reports)
    seen_anew(disk, enlarge)

    store = Store.open(store.root)
    whole = assert_exact(store.root)
    committed, kept = set(store.committed()), journalled(store.root)
    assert reports.committed <= committed
    in_shards = {s for shard in committed for s in store.samples.shard_samples(shard)}
    assert set(source.safe) <= in_shards | kept
    found = status(store)
    assert found.samples_committed == whole == len(in_shards)
    assert found.samples_missing + found.samples_staged == store.plan.samples - whole > 0
    check = fsck(store.root, "data")
    assert [f for f in check if f.severity == "error" and f.shard in committed] == []

    larger = tmp_path / "larger"
    subprocess.run(["/bin/cp", "-a", "--sparse=always", store.root, larger], check=True)
    again = SeededSource(store.identity)
    assert extract(Store.open(larger), again).complete
    assert not in_shards & set(again.asked)
    assert_complete(larger)
    assert contents(Store.open(larger)) == contents(
        fill(store_of_40_mib(tmp_path / "whole", codec))
    )
    counts = {"committed": whole, "journalled": len(kept), "missing": store.plan.samples - whole}
    record_property("samples", counts)
    print(f"{codec}: {ended!r}, then {ended_again!r}; samples {counts}, 0 violations")  # noqa: T201


@pytest.mark.root
def test_the_command_ends_with_one_line_and_8(
    tmp_path: Path, thin: Thin, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    disk, enlarge = thin
    store = store_of_40_mib(disk.mountpoint / "store", "none")
    source = SeededSource(store.identity)
    monkeypatch.setattr(extract_command, "open_source", lambda *_: source)
    typed = ["extract", str(store.root), "--source", "transformers:here", "--max-wait", "1"]
    for _ in ERRORS:
        assert main(typed) == 8
        told = capfd.readouterr().err.splitlines()
        assert [line for line in told if any(said in line for said in ERRORS)] == [told[-1]]
        assert told[-1].startswith("hsstore"), told
        print(told[-1])  # noqa: T201
    seen_anew(disk, enlarge)
    larger = Path(shutil.copytree(store.root, tmp_path / "larger"))
    assert main([*typed[:1], str(larger), *typed[2:]]) == 0
    assert_complete(larger)
