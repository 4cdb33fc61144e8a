from pathlib import Path

import pytest
import xxhash

from hsstore.errors import InvalidDocument
from hsstore.model import keys
from hsstore.model.geometry import Extent
from hsstore.storage.sample_table import SampleTable
from hsstore.storage.store import Store
from hsstore.testing.stores import empty_store

EXTENTS = [Extent(0, 0, 0, 3), Extent(1, 0, 4, 12), Extent(2, 1, 0, 16), Extent(3, 3, 0, 1)]
TABLE = SampleTable.of(EXTENTS, 16)


def test_extents_round_trip() -> None:
    assert len(TABLE) == 4
    assert [TABLE.extent(n) for n in range(4)] == EXTENTS
    assert TABLE.start.tolist() == [0, 4, 16, 48]


def test_a_shards_samples_are_a_range() -> None:
    found = [TABLE.shard_samples(shard) for shard in range(5)]
    assert found == [range(2), range(2, 3), range(3, 3), range(3, 4), range(4, 4)]


def test_the_digest_is_over_starts_then_lengths() -> None:
    raw = TABLE.start.astype("<i8").tobytes() + TABLE.length.astype("<i4").tobytes()
    assert TABLE.digest() == xxhash.xxh3_128_hexdigest(raw)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(empty_store(tmp_path / "store", [3, 12, 16, 1]).root)


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[1] ^= 8
    path.write_bytes(raw)


def test_the_arrays_are_read_first(store: Store) -> None:
    for path in (store.root / keys.PLAN / "00000000").iterdir():
        flip(path)
    assert store.samples.start.tolist() == [0, 4, 16, 32]


@pytest.mark.parametrize("array", [keys.SAMPLE_START, keys.SAMPLE_LENGTH])
@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_damaged_arrays_are_replaced_by_the_token_files(store: Store, array: str, how: str) -> None:
    path = store.root / keys.array_chunk(array, 0)
    if how == "flipped":
        flip(path)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:7])
    else:
        path.unlink()
    assert store.samples.length.tolist() == [3, 12, 16, 1]
    assert store.samples.start.tolist() == [0, 4, 16, 32]


def test_with_both_damaged_there_is_one_clear_error(store: Store) -> None:
    flip(store.root / keys.array_chunk(keys.SAMPLE_LENGTH, 0))
    flip(store.root / keys.tokens(0, 1))
    with pytest.raises(
        InvalidDocument, match=r"neither the sample arrays nor the token files.*fsck"
    ):
        _ = store.samples
