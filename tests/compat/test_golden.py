"""Stores that an earlier hsstore wrote open for ever, check clean and read the same."""

import importlib
import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from hsstore.errors import SampleAbsent
from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import repair
from hsstore.model import keys
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource

pytestmark = pytest.mark.zarr_compat

GOLDEN = Path(__file__).parent / "golden-1"
EXPECTED: dict[str, dict[str, Any]] = json.loads((GOLDEN / "expected.json").read_text())
Golden = tuple[Store, dict[str, str | None]]


@pytest.fixture(params=EXPECTED)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Golden]:
    with tarfile.open(GOLDEN / f"{request.param}.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = Store.open(tmp_path / "store")
    assert store.identity.uuid == EXPECTED[request.param]["uuid"]
    yield store, EXPECTED[request.param]["samples"]
    shutil.rmtree(store.root)


def test_every_archive_is_tried() -> None:
    assert {path.name for path in GOLDEN.glob("*.tar.xz")} == {f"{n}.tar.xz" for n in EXPECTED}


def test_it_reads_as_it_did(golden: Golden) -> None:
    store, samples = golden
    reader = Reader(store)
    assert len(samples) == store.plan.samples
    for sample, (key, digest) in enumerate(samples.items()):
        tokens = store.tokens(store.samples.extent(sample).shard)
        assert tokens.sample(sample - tokens.first_sample)[0] == key
        if digest is None:
            with pytest.raises(SampleAbsent, match=key):
                reader.read(sample)
        else:
            rows = reader.read(sample, verify=True)
            assert xxhash.xxh3_128_hexdigest(rows.tobytes()) == digest


def test_other_readers_find_the_same(golden: Golden) -> None:
    store, samples = golden
    array = importlib.import_module("zarr").open_group(store.root / keys.ZARR, mode="r")
    rows = np.ascontiguousarray(array["hidden_states"][:])
    for sample, digest in enumerate(samples.values()):
        extent = store.samples.extent(sample)
        first = int(store.samples.start[sample])
        if digest is not None:
            found = xxhash.xxh3_128_hexdigest(rows[first : first + extent.rows].tobytes())
            assert found == digest


def test_it_checks_clean_but_for_the_absent_sample(golden: Golden) -> None:
    store, samples = golden
    absent = tuple(key for key, digest in samples.items() if digest is None)
    found = [(finding.kind, finding.samples) for finding in fsck(store.root, threads=1)]
    assert found == [("sample-absent", absent)]


def test_it_can_still_be_completed(golden: Golden) -> None:
    store, samples = golden
    result = repair(store.root, source=lambda: SeededSource(store.identity), apply=True)
    assert result.corrected
    assert list(fsck(store.root, threads=1)) == []
    reader = Reader(Store.open(store.root))
    for sample, digest in enumerate(samples.values()):
        rows = reader.read(sample, verify=True)
        assert digest in (None, xxhash.xxh3_128_hexdigest(rows.tobytes()))
