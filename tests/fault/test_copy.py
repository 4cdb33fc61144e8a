"""copy: the same store elsewhere, or a new one, from what is whole of a store and nothing else."""

import errno
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest

from hsstore.errors import (
    InvalidDocument,
    MalformedInput,
    OutOfSpace,
    Stopped,
    StorageFailed,
    StoreExists,
)
from hsstore.extraction.extractor import extract
from hsstore.integrity.copying.copy import copy_store
from hsstore.integrity.copying.cut import PARENT
from hsstore.integrity.copying.result import CopyResult
from hsstore.integrity.fsck import fsck
from hsstore.integrity.mending.waive import waive
from hsstore.integrity.repair import repair
from hsstore.model import keys
from hsstore.model.progress import Silent
from hsstore.storage.filesystem import Buffer, Filesystem
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.storage.waivers import read_waiver, waivers
from hsstore.testing import damage
from hsstore.testing.damage import CORPUS, SHARD, Damage
from hsstore.testing.scenarios import REPLAY, store_in
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import (
    LENGTHS,
    contents,
    empty_store,
    fill,
    filled_store,
    grown,
    grown_filled_store,
    key_of,
    replace,
)
from hsstore.testing.verdicts import assert_complete, assert_tidy

BLOCK = 512
CODECS = ["none", "blosc-zstd"]


@pytest.fixture(scope="module", params=CODECS)
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("filled") / "store"
    return filled_store(root, codec=request.param, failing={key_of(7): "not yet"}).root


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Store:
    return Store.open(copytree(filled, tmp_path / "store"))


def copied(store: Store | Path, destination: Path, **options: Any) -> CopyResult:  # noqa: ANN401 - passed on
    return copy_store(store, destination, min_free_bytes=0, **options)


def files(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in paths}


def errors(root: Path) -> set[str]:
    return {found.kind for found in fsck(root, threads=1) if found.severity == "error"}


def allocated(root: Path, name: str) -> int:
    return (root / name).stat().st_blocks * BLOCK


# -- the same store --------------------------------------------------------------------------------


def test_a_copy_is_the_same_store_byte_for_byte(store: Store, tmp_path: Path) -> None:
    result = copied(store, tmp_path / "copy")
    assert (result.copied, result.complete, result.same_store) == (store.plan.shards, True, True)
    assert files(tmp_path / "copy") == files(store.root)
    assert errors(tmp_path / "copy") == {"sample-absent"}
    again = copied(store, tmp_path / "copy")
    assert (again.copied, again.before, again.bytes_copied) == (0, store.plan.shards, 0)
    assert copied(tmp_path / "copy", tmp_path / "copy of the copy").complete
    assert files(tmp_path / "copy of the copy") == files(store.root)


def test_holes_stay_holes(tmp_path: Path) -> None:
    # Padding of several pages behind each sample.
    lengths = (1, 2, 3)
    store = fill(empty_store(tmp_path / "store", lengths, hidden_size=1024, chunk_rows=16,
                             shard_rows=64))  # fmt: skip
    copied(store, tmp_path / "copy")
    name = keys.shard_file(0)
    assert allocated(tmp_path / "copy", name) <= allocated(store.root, name)
    assert allocated(store.root, name) < (store.root / name).stat().st_size / 2


@pytest.mark.parametrize("damaged", ["store", "copy"])
def test_store_and_copy_repair_each_other(store: Store, tmp_path: Path, damaged: str) -> None:
    copied(store, tmp_path / "copy")
    whole = files(store.root)
    other = {"store": "copy", "copy": "store"}[damaged]
    damage.flip_bit(tmp_path / damaged / keys.shard_file(1), 100)
    repair(tmp_path / damaged, replica=tmp_path / other, apply=True, threads=1)
    assert errors(tmp_path / damaged) == {"sample-absent"}
    assert contents(Store.open(tmp_path / damaged)) == contents(Store.open(tmp_path / other))
    assert files(tmp_path / other) == whole


def test_the_source_is_not_touched(store: Store, tmp_path: Path) -> None:
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    paths = [store.root, *store.root.rglob("*")]
    before = [(p.lstat().st_mtime_ns, p.lstat().st_ctime_ns) for p in paths]
    copied(store, tmp_path / "copy")
    assert paths == [store.root, *store.root.rglob("*")]
    assert [(p.lstat().st_mtime_ns, p.lstat().st_ctime_ns) for p in paths] == before


# -- a damaged source ------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.name)
def test_what_is_damaged_is_named_and_left_out_and_the_rest_is_whole(
    tmp_path: Path, entry: Damage
) -> None:
    store = filled_store(tmp_path / "store")
    healthy = contents(store)
    entry.inflict(store)
    result = copied(store, tmp_path / "copy")
    copy = Store.open(tmp_path / "copy")
    assert copy.committed().keys() == {*range(store.plan.shards)} - {*result.damaged}
    named = {found.shard for found in result.findings}
    assert named == {*result.damaged} <= {SHARD, SHARD + 1}
    expected = {"shard-missing"} if result.damaged else set()
    expected |= {"tokens-missing"} if result.left_out else set()
    assert errors(copy.root) == expected
    if entry.remade:
        assert SHARD in result.damaged
    repair(copy.root, replica=store.root, source=lambda: SeededSource(store.identity), apply=True,
           threads=1)  # fmt: skip
    assert errors(copy.root) == set()
    assert contents(copy) == healthy


@pytest.mark.parametrize("lost", ["plan", "tokens"])
@pytest.mark.parametrize("mended", [False, True])
def test_a_document_that_was_left_out_is_told_until_the_copy_has_it(
    tmp_path: Path, lost: str, *, mended: bool
) -> None:
    store = grown_filled_store(tmp_path / "store")
    tokens = keys.tokens(store.plan.token_files[SHARD].generation, SHARD)
    name = {"plan": keys.plan(1), "tokens": tokens}[lost]
    damage.flip_bit(store.root / name)
    assert copied(store, tmp_path / "copy").left_out == [name]
    if mended:
        assert repair(store.root, apply=True, threads=1).corrected
    again = copied(Store.open(store.root), tmp_path / "copy")
    assert (again.left_out, again.complete) == ([name], False)
    assert repair(tmp_path / "copy", apply=True, threads=1).corrected
    assert errors(tmp_path / "copy") == set()
    assert copied(Store.open(store.root), tmp_path / "copy").left_out == []


class Rotten(Filesystem):
    """Reading a range of one file fails, ``times`` times: with an error, or with wrong bytes."""

    def __init__(self, path: Path, *, times: float, code: int | None) -> None:
        self._path = path
        self.times: float = times
        self._code = code

    def read_at(self, fd: int, into: Buffer, offset: int, path: Path) -> int:
        count = super().read_at(fd, into, offset, path)
        if path == self._path and self.times > 0:
            self.times -= 1
            if self._code is not None:
                raise OSError(self._code, os.strerror(self._code), str(path))
            memoryview(into).cast("B")[0] ^= 1
        return count


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_an_unreadable_shard_is_damage_and_the_rest_goes_on(
    store: Store, tmp_path: Path, codec: str | None
) -> None:
    path = store.root / keys.shard_file(SHARD)
    rotten = Rotten(path, times=float("inf"), code=errno.EIO)
    failing = Store.open(store.root, filesystem=rotten)
    result = copied(failing, tmp_path / "copy", codec=codec)
    assert result.damaged == [SHARD]
    assert {found.kind for found in result.findings} == {"data-unreadable"}
    assert len(Store.open(tmp_path / "copy").committed()) == store.plan.shards - 1
    assert_tidy(tmp_path / "copy")
    rotten.times = 0
    assert copied(failing, tmp_path / "copy", codec=codec).copied == 1
    assert contents(Store.open(tmp_path / "copy")) == contents(store)


def test_what_was_read_wrong_once_is_read_again(store: Store, tmp_path: Path) -> None:
    rotten = Rotten(store.root / keys.shard_file(SHARD), times=1, code=None)
    result = copied(Store.open(store.root, filesystem=rotten), tmp_path / "copy")
    assert (rotten.times, result.damaged) == (0, [])
    assert files(tmp_path / "copy") == files(store.root)


def test_a_link_in_the_source_is_not_followed(store: Store, tmp_path: Path) -> None:
    folder = store.root / keys.ZARR / keys.HIDDEN_STATES / "c" / str(SHARD)
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    tokens = store.root / keys.tokens(0, 0)
    tokens.rename(tmp_path / "tokens")
    tokens.symlink_to(tmp_path / "tokens")
    result = copied(store, tmp_path / "copy")
    assert (result.damaged, result.left_out) == ([SHARD], [keys.tokens(0, 0)])
    assert not [path for path in (tmp_path / "copy").rglob("*") if path.is_symlink()]


# -- a destination that is not what it seems -------------------------------------------------------


class Forgetful(Filesystem):
    """A disk that takes a staged file, says that it is synced, and has other bytes."""

    def sync(self, fd: int, path: Path) -> None:
        super().sync(fd, path)
        if path.name == keys.STAGED_DATA:
            os.pwrite(fd, b"\xff" * 8, 3)


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_nothing_vouches_for_what_the_disk_does_not_hold(
    store: Store, tmp_path: Path, codec: str | None
) -> None:
    with pytest.raises(StorageFailed, match="reads back otherwise"):
        copied(store, tmp_path / "copy", codec=codec, filesystem=Forgetful())
    assert Store.open(tmp_path / "copy").committed() == {}
    assert copied(store, tmp_path / "copy", codec=codec).complete
    assert contents(Store.open(tmp_path / "copy")) == contents(store)


def test_damage_at_the_copy_is_told_and_left_to_a_repair(store: Store, tmp_path: Path) -> None:
    copied(store, tmp_path / "copy")
    damage.resize(tmp_path / "copy" / keys.shard_file(SHARD), -100)
    result = copied(store, tmp_path / "copy")
    assert (result.differing, result.complete) == ([SHARD], False)
    repair(tmp_path / "copy", replica=store.root, apply=True, threads=1)
    assert errors(tmp_path / "copy") == {"sample-absent"}
    # It has a generation of its own now, and what it holds is the same.
    assert copied(store, tmp_path / "copy").differing == [SHARD]


def test_another_store_or_anything_else_is_never_written_over(store: Store, tmp_path: Path) -> None:
    other = filled_store(tmp_path / "other")
    kept = files(other.root)
    with pytest.raises(StoreExists, match="another store is there"):
        copied(store, other.root)
    with pytest.raises(StoreExists, match="another store is there"):
        copied(store, other.root, layers="final")
    assert files(other.root) == kept
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "notes").write_text("mine")
    for path in (folder, folder / "notes"):
        with pytest.raises(StoreExists, match="something other than a store"):
            copied(store, path)
    for path in (store.root, store.root / keys.QUARANTINE / "copy"):
        with pytest.raises(MalformedInput, match="the store itself, or in it"):
            copied(store, path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "other", "store"]


def test_what_does_not_fit_is_refused_before_anything_is_written(
    store: Store, tmp_path: Path
) -> None:
    for options in ({}, {"layers": "final"}):
        with pytest.raises(OutOfSpace, match="are missing"):
            copy_store(store, tmp_path / "copy", min_free_bytes=1 << 60, **options)  # type: ignore[arg-type]
        assert not (tmp_path / "copy").exists()
    with pytest.raises(StorageFailed, match="no such folder"):
        copied(store, tmp_path / "nowhere" / "copy")


# -- interrupted, and beside others ----------------------------------------------------------------


class Watch(Silent):
    """Does something at each commit, and counts the bytes that were told."""

    def __init__(self, committed: Callable[[int], None] = lambda _: None) -> None:
        self._committed = committed
        self.total = self.told = 0

    def start(self, total: int, done: int, unit: str) -> None:
        if unit == "B":
            self.total, self.told = total, done

    def advance(self, units: int) -> None:
        self.told += units

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        if name == "shard-committed":
            self._committed(members["shard"])


@pytest.mark.parametrize("codec", [None, *CODECS])
def test_a_stopped_copy_goes_on_behind_what_is_staged(
    store: Store, tmp_path: Path, codec: str | None
) -> None:
    asked, copied_bytes, stops = 0, 0, 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked % 9 == 0

    while True:
        try:
            result = copied(store, tmp_path / "copy", codec=codec, stop=stop)
        except Stopped:
            stops += 1
            assert stops < 100
            continue
        break
    assert stops > 1
    copied_bytes += result.bytes_copied
    assert contents(Store.open(tmp_path / "copy")) == contents(store)
    if result.same_store:
        assert files(tmp_path / "copy") == files(store.root)
    whole = copied(store, tmp_path / "whole", codec=codec)
    assert copied_bytes < whole.bytes_copied


def test_all_bytes_are_told(store: Store, tmp_path: Path) -> None:
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    for codec in (None, "blosc-zstd", "none"):
        watch = Watch()
        copied(store, tmp_path / f"copy {codec}", codec=codec, progress=watch)
        assert watch.told == watch.total > 0


def test_beside_an_extraction_of_the_source(tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store", LENGTHS, shard_rows=32)
    counts = []

    def copy(_: int) -> None:
        result = copied(store.root, tmp_path / "copy")
        counts.append((result.copied, result.before, len(result.missing)))
        assert errors(tmp_path / "copy") <= {"shard-missing"}

    extract(store, SeededSource(store.identity), progress=Watch(copy))
    shards = store.plan.shards
    assert counts == [(1, n, shards - n - 1) for n in range(shards)]
    assert files(tmp_path / "copy") == files(store.root)
    assert_complete(tmp_path / "copy")


def test_two_copies_at_once_do_no_harm(store: Store, tmp_path: Path) -> None:
    failed: list[BaseException] = []

    def run() -> None:
        try:
            copied(store.root, tmp_path / "copy")
        except BaseException as error:  # noqa: BLE001 - told below
            failed.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert copied(store, tmp_path / "copy").complete
    assert files(tmp_path / "copy") == files(store.root)


def test_a_decided_replacement_is_copied_as_it_is_in_place(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    REPLAY.prepare(tmp_path / "folder", "none")
    store = Store.open(store_in(tmp_path / "folder"))
    result = copied(store, tmp_path / "copy")
    assert "decided and not finished" in result.notes[0]
    assert {found.kind for found in fsck(tmp_path / "copy")} == {"sample-absent"}
    repair(store, apply=True)
    assert copied(store, tmp_path / "copy").replaced == 1
    assert contents(Store.open(tmp_path / "copy")) == contents(store)
    assert (store.root / store.marker(0).name).read_bytes() == (
        tmp_path / "copy" / store.marker(0).name
    ).read_bytes()
    assert errors(tmp_path / "copy") == set()


def test_a_copy_follows_growth_and_replacement(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", LENGTHS[:4])
    copied(store, tmp_path / "copy")
    store = fill(grown(store, LENGTHS[4:8], LENGTHS[8:]))
    replace(store, 0)
    result = copied(store, tmp_path / "copy")
    assert (result.replaced, result.complete) == (1, True)
    assert files(tmp_path / "copy") == files(store.root)
    # A copy that is ahead of its source stays as it is.
    earlier = copytree(tmp_path / "copy", tmp_path / "ahead")
    grown(Store.open(earlier), (5, 5))
    assert copied(store, earlier).complete


# -- a new store -----------------------------------------------------------------------------------


def test_encoded_and_back_it_has_the_same_digests(store: Store, tmp_path: Path) -> None:
    other = next(codec for codec in CODECS if codec != store.identity.codec)
    made = copied(store, tmp_path / "other", codec=other)
    assert not made.same_store
    assert made.uuid != store.identity.uuid
    back = copied(tmp_path / "other", tmp_path / "back", codec=store.identity.codec)
    assert made.complete
    assert back.complete
    for path in (tmp_path / "other", tmp_path / "back"):
        assert contents(Store.open(path)) == contents(store)
        assert errors(path) == {"sample-absent"}
        assert Store.open(path).identity.geometry == store.identity.geometry
    manifest = Store.open(tmp_path / "back").manifest(Store.open(tmp_path / "back").marker(0))
    through = manifest.origins[0].recorded[PARENT]
    assert through == f"{store.identity.uuid} {made.uuid}"
    assert manifest.samples[0].previous is None
    assert manifest.samples[0].statistics == store.manifest(store.marker(0)).samples[0].statistics


def test_a_part_has_the_states_of_its_parent_and_names_their_digests(
    store: Store, tmp_path: Path
) -> None:
    (tmp_path / "keys").write_text(f"{key_of(11)}\n{key_of(2)}\n")
    words = ["4-5", f"@{tmp_path / 'keys'}", key_of(9), "7"]
    result = copied(store, tmp_path / "part", layers="final,1", samples=words)
    part = Store.open(tmp_path / "part")
    taken = [2, 4, 5, 7, 9, 11]
    assert result.complete
    assert part.identity.capture.layers == ("final", 1)
    assert errors(part.root) == {"sample-absent"}
    listed = {s.key: s for k in part.committed() for s in part.manifest(part.marker(k)).samples}
    assert [part.key(n) for n in range(part.plan.samples)] == [key_of(n) for n in taken]
    before = contents(store)
    for number, parent in enumerate(taken):
        if parent == 7:
            continue
        states = Reader(part).read(number, verify=True)
        whole = Reader(store).read(parent, verify=True)
        np.testing.assert_array_equal(states, whole[:, [2, 0]], strict=True)
        assert listed[key_of(parent)].previous == before[key_of(parent)]
    again = copied(store, tmp_path / "part", layers="final,1", samples=words)
    assert (again.copied, again.before) == (0, part.plan.shards)
    with pytest.raises(StoreExists):
        copied(store, tmp_path / "part", layers="1,final", samples=words)
    with pytest.raises(StoreExists):
        copied(store, tmp_path / "part", layers="final,1", samples=words[:2])


def test_what_is_waived_is_waived_in_a_part_too(store: Store, tmp_path: Path) -> None:
    destination, words = tmp_path / "part", ["2", "7", "11"]
    assert copied(store, destination, layers="final", samples=words).complete
    assert errors(destination) == {"sample-absent"}
    waive(store, [key_of(7)], "too long", apply=True)
    for _ in range(2):
        assert copied(store, destination, layers="final", samples=words).before > 0
        assert errors(destination) == set()
    theirs, ours = read_waiver(Store.open(destination), 1), read_waiver(store, 7)
    assert (theirs.key, theirs.reason, theirs.when) == (ours.key, ours.reason, ours.when)
    assert copied(store, tmp_path / "none", samples=["2", "11"]).complete
    assert waivers(Store.open(tmp_path / "none")) == {}


def test_a_store_of_the_same_samples_from_elsewhere_is_another(
    store: Store, tmp_path: Path
) -> None:
    other = next(codec for codec in CODECS if codec != store.identity.codec)
    filled_store(tmp_path / "other", codec=other)
    with pytest.raises(StoreExists, match="another store"):
        copied(store, tmp_path / "other", codec=other)


def test_a_damaged_sample_costs_the_shards_it_belongs_to(store: Store, tmp_path: Path) -> None:
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    result = copied(store, tmp_path / "part", layers="3")
    part = Store.open(tmp_path / "part")
    assert len(result.damaged) == 1
    assert part.committed().keys() == {*range(part.plan.shards)} - {*result.damaged}
    assert {found.kind for found in result.findings} == {"chunk-damaged"}
    repair(store, source=lambda: SeededSource(store.identity), apply=True, threads=1)
    assert copied(store, tmp_path / "part", layers="3").complete
    assert errors(part.root) == set()


def test_shards_wait_for_samples_that_the_source_does_not_have_yet(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", shards=range(1))
    result = copied(store, tmp_path / "part", codec="blosc-zstd")
    assert (result.copied, result.missing, result.complete) == (1, [1, 2, 3], True)
    fill(store)
    assert copied(store, tmp_path / "part", codec="blosc-zstd").copied == 3
    assert contents(Store.open(tmp_path / "part")) == contents(store)


def test_a_part_needs_its_token_files(store: Store, tmp_path: Path) -> None:
    damage.flip_bit(store.root / keys.tokens(0, SHARD))
    with pytest.raises(InvalidDocument, match="the token file differs"):
        copied(store, tmp_path / "part", layers="3")
    assert not (tmp_path / "part").exists()


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("layers", "2", "no layer 2"),
        ("layers", "x", "'x' is no layer"),
        ("samples", ["12"], "no samples 12"),
        ("samples", ["5-4"], "no samples 5-4"),
        ("samples", ["nobody"], "no sample 'nobody'"),
        ("samples", ["@/nowhere/keys"], "cannot be read"),
        ("codec", "zip", "unknown codec"),
    ],
)
def test_what_is_not_there_is_refused(
    store: Store, tmp_path: Path, option: str, value: object, message: str
) -> None:
    with pytest.raises(MalformedInput, match=message):
        copied(store, tmp_path / "part", **{option: value})
    assert not (tmp_path / "part").exists()
