"""What a new writer of a shard makes of the staging folders it finds."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from shutil import rmtree

import numpy as np
import pytest

from hsstore.extraction.extractor import extract
from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import repair
from hsstore.model import keys
from hsstore.model.document import seal, unseal
from hsstore.model.keys import ShardVersion
from hsstore.model.source import Failed, Origin
from hsstore.storage import claim as claims
from hsstore.storage.claim import Claim, acquire
from hsstore.storage.filesystem import LOCAL, Buffer, Filesystem
from hsstore.storage.stage import open_stage, take_over
from hsstore.storage.status import status
from hsstore.storage.store import Store
from hsstore.storage.writer import ShardWriter
from hsstore.testing import damage
from hsstore.testing.damage import SHARD
from hsstore.testing.grounds import decided
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.stores import empty_store, ids_of, key_of

LENGTHS = (3, 4, 5)


@pytest.fixture(params=["none", "blosc-zstd"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return empty_store(tmp_path / "store", LENGTHS, shard_rows=32, codec=request.param)


def hold(store: Store, writer: str = "a" * 16) -> Claim:
    return acquire(store.filesystem, store.root, store.identity.uuid, 0, writer)


def opened(store: Store, claim: Claim, generation: int = 1) -> ShardWriter:
    return open_stage(
        store.filesystem, store.root, store.identity, ShardVersion(0, generation), claim
    )


def add(store: Store, writer: ShardWriter, *samples: int) -> None:
    for sample in samples:
        states = seeded_states(store.identity, ids_of(sample, LENGTHS[sample]))
        origin = SeededSource(store.identity).origin()
        writer.add(store.samples.extent(sample), key_of(sample), states, origin)


def staged(store: Store, *samples: int) -> Path:
    """A folder that an orderly writer left behind."""
    claim = hold(store)
    writer = opened(store, claim)
    add(store, writer, *samples)
    writer.close()
    claim.release()
    return writer.folder


def stall(store: Store, monkeypatch: pytest.MonkeyPatch, *samples: int) -> tuple[Claim, Path]:
    """A writer of another machine that fell silent, its samples journalled."""
    monkeypatch.setattr(claims, "_started", lambda _: 7)
    claim = hold(store)
    writer = opened(store, claim)
    add(store, writer, *samples)
    writer.sync()
    monkeypatch.undo()
    (held,) = (store.root / keys.CLAIM).iterdir()
    holder = writer.folder / keys.STAGED_HOLDER
    for path in (held, holder):
        document = unseal(path.read_bytes(), claims.KIND)
        document["boot"] = "another"
        path.write_bytes(seal(document))
    os.utime(held, (0, held.stat().st_mtime - 61))
    return claim, writer.folder


def test_an_orderly_writers_file_is_continued_in_place(store: Store) -> None:
    inode = (staged(store, 0, 2) / keys.STAGED_DATA).stat().st_ino
    claim = hold(store, "b" * 16)
    writer = opened(store, claim)
    assert writer.journal.samples.keys() == {0, 2}
    assert (writer.folder / keys.STAGED_DATA).stat().st_ino == inode
    writer.close()
    claim.release()


def test_a_silent_writers_samples_are_copied(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _, folder = stall(store, monkeypatch, 0, 2)
    inode = (folder / keys.STAGED_DATA).stat().st_ino
    claim = hold(store, "b" * 16)
    writer = opened(store, claim)
    assert writer.journal.samples.keys() == {0, 2}
    assert (writer.folder / keys.STAGED_DATA).stat().st_ino != inode
    assert [path.name for path in (store.root / keys.STAGE).iterdir()] == [writer.folder.name]
    writer.close()
    claim.release()


def test_a_silent_writers_file_is_not_continued_by_its_successors_successor(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one gives up before it opened anything."""
    _, folder = stall(store, monkeypatch, 0)
    inode = (folder / keys.STAGED_DATA).stat().st_ino
    hold(store, "b" * 16).release()
    claim = hold(store, "c" * 16)
    writer = opened(store, claim)
    assert writer.journal.samples.keys() == {0}
    assert (writer.folder / keys.STAGED_DATA).stat().st_ino != inode
    writer.close()
    claim.release()


@pytest.mark.parametrize("padding", [False, True])
def test_a_journalled_sample_that_was_damaged_is_forgotten(store: Store, *, padding: bool) -> None:
    folder = staged(store, 0, 2)
    path = folder / keys.STAGED_DATA
    raw = bytearray(path.read_bytes())
    # Sample 0 has 3 of its chunk's 4 rows of 32 bytes.
    raw[3 * 32 + 5 if padding and store.identity.codec == "none" else 5] ^= 1
    path.write_bytes(raw)
    claim = hold(store, "b" * 16)
    writer = opened(store, claim)
    assert writer.journal.samples.keys() == {2}
    add(store, writer, 0, 1)
    writer.close()
    again = opened(store, claim)
    assert again.journal.samples.keys() == {0, 1, 2}
    again.close()
    claim.release()


def test_an_unreadable_sample_is_forgotten(store: Store) -> None:
    staged(store, 0, 2)

    class Unreadable(Filesystem):
        def read_at(self, fd: int, into: Buffer, offset: int, path: Path) -> int:
            if offset == 0:
                raise OSError(errno.EIO, "Input/output error", str(path))
            return super().read_at(fd, into, offset, path)

    claim = hold(store, "b" * 16)
    writer = open_stage(Unreadable(), store.root, store.identity, ShardVersion(0, 1), claim)
    assert writer.journal.samples.keys() == {2}
    writer.close()
    claim.release()


def test_a_sample_that_was_damaged_and_then_failed_stays_failed(store: Store) -> None:
    folder = staged(store, 0)
    raw = (folder / keys.STAGED_DATA).read_bytes()
    (folder / keys.STAGED_DATA).write_bytes(bytes(len(raw)))
    claim = hold(store, "b" * 16)
    writer = opened(store, claim)
    failed = Failed(0, "gone", "for good")
    writer.fail(store.samples.extent(0), key_of(0), failed, SeededSource(store.identity).origin())
    writer.close()
    again = opened(store, claim)
    assert not again.journal.samples
    assert again.journal.failures.keys() == {0}
    again.close()
    claim.release()


def test_work_for_another_generation_is_not_taken_over(store: Store) -> None:
    staged(store, 0)
    claim = hold(store, "b" * 16)
    writer = opened(store, claim, generation=2)
    assert not writer.journal.samples
    assert (writer.folder / keys.STAGED_JOURNAL).stat().st_size == 0
    writer.close()
    claim.release()


def test_both_origins_of_a_resumed_shard_are_kept(store: Store) -> None:
    staged(store, 0)
    claim = hold(store, "b" * 16)
    writer = opened(store, claim)
    states = seeded_states(store.identity, ids_of(1, LENGTHS[1]))
    other = Origin(SeededSource(store.identity).origin().match, {"engine": "another"})
    writer.add(store.samples.extent(1), key_of(1), states, other)
    writer.close()
    again = opened(store, claim)
    assert [o.recorded["engine"] for o in again.journal.origins] == ["seeded", "another"]
    assert [again.journal.samples[s].origin for s in (0, 1)] == [0, 1]
    again.close()
    claim.release()


def test_a_torn_journal_ends_where_it_tore(store: Store) -> None:
    folder = staged(store, 0, 1)
    path = folder / keys.STAGED_JOURNAL
    path.write_bytes(path.read_bytes()[:-1])
    claim = hold(store, "b" * 16)
    writer = opened(store, claim)
    assert writer.journal.samples.keys() == {0}
    add(store, writer, 1, 2)
    assert np.isin([0, 1, 2], list(writer.journal.settled())).all()
    writer.close()
    again = opened(store, claim)
    assert again.journal.samples.keys() == {0, 1, 2}
    again.close()
    claim.release()
    assert LOCAL.exists(again.folder)


# -- what is no file -------------------------------------------------------------------------------


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("hurt", [damage.to_symlink, damage.to_folder, damage.to_pipe])
@pytest.mark.parametrize("name", [keys.STAGED_DATA, keys.STAGED_JOURNAL, keys.STAGED_HOLDER])
def test_a_folder_with_anything_but_files_is_set_aside_and_the_shard_is_filled(
    store: Store, name: str, hurt: Callable[[Path], None]
) -> None:
    folder = staged(store, 0, 1)
    (folder / keys.STAGED_HOLDER).write_bytes(b"")
    before = (folder / name).read_bytes()
    hurt(folder / name)
    (warned,) = [f for f in fsck(store.root, "quick") if f.severity == "warning"]
    place = (folder / name).relative_to(store.root).as_posix()
    assert (warned.kind, warned.path) == ("foreign-file", place)
    status(store)
    source = SeededSource(store.identity)
    assert extract(store, source).complete
    assert sorted(source.asked) == [0, 1, 2]
    (aside,) = (store.root / keys.QUARANTINE).iterdir()
    assert name in listed(aside)
    if (aside / name).is_symlink():
        moved = folder / f".{name}.moved"
        assert (aside / moved.name).read_bytes() == before
    assert listed(store.root / keys.STAGE) == []
    assert [*fsck(store.root)] == []


@pytest.mark.parametrize("hurt", [damage.to_symlink, damage.to_folder, damage.to_pipe])
def test_a_repair_sets_such_a_folder_aside_and_says_so(
    store: Store, hurt: Callable[[Path], None]
) -> None:
    folder = staged(store, 0)
    hurt(folder / keys.STAGED_JOURNAL)
    result = repair(store.root, source=lambda: SeededSource(store.identity), apply=True)
    assert result.corrected
    (aside,) = (store.root / keys.QUARANTINE).iterdir()
    assert [n for n in result.done.notes if aside.name in n and n.endswith("journal")]
    assert [*fsck(store.root)] == []


def test_what_is_no_folder_is_set_aside_too(store: Store) -> None:
    folder = staged(store, 0)
    for make in (lambda: folder.write_bytes(b"x"), lambda: folder.symlink_to(store.root)):
        rmtree(folder, ignore_errors=True)
        make()
        assert [f.path for f in fsck(store.root, "quick") if f.kind == "foreign-file"]
        with claims.claimed(store.filesystem, store.root, store.identity.uuid, 0) as claim:
            take_over(store, claim)
        assert listed(store.root / keys.STAGE) == []
    assert len(listed(store.root / keys.QUARANTINE)) == 2
    assert extract(store, SeededSource(store.identity)).complete


@pytest.mark.parametrize("hurt", [damage.to_symlink, damage.to_folder, damage.to_pipe])
def test_what_was_decided_is_finished_before_its_folder_is_set_aside(
    tmp_path: Path, hurt: Callable[[Path], None]
) -> None:
    store = decided(tmp_path / "store", "none")
    (journal,) = (store.root / keys.STAGE).glob("*/journal")
    hurt(journal)
    expected = store.marker(SHARD).version.generation + 1
    assert extract(store, SeededSource(store.identity)).complete
    assert store.marker(SHARD).version.generation == expected
    assert listed(store.root / keys.INTENT) == listed(store.root / keys.STAGE) == []
    assert len(listed(store.root / keys.QUARANTINE)) == 1
    assert [*fsck(store.root)] == []
