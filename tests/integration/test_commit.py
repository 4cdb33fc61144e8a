"""Committing and replacing shards, cut short between any two steps."""

import contextlib
import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hsstore.errors import ClaimedByAnother, InvalidDocument
from hsstore.extraction.extractor import extract
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import INTENT_KIND
from hsstore.model.progress import Silent
from hsstore.model.source import Extracted, Request
from hsstore.storage.claim import Claim, acquire, claimed
from hsstore.storage.commit import (
    commit_new,
    commit_replacement,
    read_marker,
    replay_intents,
)
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.leftovers import clear_leftovers
from hsstore.storage.reader import Reader
from hsstore.storage.stage import fence, open_stage, take_over
from hsstore.storage.store import Store
from hsstore.storage.writer import StagedShard
from hsstore.testing.damage import to_symlink
from hsstore.testing.faults import Crash, FaultyFilesystem
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import empty_store, fill, replace
from hsstore.testing.verdicts import assert_complete, assert_exact, leftovers

LENGTHS = (3, 4, 5)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return empty_store(tmp_path / "store", LENGTHS, shard_rows=32)


def stage(store: Store, claim: Claim, generation: int = 1) -> StagedShard:
    """A finished shard 0."""
    version = ShardVersion(0, generation)
    source, tokens = SeededSource(store.identity), store.tokens(0)
    writer = open_stage(store.filesystem, store.root, store.identity, version, claim)
    for sample in store.samples.shard_samples(0):
        (answer,) = source.states([Request(sample, *tokens.sample(sample)[:2])])
        assert isinstance(answer, Extracted)
        extent = store.samples.extent(sample)
        writer.add(extent, tokens.keys[sample], answer.states, source.origin())
    staged = writer.finish(range(3))
    writer.close()
    return staged


def claim_of(store: Store, writer: str = "a" * 16) -> Claim:
    return acquire(store.filesystem, store.root, store.identity.uuid, 0, writer)


def test_a_commit_leaves_a_marker_a_manifest_and_the_file_only(store: Store) -> None:
    fill(store)
    marker = store.marker(0)
    assert (marker.samples, marker.absent, marker.tokens) == (3, 0, 12)
    assert (store.root / marker.manifest_name).is_file()
    assert store.manifest(marker).data_bytes == marker.data_bytes
    assert leftovers(store.root) == []


def test_a_rivals_commit_is_not_overwritten(store: Store) -> None:
    with claimed(store.filesystem, store.root, store.identity.uuid, 0) as claim:
        staged = stage(store, claim)
        other = shutil.copytree(store.root / keys.STAGE, store.root / "aside")
        commit_new(store.filesystem, store.root, staged, claim)
        shutil.copytree(other, store.root / keys.STAGE, dirs_exist_ok=True)
        with pytest.raises(ClaimedByAnother, match="another writer"):
            commit_new(store.filesystem, store.root, staged, claim)
    assert assert_exact(store.root) == 3


def test_an_orphan_manifest_does_not_block_the_retry(store: Store) -> None:
    filesystem = FaultyFilesystem(frozenset({"link"}))
    filesystem.fail(2, 5)
    with pytest.raises(OSError, match="Input/output"):
        fill(Store.open(store.root, filesystem=filesystem))
    assert len(list((store.root / keys.MANIFEST).iterdir())) == 1
    fill(store)
    assert_complete(store.root)


def test_a_fenced_writer_publishes_nothing(store: Store) -> None:
    slow = claim_of(store)
    staged = stage(store, slow)
    swift = overtake(store)
    fence(store.filesystem, store.root, swift)
    for commit in (commit_new, replace_by):
        with pytest.raises(ClaimedByAnother):
            commit(store.filesystem, store.root, staged, slow)
    assert not store.committed()
    assert not list((store.root / keys.MANIFEST).iterdir())
    swift.release()
    slow.release()


def test_a_writer_fenced_after_its_last_look_at_the_claim_publishes_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = claim_of(store)
    staged = stage(store, slow)
    swift = overtake(store)
    fence(store.filesystem, store.root, swift)
    monkeypatch.setattr(slow, "verify", lambda: None)
    with pytest.raises(ClaimedByAnother):
        commit_new(store.filesystem, store.root, staged, slow)
    assert not store.committed()
    swift.release()
    slow.release()


def overtake(store: Store) -> Claim:
    """Another claim, as if the present holder had stalled."""
    (held,) = (store.root / keys.CLAIM).iterdir()
    held.unlink()
    return claim_of(store, "b" * 16)


def replace_by(filesystem: Filesystem, root: Path, staged: StagedShard, claim: Claim) -> None:
    store = Store.open(root)
    found = store.committed().get(0)
    replaces = found[0] if found else None
    commit_replacement(filesystem, root, staged, claim, store.identity, replaces=replaces)


@pytest.mark.parametrize("codec", ["none", pytest.param("blosc-zstd", marks=pytest.mark.sweep)])
def test_a_replacement_that_crashes_anywhere_is_the_old_or_the_new_generation(
    tmp_path: Path, codec: str
) -> None:
    template = fill(empty_store(tmp_path / "template", LENGTHS, shard_rows=32, codec=codec)).root
    root, generations, done, n = tmp_path / "store", [], False, 0
    while not done:
        shutil.copytree(template, root)
        filesystem = FaultyFilesystem()
        filesystem.crash(n)
        try:
            replace(Store.open(root, filesystem=filesystem), 0)
            done = True
        except Crash:
            pass
        decided = bool(list((root / keys.INTENT).iterdir()))
        before = Store.open(root).marker(0).version.generation
        assert assert_exact(root) == 3
        filesystem.heal()
        clear_leftovers(Store.open(root, filesystem=filesystem), Silent())
        after = Store.open(root).marker(0).version.generation
        assert after == (2 if decided else before)
        assert assert_exact(root) == 3
        if after == 2:
            assert leftovers(root) == []
            assert len(list((root / keys.COMMIT).iterdir())) == 1
            assert len(list((root / keys.MANIFEST).iterdir())) == 1
        replace(Store.open(root, filesystem=filesystem), 0)
        assert leftovers(root) == []
        generations.append(after)
        shutil.rmtree(root)
        n += 1
    assert generations == sorted(generations)
    assert set(generations) == {1, 2}


def test_a_replacement_needs_the_generation_that_it_was_made_from(store: Store) -> None:
    fill(store)
    replace(store, 0)
    filesystem, root, identity = store.filesystem, store.root, store.identity
    with claimed(filesystem, root, identity.uuid, 0) as claim:
        for generation, seen in ((2, 2), (2, 1), (3, 1), (3, None)):
            staged = stage(store, claim, generation)
            replaces = None if seen is None else ShardVersion(0, seen)
            with pytest.raises(ClaimedByAnother, match="another writer"):
                commit_replacement(filesystem, root, staged, claim, identity, replaces=replaces)
            shutil.rmtree(staged.folder)
    assert store.marker(0).version.generation == 2
    assert assert_exact(store.root) == 3


def test_an_intent_may_be_replayed_twice(store: Store) -> None:
    fill(store)
    filesystem = FaultyFilesystem(frozenset({"rename"}))
    crashing = Store.open(store.root, filesystem=filesystem)
    filesystem.crash(1)
    with pytest.raises(Crash):
        replace(crashing, 0)
    path = store.root / keys.intent(ShardVersion(0, 2))
    intent = path.read_bytes()
    for _ in range(2):
        path.write_bytes(intent)
        done = replay_intents(store.filesystem, store.root, store.identity, 0)
        assert done == [ShardVersion(0, 2)]
    assert replay_intents(store.filesystem, store.root, store.identity, 0) == []
    assert assert_exact(store.root) == 3


def test_an_intent_without_its_file_stays_and_says_so(store: Store) -> None:
    fill(store)
    filesystem = FaultyFilesystem(frozenset({"rename"}))
    filesystem.crash(1)
    with pytest.raises(Crash):
        replace(Store.open(store.root, filesystem=filesystem), 0)
    for folder in (store.root / keys.STAGE).iterdir():
        shutil.rmtree(folder)
    (store.root / keys.shard_file(0)).write_bytes(b"another")
    notes = Notes()
    clear_leftovers(store, notes)
    assert "lost its staged file" in notes.texts[0]
    assert "hsstore fsck" in notes.texts[0]
    assert list((store.root / keys.INTENT).iterdir())


def test_the_claim_that_a_killed_rival_did_not_come_to_publish_is_cleared(store: Store) -> None:
    """Its shard was committed by then: nobody else claims it any more."""
    fill(store)
    filesystem = FaultyFilesystem(frozenset({"link", "unlink"}))
    filesystem.crash(0)
    with pytest.raises(Crash):
        acquire(filesystem, store.root, store.identity.uuid, 0, "a" * 16)
    assert [name[:10] for name in store.filesystem.names(store.root / keys.CLAIM)] == [".00000000-"]
    clear_leftovers(store, Silent())
    assert leftovers(store.root) == []


@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_readers_are_served_while_a_replacement_is_pending(tmp_path: Path, codec: str) -> None:
    """The data of the new generation differs, though index and size may not."""
    store = fill(empty_store(tmp_path / "store", LENGTHS, shard_rows=32, codec=codec))
    filesystem = FaultyFilesystem(frozenset({"rename", "link"}))
    claim = acquire(filesystem, store.root, store.identity.uuid, 0, "a" * 16)
    writer = open_stage(filesystem, store.root, store.identity, ShardVersion(0, 2), claim)
    for sample, rows in enumerate(LENGTHS):
        states = np.full((rows, 2, 8), 3, np.uint16)
        origin = SeededSource(store.identity).origin()
        writer.add(store.samples.extent(sample), f"sample-{sample}", states, origin)
    staged = writer.finish(range(3))
    writer.close()
    # Manifest, intent, second name and the file are in place; the marker is not.
    filesystem.crash(4)
    with pytest.raises(Crash):
        replace_by(filesystem, store.root, staged, claim)
    filesystem.heal()
    claim.release()
    reader = Reader(store)
    for sample in range(3):
        assert (reader.read(sample, verify=True) == 3).all()
    clear_leftovers(store, Silent())
    assert (reader.read(1, verify=True) == 3).all()
    assert (Reader(store).read(1, verify=True) == 3).all()


class Notes(Silent):
    def __init__(self) -> None:
        self.texts: list[str] = []

    def note(self, text: str) -> None:
        self.texts.append(text)


def crash_at(store: Store, kind: str, n: int) -> None:
    filesystem = FaultyFilesystem(frozenset({kind}))
    filesystem.crash(n)
    with pytest.raises(Crash):
        fill(Store.open(store.root, filesystem=filesystem))


def test_a_whole_file_without_a_marker_is_committed_without_computing_it_again(
    store: Store,
) -> None:
    crash_at(store, "link", 3)  # claim, manifest and file were linked
    assert (store.root / keys.shard_file(0)).exists()
    source = SeededSource(store.identity)
    summary = extract(store, source)
    assert (summary.complete, summary.shards_committed, source.asked) == (True, 1, [])
    assert_complete(store.root)


def lose_marker(store: Store) -> Path:
    fill(store)
    (store.root / store.marker(0).name).unlink()
    return store.root / keys.shard_file(0)


def test_a_lost_marker_is_written_again(store: Store) -> None:
    lose_marker(store)
    source = SeededSource(store.identity)
    assert extract(store, source).complete
    assert source.asked == []


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "damage",
    [
        flip,
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes() + b"x"),
        lambda path: path.write_bytes(b""),
        lambda path: [m.unlink() for m in (path.parents[5] / keys.MANIFEST).iterdir()],
    ],
    ids=["flipped", "shorter", "longer", "empty", "without manifest"],
)
def test_a_file_that_nothing_proves_is_set_aside_not_deleted(
    store: Store, damage: Callable[[Path], object]
) -> None:
    path = lose_marker(store)
    damage(path)
    found = path.read_bytes()
    source = SeededSource(store.identity)
    assert extract(store, source).complete
    assert source.asked == [0, 1, 2]
    (aside,) = (store.root / keys.QUARANTINE).iterdir()
    assert aside.read_bytes() == found
    assert_complete(store.root)


def test_a_link_in_place_of_a_file_proves_nothing_and_is_set_aside(store: Store) -> None:
    path = lose_marker(store)
    path.rename(store.root.parent / "elsewhere")
    path.symlink_to(store.root.parent / "elsewhere")
    source = SeededSource(store.identity)
    assert extract(store, source).complete
    assert source.asked == [0, 1, 2]
    (aside,) = (store.root / keys.QUARANTINE).iterdir()
    assert aside.is_symlink()
    assert aside.stat().st_size
    assert_complete(store.root)


def test_a_manifest_that_is_a_link_proves_nothing(store: Store) -> None:
    path = lose_marker(store)
    (manifest,) = (store.root / keys.MANIFEST).glob("00000000-*")
    to_symlink(manifest)
    found = path.read_bytes()
    assert extract(store, SeededSource(store.identity)).complete
    (aside,) = (store.root / keys.QUARANTINE).iterdir()
    assert aside.read_bytes() == found
    assert_complete(store.root)


def test_a_repair_after_a_crash_before_the_last_step_keeps_the_committed_file(store: Store) -> None:
    """The staged name of a committed file is never written through."""
    filesystem = FaultyFilesystem(frozenset({"unlink"}))
    crashing = Store.open(store.root, filesystem=filesystem)
    filesystem.crash(len(LENGTHS))
    with contextlib.suppress(Crash):
        fill(crashing)
    linked = store.root / keys.shard_file(0)
    if linked.stat().st_nlink == 1:
        pytest.fail("the crash was to leave the staged name beside the committed one")
    replace(store, 0)
    assert assert_exact(store.root) == 3
    assert leftovers(store.root) == []


def decided(store: Store) -> Path:
    """The intent of a decided second generation of shard 0."""
    filesystem = FaultyFilesystem(frozenset({"rename"}))
    filesystem.crash(1)
    with pytest.raises(Crash):
        replace(Store.open(store.root, filesystem=filesystem), 0)
    return store.root / keys.intent(ShardVersion(0, 2))


def foreign(store: Store, path: Path) -> None:
    marker = read_marker(store.filesystem, path, INTENT_KIND)
    path.write_bytes(seal(dataclasses.replace(marker, store="f" * 32).to_document(INTENT_KIND)))


def misnamed(store: Store, path: Path) -> None:
    path.rename(store.root / keys.intent(ShardVersion(0, 3)))


def without_manifest(store: Store, path: Path) -> None:
    (store.root / read_marker(store.filesystem, path, INTENT_KIND).manifest_name).unlink()


def with_a_rotten_manifest(store: Store, path: Path) -> None:
    manifest = store.root / read_marker(store.filesystem, path, INTENT_KIND).manifest_name
    raw = bytearray(manifest.read_bytes())
    raw[40] ^= 1
    manifest.write_bytes(raw)


@pytest.mark.parametrize("damage", [foreign, misnamed, without_manifest, with_a_rotten_manifest])
def test_an_intent_that_decides_nothing_touches_nothing(
    store: Store, damage: Callable[[Store, Path], None]
) -> None:
    fill(store)
    damage(store, decided(store))
    with pytest.raises(InvalidDocument):
        replay_intents(store.filesystem, store.root, store.identity, 0)
    assert store.marker(0).version.generation == 1
    assert assert_exact(store.root) == 3


def test_an_intent_older_than_the_commit_is_only_removed(store: Store) -> None:
    fill(store)
    path = decided(store)
    intent = path.read_bytes()
    clear_leftovers(store, Silent())
    replace(store, 0)
    path.write_bytes(intent)
    replay_intents(store.filesystem, store.root, store.identity, 0)
    assert store.marker(0).version.generation == 3
    assert not path.exists()
    assert assert_exact(store.root) == 3


def test_a_writer_overtaken_after_its_intent_leaves_the_file_to_its_successor(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(store)
    slow = claim_of(store)
    staged = stage(store, slow, 2)
    looks = iter([True, False])  # before the intent, and after it

    def verify() -> None:
        if not next(looks):
            swift = overtake(store)
            take_over(store, swift)
            swift.release()
            raise ClaimedByAnother("taken over")

    monkeypatch.setattr(slow, "verify", verify)
    with pytest.raises(ClaimedByAnother):
        replace_by(store.filesystem, store.root, staged, slow)
    assert store.marker(0).version.generation == 2
    assert assert_exact(store.root) == 3
    monkeypatch.undo()
    slow.release()
