"""repair mends what fsck finds, from what is whole, a replica or a source, and nothing else."""

import contextlib
import errno
import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from shutil import copytree

import pytest

from hsstore.errors import (
    ClaimedByAnother,
    IdentityMismatch,
    OutOfSpace,
    SourceUnavailable,
    Stopped,
    StoreError,
)
from hsstore.extraction.extractor import extract
from hsstore.integrity.fsck import Fsck, fsck
from hsstore.integrity.mending.quarantine import Quarantine
from hsstore.integrity.mending.replica import Replica, Wanted
from hsstore.integrity.repair import RepairResult, repair
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.marker import Marker
from hsstore.model.progress import Silent
from hsstore.model.source import HiddenStateSource, Request, Waiting
from hsstore.storage.claim import claimed
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.reader import Reader
from hsstore.storage.roll_forward import roll_forward
from hsstore.storage.space import Space, available
from hsstore.storage.stage import take_over
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.damage import CORPUS, SHARD, Damage
from hsstore.testing.faults import FaultyFilesystem
from hsstore.testing.grounds import renamed
from hsstore.testing.litter import hold
from hsstore.testing.sources import ManyInFlight, SeededSource
from hsstore.testing.stores import contents, empty_store, filled_store, key_of
from hsstore.testing.thinning import EVERY
from hsstore.testing.verdicts import assert_exact


@pytest.fixture(scope="module", params=["none", "blosc-zstd"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_store(tmp_path_factory.mktemp("filled") / "store", codec=request.param).root


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Store:
    return Store.open(copytree(filled, tmp_path / "store"))


def mend(store: Store, source: HiddenStateSource | None = None, **options: object) -> RepairResult:
    opener = None if source is None else lambda: source
    return repair(store.root, source=opener, apply=True, **options)  # type: ignore[arg-type]


def kinds(root: Path) -> list[str]:
    return [finding.kind for finding in fsck(root, threads=1)]


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.name)
def test_corpus_is_mended_and_only_lost_samples_are_computed(store: Store, entry: Damage) -> None:
    healthy = contents(store)
    entry.inflict(store)
    lost = {
        key
        for finding in fsck(store.root, threads=1)
        for key in finding.samples or ()
        if finding.severity == "error"
    }
    source = SeededSource(store.identity)
    result = mend(store, source)
    assert result.corrected, result
    assert kinds(store.root) == []
    assert contents(Store.open(store.root)) == healthy
    assert {key_of(n) for n in source.asked} == (lost if entry.remade else set())
    assert source.tokens == result.done.tokens_reextracted


@pytest.mark.parametrize("entry", [e for e in CORPUS if e.remade], ids=lambda entry: entry.name)
def test_a_replica_of_either_codec_serves_as_source(
    store: Store, tmp_path: Path, entry: Damage
) -> None:
    other = "none" if store.identity.codec != "none" else "blosc-zstd"
    replica = filled_store(tmp_path / "replica", codec=other)
    healthy = contents(store)
    entry.inflict(store)
    source = SeededSource(store.identity)
    result = mend(store, source, replica=replica.root)
    assert result.corrected
    assert result.done.samples_from_replica > 0
    assert source.asked == []
    assert contents(Store.open(store.root)) == healthy
    assert kinds(store.root) == []


def test_a_lost_manifest_comes_back_from_a_copy(store: Store, filled: Path) -> None:
    (store.root / store.marker(SHARD).manifest_name).unlink()
    result = mend(store, replica=filled)
    assert result.corrected
    assert result.done.samples_from_replica == 0
    assert store.marker(SHARD).version.generation == 1
    assert kinds(store.root) == []


def test_damaged_bytes_of_a_replica_are_not_taken(
    store: Store, filled: Path, tmp_path: Path
) -> None:
    replica = copytree(filled, tmp_path / "replica")
    for root in (store.root, replica):
        damage.flip_bit(root / keys.shard_file(SHARD), 100)
    source = SeededSource(store.identity)
    assert mend(store, source, replica=replica).corrected
    assert len(source.asked) == 1


def test_nothing_is_written_unless_told(store: Store) -> None:
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    before = snapshot(store.root)
    result = repair(store.root, source=unopened)
    assert snapshot(store.root) == before
    (step,) = result.plan.steps
    assert (step.action, step.provider, step.shard, step.samples) == (
        "replace", "source", SHARD, ("sample-3",),
    )  # fmt: skip
    assert step.tokens == 30
    assert not result.corrected


def test_a_sound_store_is_left_alone(store: Store) -> None:
    before = snapshot(store.root)
    result = repair(store.root, source=unopened, apply=True)
    assert (result.found, result.plan.steps, result.applied) == (0, (), False)
    assert snapshot(store.root) == before


def test_without_a_source_the_plan_says_so_and_nothing_changes(store: Store) -> None:
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    before = snapshot(store.root)
    result = mend(store)
    assert result.plan.lacks_source
    assert [f.kind for f in result.remaining] == ["chunk-damaged"]
    after = {n: b for n, b in snapshot(store.root).items() if not n.startswith(keys.CLAIM)}
    assert after == before


def test_truncated_without_source_keeps_what_is_whole(store: Store) -> None:
    """What is cut off becomes absent by name; the rest can be read again, and later mended."""
    healthy = contents(store)
    damage.resize(store.root / keys.shard_file(SHARD), -2000)
    result = mend(store)
    absent = {key for f in result.remaining for key in f.samples or ()}
    assert {f.kind for f in result.remaining} == {"sample-absent"}
    now = contents(Store.open(store.root))
    assert now == {key: digest for key, digest in healthy.items() if key not in absent}
    source = SeededSource(store.identity)
    assert mend(store, source).corrected
    assert {key_of(n) for n in source.asked} == absent
    assert contents(Store.open(store.root)) == healthy


def test_damaged_bytes_go_to_quarantine_with_a_note(store: Store) -> None:
    path = store.root / keys.shard_file(SHARD)
    damage.flip_bit(path, 100)
    chunk = min(store.manifest(store.marker(SHARD)).chunks, key=lambda c: c.offset)
    damaged = path.read_bytes()[: chunk.length]
    mend(store, SeededSource(store.identity))
    (folder,) = (store.root / keys.QUARANTINE).iterdir()
    assert folder.name.startswith("00000001-000002.")
    note, kept = sorted(folder.iterdir(), key=lambda p: p.name != "note.json")
    assert chunk.xxh3_64.encode() in note.read_bytes()
    assert kept.read_bytes() == damaged


def test_a_re_extracted_sample_names_the_digest_it_replaces(store: Store) -> None:
    before = contents(store)
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    mend(store, SeededSource(store.identity))
    manifest = store.manifest(store.marker(SHARD))
    assert manifest.version.generation == 2
    assert {s.key: s.previous for s in manifest.samples if s.previous} == {
        key_of(3): before[key_of(3)]
    }


def test_unfinished_store_is_extracted(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", shards=range(2))
    source = SeededSource(store.identity)
    result = mend(store, source)
    assert [step.action for step in result.plan.steps] == ["extract"] * (store.plan.shards - 2)
    assert result.corrected
    assert set(source.asked) == {
        s for k in range(2, store.plan.shards) for s in store.samples.shard_samples(k)
    }


def test_a_sample_that_fails_again_stays_absent(tmp_path: Path) -> None:
    broken = {key_of(4): "broken", key_of(5): "broken"}
    store = filled_store(tmp_path / "store", failing=broken)
    del broken[key_of(4)]
    result = mend(store, SeededSource(store.identity, broken))
    assert [(f.kind, f.samples) for f in result.remaining] == [("sample-absent", ("sample-5",))]
    assert mend(store, SeededSource(store.identity)).corrected
    assert kinds(store.root) == []


class Interrupted(SeededSource):
    """Dies in front of the n-th request."""

    left = 2

    def states(self, requests):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
        def some() -> Iterator[Request]:
            for request in requests:
                if self.left == 0:
                    raise KeyboardInterrupt
                self.left -= 1
                yield request

        return super().states(some())


def test_an_interrupted_repair_goes_on(store: Store) -> None:
    healthy = contents(store)
    (store.root / keys.shard_file(SHARD)).unlink()
    first, second = Interrupted(store.identity), SeededSource(store.identity)
    with pytest.raises(KeyboardInterrupt):
        mend(store, first)
    assert mend(store, second).corrected
    assert sorted(first.asked + second.asked) == list(store.samples.shard_samples(SHARD))
    assert contents(Store.open(store.root)) == healthy


def test_stopping_keeps_what_was_computed(store: Store) -> None:
    (store.root / keys.shard_file(SHARD)).unlink()
    source = SeededSource(store.identity)
    with pytest.raises(Stopped):
        mend(store, source, stop=lambda: len(source.asked) > 0)
    again = SeededSource(store.identity)
    assert mend(store, again).corrected
    assert set(again.asked).isdisjoint(source.asked)


def test_another_model_is_refused_before_anything_is_written(store: Store) -> None:
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    before = snapshot(store.root)
    with pytest.raises(IdentityMismatch, match="config"):
        mend(store, SeededSource(store.identity, match={"config": "0" * 32}))
    assert snapshot(store.root) == before


def test_a_replica_of_something_else_is_refused(store: Store, tmp_path: Path) -> None:
    for name, options in {"dtype": {"dtype": "float32"}, "layers": {"layers": (1, 2, 3)}}.items():
        other = empty_store(tmp_path / name, [3, 4], **options)  # type: ignore[arg-type]
        with pytest.raises(IdentityMismatch, match=name):
            mend(store, replica=other.root)


def test_a_full_disk_is_refused_before_writing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(path: Path) -> Space:
        found = available(path)
        return Space(found.path, found.device, found.total_bytes, found.total_bytes, 0, None)

    monkeypatch.setattr("hsstore.integrity.mending.repair_cost.available", nothing)
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    (store.root / keys.zarr_metadata()).unlink()
    before = snapshot(store.root)
    with pytest.raises(OutOfSpace, match="shard 1"):
        mend(store, SeededSource(store.identity))
    assert snapshot(store.root) == before


def test_a_folder_behind_a_link_is_left_to_a_person(store: Store, tmp_path: Path) -> None:
    (store.root / keys.MANIFEST).rename(tmp_path / "elsewhere")
    (store.root / keys.MANIFEST).symlink_to(tmp_path / "elsewhere")
    (found,) = [finding for finding in fsck(store.root) if finding.kind == "folder-missing"]
    assert "before a repair, put the real folder back" in found.detail
    with pytest.raises(StoreError, match="put the real folder back"):
        mend(store, SeededSource(store.identity))


class DiesAtRename(Filesystem):
    """Dies when a staged shard file would be renamed into place: after the decision."""

    def rename(self, source: Path, target: Path) -> None:
        if source.name == keys.STAGED_SPARE:
            raise KeyboardInterrupt
        super().rename(source, target)


@pytest.mark.parametrize("torn", [False, True])
def test_a_decided_replacement_is_finished_or_set_aside(store: Store, *, torn: bool) -> None:
    healthy = contents(store)
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    dying = Store.open(store.root, filesystem=DiesAtRename())
    source = SeededSource(store.identity)
    with pytest.raises(KeyboardInterrupt):
        repair(dying, source=lambda: source, apply=True)
    (intent,) = (store.root / keys.INTENT).iterdir()
    assert "intent-pending" in kinds(store.root)
    if torn:
        damage.flip_bit(intent)
        assert "intent-invalid" in kinds(store.root)
    again = SeededSource(store.identity)
    assert mend(store, again).corrected
    assert again.asked == []
    assert kinds(store.root) == []
    assert contents(Store.open(store.root)) == healthy


def test_without_keys_nothing_is_committed_under_made_up_ones(store: Store) -> None:
    (store.root / store.marker(SHARD).manifest_name).unlink()
    (store.root / keys.tokens(0, SHARD)).unlink()
    result = mend(store, SeededSource(store.identity))
    assert {f.kind for f in result.remaining} == {"manifest-missing", "tokens-missing"}


@pytest.mark.parametrize("seed", range(20))
def test_twenty_seeded_places(store: Store, seed: int) -> None:
    """A random hurt in a random place is named, mended with the least work, and gone."""
    healthy, numbers = contents(store), random.Random(seed)  # noqa: S311 - a seeded choice
    shard = numbers.randrange(store.plan.shards)
    path = store.root / keys.shard_file(shard)
    size = path.stat().st_size
    hurts = (
        lambda: damage.flip_bit(path, numbers.randrange(size), numbers.randrange(8)),
        lambda: damage.resize(path, -numbers.randrange(1, size)),
        path.unlink,
        (store.root / store.marker(shard).name).unlink,
        lambda: damage.zero(path, numbers.randrange(size) // 4096 * 4096, 4096),
    )
    hurts[seed % len(hurts)]()
    findings = [f for f in fsck(store.root, threads=1) if f.severity == "error"]
    assert findings
    assert all(f.shard == shard and f.samples and f.repair for f in findings)
    needing = [f for f in findings if "--source" in (f.repair or "")]
    source = SeededSource(store.identity)
    assert mend(store, source, shards=range(shard, shard + 1)).corrected
    assert {key_of(n) for n in source.asked} == {k for f in needing for k in f.samples or ()}
    assert kinds(store.root) == []
    assert contents(Store.open(store.root)) == healthy


def snapshot(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def unopened() -> HiddenStateSource:
    raise AssertionError("no states need computing")


# -- what must not be committed ------------------------------------------------------------------


def test_a_shard_without_tokens_is_never_committed_empty(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", shards=range(1))
    (store.root / keys.tokens(0, SHARD)).unlink()
    source = SeededSource(store.identity)
    result = mend(store, source, shards=range(SHARD, SHARD + 1))
    assert [f.kind for f in result.remaining] == ["tokens-missing", "shard-missing"]
    assert not result.corrected
    assert source.asked == []
    assert SHARD not in store.committed()


def test_what_fails_for_good_makes_no_new_generation(tmp_path: Path) -> None:
    broken = {key_of(4): "broken", key_of(5): "broken"}
    store = filled_store(tmp_path / "store", failing=broken)
    before = snapshot(store.root)
    for _ in range(2):
        result = mend(store, SeededSource(store.identity, broken))
        assert not result.corrected
        assert snapshot(store.root) == before
    del broken[key_of(4)]
    mend(store, SeededSource(store.identity, broken))
    (absent,) = store.manifest(store.marker(SHARD)).absent
    assert (absent.key, absent.attempts) == (key_of(5), ("seeded: broken", "seeded: broken"))
    assert store.marker(SHARD).version.generation == 2


def test_a_damaged_sample_that_fails_becomes_absent_once(store: Store) -> None:
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    for _ in range(2):
        mend(store, SeededSource(store.identity, {key_of(3): "broken"}))
        (absent,) = store.manifest(store.marker(SHARD)).absent
        assert (absent.key, absent.reason, absent.detail) == (key_of(3), "seeded", "broken")
        assert store.marker(SHARD).version.generation == 2


def test_lost_tokens_are_named_as_the_reason(store: Store) -> None:
    damage.resize(store.root / keys.shard_file(SHARD), -2000)
    damage.flip_bit(store.root / keys.array_chunk(keys.INPUT_IDS, SHARD), 4)
    (store.root / keys.tokens(0, SHARD)).unlink()
    mend(store, SeededSource(store.identity))
    assert {a.reason for a in store.manifest(store.marker(SHARD)).absent} == {"tokens-lost"}


class NoSpace(Filesystem):
    """Cannot set the size of any file in states.zarr."""

    def truncate(self, fd: int, size: int, path: Path) -> None:
        if keys.ZARR in path.parts:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().truncate(fd, size, path)


def test_a_full_disk_leaves_no_temporary_file(store: Store) -> None:
    damage.flip_bit(store.root / keys.array_chunk(keys.INPUT_IDS, SHARD))
    with pytest.raises(OSError, match="No space"):
        repair(Store.open(store.root, filesystem=NoSpace()), apply=True)
    assert [path for path in store.root.rglob("*") if path.name.startswith(".")] == []


# -- stopping --------------------------------------------------------------------------------------


def test_stopped_while_looking_is_no_success(store: Store) -> None:
    asked = iter([False, True])
    with pytest.raises(Stopped, match="before anything was mended"):
        mend(store, stop=lambda: next(asked, False))


def test_stopped_while_checking_again_is_no_success(store: Store) -> None:
    (store.root / store.marker(SHARD).name).unlink()
    with pytest.raises(Stopped, match="checked again"):
        mend(store, stop=lambda: SHARD in store.committed())
    assert kinds(store.root) == []


def test_stopping_is_heeded_between_shards(store: Store) -> None:
    for shard in (SHARD, SHARD + 1):
        (store.root / store.marker(shard).name).unlink()
    with pytest.raises(Stopped, match="what was mended"):
        mend(store, stop=lambda: SHARD in store.committed())
    assert SHARD + 1 not in store.committed()
    assert mend(store).corrected


# -- documents that contradict each other ----------------------------------------------------------


@pytest.mark.parametrize("loss", [Path.unlink, damage.flip_bit, damage.to_folder])
def test_a_lost_marker_and_a_bad_chunk_together(store: Store, loss: Callable[[Path], None]) -> None:
    healthy = contents(store)
    loss(store.root / store.marker(SHARD).name)
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    source = SeededSource(store.identity)
    assert mend(store, source).corrected
    assert source.asked == [3]
    assert kinds(store.root) == []
    assert contents(Store.open(store.root)) == healthy


@pytest.mark.parametrize("absent", [False, True])
def test_of_two_sealed_markers_the_false_one_goes(tmp_path: Path, *, absent: bool) -> None:
    store = filled_store(tmp_path / "store", failing={key_of(4): "broken"} if absent else None)
    marker = store.marker(SHARD)
    own = {name: getattr(marker, name) for name in Marker.__slots__}
    twin = Marker(**{**own, "absent": 0 if absent else 1})
    (store.root / twin.name).write_bytes(seal(twin.to_document()))
    assert "marker-duplicate" in kinds(store.root)
    result = mend(store, SeededSource(store.identity))
    assert result.corrected, result
    assert kinds(store.root) == []
    assert not (store.root / twin.name).exists() or twin.name == store.marker(SHARD).name
    assert len(contents(store)) == store.plan.samples


@pytest.mark.parametrize("lost", ["manifest", "staged"])
def test_an_intent_that_decides_nothing_is_set_aside(store: Store, lost: str) -> None:
    last = store.manifest(store.marker(SHARD)).chunks[-1]
    damage.flip_bit(store.root / keys.shard_file(SHARD), last.offset)
    dying = Store.open(store.root, filesystem=DiesAtRename())
    with pytest.raises(KeyboardInterrupt):
        repair(dying, source=lambda: SeededSource(store.identity), apply=True)
    if lost == "manifest":
        (path,) = (store.root / keys.MANIFEST).glob("00000001-000002.*")
    else:
        (path,) = (store.root / keys.STAGE).glob("*/data")
    path.unlink()
    # The file in place of an uncompressed shard has the same size and index as its replacement.
    alike = lost == "staged" and store.identity.codec == "none"
    assert ("intent-pending" if alike else "intent-invalid") in kinds(store.root)
    assert mend(store, SeededSource(store.identity)).corrected
    assert kinds(store.root) == []
    aside = [*(store.root / keys.QUARANTINE).glob("*/*.00000001-000002.json")]
    assert len(aside) == (0 if alike else 1)


@pytest.mark.parametrize("hurt", [damage.to_symlink, damage.to_folder, damage.to_pipe])
@pytest.mark.parametrize("folder", [keys.INTENT, keys.MANIFEST])
def test_what_is_no_file_in_place_of_an_intent_or_its_manifest_decides_nothing(
    store: Store, folder: str, hurt: Callable[[Path], None]
) -> None:
    damage.flip_bit(store.root / keys.shard_file(SHARD), 100)
    dying = Store.open(store.root, filesystem=DiesAtRename())
    with pytest.raises(KeyboardInterrupt):
        repair(dying, source=lambda: SeededSource(store.identity), apply=True)
    (path,) = (store.root / folder).glob("00000001-000002.*")
    hurt(path)
    assert "intent-invalid" in kinds(store.root)
    assert not extract(store, SeededSource(store.identity)).stopped
    assert mend(store, SeededSource(store.identity)).corrected
    assert kinds(store.root) == []
    assert [*(store.root / keys.QUARANTINE).glob("*/*.00000001-000002.json")]


# -- a replacement that went into place, and whose decision is lost --------------------------------


@pytest.fixture(params=["none", "blosc-zstd"])
def undecided(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """The marker is of generation 1; file and manifest are of generation 2."""
    store = renamed(tmp_path / "store", request.param)
    (intent,) = (store.root / keys.INTENT).iterdir()
    intent.unlink()
    return store


def test_a_file_of_the_next_generation_is_named_and_committed_without_computing(
    undecided: Store,
) -> None:
    root = undecided.root
    (finding,) = fsck(root, threads=1)
    assert (finding.kind, finding.path) == ("marker-missing", keys.shard_file(SHARD))
    assert "generation 2: its manifest proves every byte" in finding.detail
    (step,) = repair(root).plan.steps
    assert (step.action, step.provider) == ("roll-forward", "store")
    result = mend(undecided)
    assert (result.corrected, result.done.rolled_forward) == (True, 1)
    assert kinds(root) == []
    assert undecided.marker(SHARD).version.generation == 2
    assert len([*(root / keys.COMMIT).glob("00000001-*")]) == 1
    assert len([*(root / keys.MANIFEST).glob("00000001-*")]) == 1
    assert [*(root / keys.STAGE).iterdir()] == []
    assert_exact(root)


def test_what_the_next_generation_does_not_prove_is_judged_by_the_marker(undecided: Store) -> None:
    damage.flip_bit(undecided.root / keys.shard_file(SHARD), 100)
    assert "marker-missing" not in kinds(undecided.root)
    assert not mend(undecided).done.rolled_forward
    assert mend(undecided, SeededSource(undecided.identity)).corrected
    assert kinds(undecided.root) == []
    assert_exact(undecided.root)


def rolled_forward(store: Store) -> None:
    with claimed(store.filesystem, store.root, store.identity.uuid, SHARD) as claim:
        take_over(store, claim)
        roll_forward(store, claim)


def test_who_was_overtaken_commits_no_later_generation(undecided: Store) -> None:
    class Overtaken(Filesystem):
        """A successor takes the shard over, and fences, in front of the marker."""

        def link(self, source: Path, target: Path) -> None:
            if target.parent.name == keys.COMMIT:
                for path in (undecided.root / keys.CLAIM).iterdir():
                    path.unlink()
                hold(undecided, SHARD)
                source.parent.rename(f"{source.parent}.0123abcd")
            super().link(source, target)

    before = undecided.marker(SHARD)
    disturbed = Store.open(undecided.root, filesystem=Overtaken())
    with pytest.raises(ClaimedByAnother):
        rolled_forward(disturbed)
    assert undecided.marker(SHARD) == before


# -- pairs of damages ------------------------------------------------------------------------------


def pairs(seed: int, count: int) -> list[tuple[Damage, Damage]]:
    every = list(itertools.combinations(CORPUS, 2))
    return random.Random(seed).sample(every, count)  # noqa: S311 - a seeded choice


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_store(tmp_path_factory.mktemp("plain") / "store").root


@pytest.mark.parametrize("pair", pairs(7, 20), ids=lambda pair: f"{pair[0].name}+{pair[1].name}")
def test_some_pairs_of_damages(plain: Path, tmp_path: Path, pair: tuple[Damage, Damage]) -> None:
    mend_pair(plain, tmp_path / "store", pair)


@pytest.mark.sweep
@pytest.mark.parametrize("first", CORPUS, ids=lambda entry: entry.name)
def test_all_pairs_of_damages(plain: Path, tmp_path: Path, first: Damage) -> None:
    for second in CORPUS[CORPUS.index(first) + 1 :: EVERY]:
        mend_pair(plain, tmp_path / second.name, (first, second))


def mend_pair(plain: Path, root: Path, pair: tuple[Damage, Damage]) -> None:
    """A repair mends both or says what it could not, and what could be read still can."""
    store = Store.open(copytree(plain, root))
    healthy = contents(store)
    if not inflict_both(store, pair):
        return
    before = readable(root)
    looked = Fsck(Subject(Store.open(root)), None, Silent(), lambda: False, keep_cases=True)
    found = [finding.kind for finding in looked]
    lost = {sample for case in looked.cases for sample in case.lost}
    source = SeededSource(store.identity)
    result = mend(store, source)
    names = [entry.name for entry in pair]
    assert set(source.asked) <= lost, names
    after = readable(root)
    assert before.items() <= after.items(), names
    if result.corrected:
        assert kinds(root) == [], names
        assert contents(Store.open(root)) == healthy, names
    else:
        assert result.remaining, (names, found)
        assert {f.kind for f in result.remaining} <= set(found) | {"sample-absent"}, names


def inflict_both(store: Store, pair: tuple[Damage, Damage]) -> bool:
    """Whether both could be done to one store, in some order."""
    for one, other in (pair, pair[::-1]):
        try:
            one.inflict(store)
        except (OSError, StoreError, LookupError):
            continue
        try:
            other.inflict(store)
        except (OSError, StoreError, LookupError):
            # The first may have been what the second works on: then it stands alone.
            return True
        return True
    return False


def readable(root: Path) -> dict[int, bytes]:
    store = Store.open(root)
    reader, found = Reader(store), {}
    for sample in range(store.plan.samples):
        with contextlib.suppress(StoreError, OSError, LookupError, ValueError):
            found[sample] = reader.read(sample, verify=True).tobytes()
    return found


class Listing(Filesystem):
    """Counts listings, and reads of manifests."""

    def __init__(self) -> None:
        self.listed = 0
        self.manifests = 0

    def names(self, path: Path) -> list[str]:
        self.listed += 1
        return super().names(path)

    def read(self, path: Path) -> bytes:
        self.manifests += path.parent.name == keys.MANIFEST
        return super().read(path)


def test_a_replica_is_listed_once_and_each_manifest_read_once(
    store: Store, filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Listing()
    opened = Store.open(filled, filesystem=counting)
    monkeypatch.setattr(Store, "open", lambda _, **_options: opened)
    replica, listed = Replica(store, filled), counting.listed
    for shard in store.committed():
        for sample in store.samples.shard_samples(shard):
            assert replica.find(Wanted(sample, shard, None)) is not None
    assert counting.listed == listed
    assert counting.manifests == store.plan.shards


def test_an_outage_that_ends_a_repair_is_told_to_be_over(store: Store) -> None:
    damage.flip_bit(store.root / keys.shard_file(0), 10)
    moments = iter([Waiting("away", outage=True)])

    def lose(_answers: int) -> Waiting:
        if (moment := next(moments, None)) is None:
            raise SourceUnavailable("lost")
        return moment

    heard = Heard()
    with pytest.raises(SourceUnavailable):
        mend(store, ManyInFlight(store.identity, before_answer=lose), progress=heard)
    assert [name for name in heard.names if "outage" in name] == ["outage-began", "outage-ended"]


class Heard(Silent):
    """Keeps the names of events."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def event(self, name: str, members: Mapping[str, object]) -> None:  # noqa: ARG002 - Progress
        self.names.append(name)


def test_a_folder_that_cannot_be_looked_at_is_not_set_aside_with_all_that_is_in_it(
    store: Store,
) -> None:
    filesystem = FaultyFilesystem(frozenset({"status"}))
    opened = Store.open(store.root, filesystem=filesystem)
    filesystem.fail(0, errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        Quarantine(opened, "aside").set_aside(keys.plan(0))
    assert (store.root / keys.plan(0)).exists()
