"""A disk that is really full: what is journalled stays, what is committed is right."""

import subprocess
from pathlib import Path

import numpy as np
import pytest

from hsstore.errors import OUT_OF_SPACE
from hsstore.extraction.extractor import extract
from hsstore.storage import writer
from hsstore.storage.commit import committed_versions
from hsstore.storage.filesystem import LOCAL
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import contents, empty_store, fill
from hsstore.testing.verdicts import assert_complete, assert_exact, journalled


@pytest.fixture(autouse=True)
def journal_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SYNC_BYTES", 1)


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
