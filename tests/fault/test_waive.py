"""Absent samples that somebody accepts to go without: named, counted, and no error any more."""

from pathlib import Path

import pytest

from hsstore.errors import InvalidDocument, MalformedInput, SampleMissing, StoreError
from hsstore.integrity.fsck import fsck
from hsstore.integrity.mending.waive import waive
from hsstore.integrity.repair import repair
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.waiver import Waiver
from hsstore.storage import gc
from hsstore.storage.description import describe_sample, describe_shard
from hsstore.storage.status import status
from hsstore.storage.store import Store
from hsstore.storage.waivers import read_waiver, waivers
from hsstore.testing import damage
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import contents, filled_store, key_of

SHARD = 1
LOST = (3, 4)
REASON = "too long for the server"


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return filled_store(tmp_path / "store", failing={key_of(n): "broken" for n in LOST})


def kinds(store: Store) -> list[tuple[str, str]]:
    return [(finding.kind, finding.severity) for finding in fsck(store.root, threads=1)]


def flip(store: Store) -> None:
    """Flip a bit of a stored sample of the shard."""
    last = store.manifest(store.marker(SHARD)).chunks[-1]
    damage.flip_bit(store.root / keys.shard_file(SHARD), last.offset)


def test_waived_samples_are_noted_and_no_error(store: Store) -> None:
    assert kinds(store) == [("sample-absent", "error")] * 2
    result = waive(store.root, [key_of(3), "#4"], REASON, apply=True)
    assert (result.found, result.corrected, result.done.samples_waived) == (2, True, 2)
    assert kinds(store) == [("sample-waived", "note")] * 2
    waiver = read_waiver(store, 3)
    assert (waiver.key, waiver.shard, waiver.reason) == (key_of(3), SHARD, REASON)
    (first, _) = (f for f in fsck(store.root, threads=1))
    assert (first.samples, first.path, first.repair) == ((key_of(3),), keys.waiver(3), None)
    assert REASON in first.detail
    assert "broken" in (first.evidence or "")


def test_nothing_is_written_unless_told(store: Store) -> None:
    result = waive(store.root, [key_of(3)], REASON)
    (step,) = result.plan.steps
    assert (step.action, step.reason, step.samples) == ("waive", REASON, (key_of(3),))
    assert (result.applied, result.corrected) == (False, False)
    assert list((store.root / keys.WAIVER).iterdir()) == []


def test_one_of_two_leaves_the_other_an_error(store: Store) -> None:
    result = waive(store.root, [key_of(3)], REASON, apply=True)
    assert [(f.kind, f.samples) for f in result.remaining] == [("sample-absent", (key_of(4),))]
    assert status(store).shards_absent == (SHARD,)
    again = waive(store.root, [key_of(3)], "another reason", apply=True)
    assert (again.found, again.plan.steps) == (0, ())
    assert read_waiver(store, 3).reason == REASON


def test_status_and_inspect_tell(store: Store) -> None:
    before = status(store)
    assert (before.samples_absent, before.samples_waived, before.complete) == (2, 0, False)
    waive(store.root, [key_of(n) for n in LOST], REASON, apply=True)
    found = status(store)
    assert (found.samples_absent, found.samples_waived, found.complete) == (0, 2, True)
    assert found.shards_absent == ()
    assert describe_sample(store, key_of(3))["state"] == "waived"
    assert all(REASON in entry["waived"] for entry in describe_shard(store, SHARD)["absent"])


def test_only_what_is_absent_can_be_waived(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="is stored"):
        waive(store.root, [key_of(0)], REASON, apply=True)
    with pytest.raises(MalformedInput, match="no sample"):
        waive(store.root, ["nobody"], REASON, apply=True)
    with pytest.raises(MalformedInput, match="without a reason"):
        waive(store.root, [key_of(3)], " ", apply=True)
    unfinished = filled_store(tmp_path / "unfinished", shards=range(1))
    with pytest.raises(SampleMissing, match="missing, not absent"):
        waive(unfinished.root, [key_of(5)], REASON, apply=True)
    assert waivers(store) == waivers(unfinished) == {}


def test_a_damaged_waiver_waives_nothing(store: Store) -> None:
    waive(store.root, [key_of(n) for n in LOST], REASON, apply=True)
    damage.flip_bit(store.root / keys.waiver(3))
    assert [k for k, _ in kinds(store)] == ["waiver-invalid", "sample-absent", "sample-waived"]
    assert status(store).samples_waived == 1
    with pytest.raises(InvalidDocument):
        read_waiver(store, 3)
    assert waive(store.root, [key_of(3)], REASON, apply=True).corrected
    assert kinds(store) == [("sample-waived", "note")] * 2
    (folder,) = (store.root / keys.QUARANTINE).iterdir()
    assert {path.name for path in folder.iterdir()} == {"note.json", "0000.000000000003.json"}


def test_a_plain_repair_sets_a_damaged_waiver_aside(store: Store) -> None:
    waive(store.root, [key_of(n) for n in LOST], REASON, apply=True)
    damage.to_folder(store.root / keys.waiver(3))
    result = repair(store.root, apply=True)
    assert [f.kind for f in result.remaining] == ["sample-absent"]
    assert not (store.root / keys.waiver(3)).exists()


def test_a_waiver_of_another_store_or_key_waives_nothing(store: Store) -> None:
    waive(store.root, [key_of(3)], REASON, apply=True)
    whole = read_waiver(store, 3).to_document()
    for member, value in (("store", "0" * 32), ("sample", 4), ("key", "another")):
        document = Waiver.from_document({**whole, "seal": "0" * 32, member: value}).to_document()
        (store.root / keys.waiver(3)).write_bytes(seal(document))
        assert [k for k, s in kinds(store) if s == "error"].count("sample-absent") == 2


def test_a_repair_neither_computes_nor_forgets_what_is_waived(store: Store) -> None:
    waive(store.root, [key_of(n) for n in LOST], REASON, apply=True)
    healthy = contents(store)
    flip(store)
    source = SeededSource(store.identity)
    assert repair(store.root, source=lambda: source, apply=True).corrected
    assert set(source.asked).isdisjoint(LOST)
    assert store.marker(SHARD).version.generation == 2
    assert kinds(store) == [("sample-waived", "note")] * 2
    assert contents(store) == healthy


def test_a_lost_marker_does_not_bring_waived_samples_back(store: Store) -> None:
    waive(store.root, [key_of(n) for n in LOST], REASON, apply=True)
    flip(store)
    (store.root / store.marker(SHARD).name).unlink()
    source = SeededSource(store.identity)
    assert repair(store.root, source=lambda: source, apply=True).corrected
    assert set(source.asked).isdisjoint(LOST)


def test_a_sample_that_is_stored_later_makes_its_waiver_moot(store: Store) -> None:
    waive(store.root, [key_of(3)], REASON, apply=True)
    waiver = store.root / keys.waiver(3)
    kept = waiver.read_bytes()
    waiver.unlink()
    repair(store.root, source=lambda: SeededSource(store.identity), apply=True)
    waiver.write_bytes(kept)
    assert kinds(store) == []
    assert (status(store).samples_waived, status(store).complete) == (0, True)


def test_gc_leaves_waivers_alone_and_unknown_names_are_foreign(store: Store) -> None:
    waive(store.root, [key_of(3)], REASON, apply=True)
    gc.clear(store)
    assert (store.root / keys.waiver(3)).exists()
    (store.root / keys.WAIVER / "notes.txt").write_text("no waiver")
    (store.root / keys.waiver(99)).write_bytes((store.root / keys.waiver(3)).read_bytes())
    foreign = [f.path for f in fsck(store.root, threads=1) if f.kind == "foreign-file"]
    assert {*foreign} == {f"{keys.WAIVER}/notes.txt", keys.waiver(99)}
