"""Reading samples: right bytes, or an error that names the sample."""

import os
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from hsstore.errors import (
    InvalidDocument,
    SampleAbsent,
    SampleDamaged,
    SampleMissing,
    StoreError,
)
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import Chunk
from hsstore.model.marker import INTENT_KIND
from hsstore.storage import reader as readers
from hsstore.storage.reader import Reader
from hsstore.storage.shard_file import encode_index
from hsstore.storage.store import Store
from hsstore.testing.sources import seeded_states
from hsstore.testing.stores import empty_store, fill, ids_of, key_of, replace

LENGTHS = [3, 9, 16, 1, 7, 4, 12]


@pytest.fixture(params=["none", "blosc-zstd"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return fill(empty_store(tmp_path / "store", LENGTHS, codec=request.param))


def expected(store: Store, sample: int) -> NDArray[Any]:
    return seeded_states(store.identity, ids_of(sample, LENGTHS[sample]))


def check(store: Store, reader: Reader, sample: int) -> None:
    states = reader.read(sample, verify=True)
    np.testing.assert_array_equal(states, expected(store, sample), strict=True)


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_other_dtypes_come_as_themselves(tmp_path: Path, dtype: str) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS, dtype=dtype))
    for sample in range(len(LENGTHS)):
        check(store, Reader(store), sample)
    assert Reader(store).read(0).dtype == dtype


def test_a_buffer_is_filled_and_returned(store: Store) -> None:
    reader = Reader(store)
    out = np.empty(reader.shape(2), np.uint16)
    assert reader.read(2, out, verify=True) is out
    np.testing.assert_array_equal(out, expected(store, 2))


@pytest.mark.parametrize(
    "out",
    [
        np.empty((16, 2, 8), np.int16),
        np.empty((15, 2, 8), np.uint16),
        np.empty((16, 2, 16), np.uint16)[:, :, ::2],
        np.empty((16, 8, 2), np.uint16).transpose(0, 2, 1),
    ],
    ids=["dtype", "shape", "strided", "transposed"],
)
def test_a_buffer_that_does_not_fit_is_refused(store: Store, out: NDArray[Any]) -> None:
    with pytest.raises(ValueError, match="out is"):
        Reader(store).read(2, out)


def test_a_shard_that_is_not_committed_is_missing(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS), shards=range(1))
    reader = Reader(store)
    check(store, reader, 0)
    with pytest.raises(SampleMissing, match=r"'sample-2'.*shard 1 is not committed.*extract"):
        reader.read(2)


def test_an_absent_sample_tells_why(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS), failing={key_of(1): "too hot"})
    reader = Reader(store)
    check(store, reader, 0)
    with pytest.raises(SampleAbsent, match=r"'sample-1'.*seeded, too hot"):
        reader.read(1)


def damage(store: Store, at: int) -> Path:
    path = store.root / keys.shard_file(1)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    return path


def test_a_damaged_byte_is_found_and_the_sample_named(store: Store) -> None:
    damage(store, 40)
    reader = Reader(store)
    with pytest.raises(SampleDamaged, match=r"'sample-2'.*chunk 0 of shard 1 is damaged.*fsck"):
        reader.read(2, verify=True)
    check(store, reader, 0)


def test_a_damaged_index_is_found_without_verifying(store: Store) -> None:
    damage(store, -10)
    with pytest.raises(SampleDamaged, match="the shard index is not the one"):
        Reader(store).read(2)


def test_a_truncated_file_is_damage(store: Store) -> None:
    path = store.root / keys.shard_file(1)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SampleDamaged, match="the shard file has"):
        Reader(store).read(2)


def test_a_file_truncated_after_it_was_opened_is_damage(store: Store) -> None:
    reader = Reader(store)
    check(store, reader, 2)
    with (store.root / keys.shard_file(1)).open("r+b") as file:
        file.truncate(10)
    with pytest.raises(SampleDamaged):
        reader.read(2)


@pytest.mark.parametrize("gone", ["file", "marker", "manifest"])
def test_what_is_gone_is_told(store: Store, gone: str) -> None:
    marker = store.marker(1)
    names = {"file": keys.shard_file(1), "marker": marker.name, "manifest": marker.manifest_name}
    reader = Reader(store)
    (store.root / names[gone]).unlink()
    error = SampleMissing if gone == "marker" else SampleDamaged
    with pytest.raises(error, match="'sample-2'"):
        reader.read(2, verify=True)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_a_file_that_cannot_be_opened_raises_one_error(store: Store) -> None:
    (store.root / keys.shard_file(1)).unlink()
    for _ in range(3):
        with pytest.raises(SampleDamaged):
            Reader(store).read(2)


def test_an_open_reader_follows_a_replaced_shard(store: Store) -> None:
    reader = Reader(store)
    check(store, reader, 2)
    damage(store, 40)
    replace(store, 1)
    check(store, reader, 2)
    assert reader._open[1].marker.version.generation == 2


def test_a_reader_opened_before_a_replacement_finds_the_new_generation(store: Store) -> None:
    reader = Reader(store)
    replace(store, 1)
    check(store, reader, 2)


def test_chunks_may_lie_in_any_order(tmp_path: Path) -> None:
    """As another Zarr writer leaves them: here, last chunk first."""
    store = fill(empty_store(tmp_path / "store", LENGTHS))
    path, marker = store.root / keys.shard_file(1), store.marker(1)
    manifest, raw, size = (
        store.manifest(marker),
        path.read_bytes(),
        store.identity.geometry.chunk_bytes,
    )
    moved = [
        Chunk(c.chunk, n * size, size, c.xxh3_64) for n, c in enumerate(reversed(manifest.chunks))
    ]
    index = encode_index(moved, store.identity.geometry)
    chunks = (raw[c.offset : c.offset + size] for c in reversed(manifest.chunks))
    path.write_bytes(b"".join(chunks) + index)
    document = marker.to_document() | {"index_xxh3_64": xxhash.xxh3_64_hexdigest(index)}
    (store.root / marker.name).write_bytes(seal(document))
    check(store, Reader(store), 2)


def test_many_threads_share_a_reader_that_keeps_few_shards_open(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers, "OPEN_SHARDS", 1)
    reader, failures = Reader(store), []

    def read(seed: int) -> None:
        try:
            for sample in np.random.default_rng(seed).integers(0, len(LENGTHS), 60).tolist():
                check(store, reader, sample)
        except BaseException as error:  # noqa: BLE001 - any failure of a thread counts
            failures.append(error)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(reader._open) == 1


def test_the_number_of_open_files_is_bounded(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers, "OPEN_SHARDS", 2)
    reader, before = Reader(store), open_files()
    for sample in range(len(LENGTHS)):
        reader.read(sample)
    assert open_files() - before == 2
    reader.refresh()
    assert open_files() == before


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_a_store_that_was_moved_is_the_same_store(store: Store, tmp_path: Path) -> None:
    shutil.move(store.root, tmp_path / "moved")
    moved = Store.open(tmp_path / "moved")
    check(moved, Reader(moved), 2)


@pytest.mark.parametrize("name", [keys.IDENTITY, keys.plan(0)])
@pytest.mark.parametrize("instead", ["folder", "link", "pipe", "socket"])
def test_what_is_no_plain_file_makes_no_store(store: Store, name: str, instead: str) -> None:
    path = store.root / name
    path.rename(store.root.parent / "aside")
    if instead == "folder":
        path.mkdir()
    elif instead == "link":
        path.symlink_to(store.root.parent / "aside")
    elif instead == "pipe":
        os.mkfifo(path)
    else:
        os.mknod(path, stat.S_IFSOCK | 0o600)
    with pytest.raises(StoreError, match=rf"{store.root}"):
        Store.open(store.root)


def test_a_later_plan_that_is_no_file_is_not_passed_over_for_an_earlier(store: Store) -> None:
    """The store may have been larger; only a check goes on with what the earlier plan says."""
    (store.root / keys.plan(1)).mkdir()
    with pytest.raises(InvalidDocument, match=r"the plan is no plain file.*hsstore fsck"):
        Store.open(store.root)
    assert Store.open(store.root, to_check=True).plan.generation == 0


def test_a_sample_mended_meanwhile_is_read(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS), failing={key_of(1): "too hot"})
    reader = Reader(store)
    with pytest.raises(SampleAbsent):
        reader.read(1)
    replace(store, 0)
    check(store, reader, 1)


def test_a_sample_committed_meanwhile_is_read(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "store", LENGTHS), shards=range(1))
    reader = Reader(store)
    fill(store)
    check(store, reader, 2)


@pytest.mark.parametrize("change", [{"store": "0" * 32}, {"writer": "0" * 16}, {"shard": 2}])
def test_a_manifest_of_something_else_is_no_manifest(
    store: Store, change: dict[str, object]
) -> None:
    marker = store.marker(1)
    raw = seal(store.manifest(marker).to_document() | change)
    (store.root / marker.manifest_name).write_bytes(raw)
    hashed = marker.to_document() | {"manifest_xxh3_128": xxhash.xxh3_128_hexdigest(raw)}
    (store.root / marker.name).write_bytes(seal(hashed))
    with pytest.raises(InvalidDocument, match="manifest is of another store or shard"):
        store.manifest(store.marker(1))


def test_an_intent_of_another_store_replaces_nothing(store: Store) -> None:
    foreign = store.marker(1).to_document(INTENT_KIND) | {"store": "0" * 32, "generation": 2}
    (store.root / keys.intent(ShardVersion(1, 2))).write_bytes(seal(foreign))
    path = store.root / keys.shard_file(1)
    path.write_bytes(path.read_bytes() + bytes(4))
    with pytest.raises(SampleDamaged):
        Reader(store).read(2)
    with pytest.raises(InvalidDocument, match="another store"):
        Reader(store)._open_replacement(1)


def test_a_marker_of_a_shard_that_the_plan_lacks_counts_for_nothing(store: Store) -> None:
    before = store.committed()
    (store.root / keys.marker(ShardVersion(99, 1), absent=False)).write_bytes(b"")
    assert store.committed() == before


@pytest.mark.parametrize("folder", keys.FOLDERS)
def test_a_store_with_a_link_for_a_folder_is_refused(store: Store, folder: str) -> None:
    (store.root / folder).rename(store.root.parent / "elsewhere")
    (store.root / folder).symlink_to(store.root.parent / "elsewhere")
    with pytest.raises(InvalidDocument, match=f"{folder} is a symbolic link"):
        Store.open(store.root)
    assert Store.open(store.root, to_check=True).plan == store.plan


def test_remedies_can_be_pasted(tmp_path: Path) -> None:
    store = empty_store(tmp_path / "a store", LENGTHS)
    command = f"run: hsstore extract '{store.root}' --source transformers:PATH"
    with pytest.raises(SampleMissing, match=f"{command} --shards 1$"):
        Reader(store).read(2)
    with pytest.raises(SampleMissing, match=f"{command}$"):
        store.marker(1)
