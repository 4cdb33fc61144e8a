"""gc: litter of every kind is found and goes; nothing that anybody needs does, whatever happens."""

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hsstore.errors import ClaimedByAnother, InvalidDocument
from hsstore.extraction.extractor import extract
from hsstore.integrity.fsck import fsck
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.litter import Cleared
from hsstore.storage import ballast, writer
from hsstore.storage import claim as claims
from hsstore.storage.claim import claimed
from hsstore.storage.extend import extend
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.gc import Bin, clear, needless
from hsstore.storage.growing import growing
from hsstore.storage.stage import take_over
from hsstore.storage.store import Store
from hsstore.testing.crash_states import RecordingFilesystem, write_state
from hsstore.testing.faults import CHANGING, GROWING, Crash, FaultyFilesystem
from hsstore.testing.litter import (
    PLANTERS,
    Planter,
    abandon,
    hold,
    litter,
    stage_samples,
)
from hsstore.testing.sources import ManyInFlight, SeededSource
from hsstore.testing.stores import contents, empty_store, fill, more_samples, replace
from hsstore.testing.thinning import visited
from hsstore.testing.verdicts import assert_complete, assert_exact, journalled, leftovers

LENGTHS = (5, 3, 9, 16)


@pytest.fixture(autouse=True)
def journal_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SYNC_BYTES", 1)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fill(empty_store(tmp_path / "store", LENGTHS))


def unsynced(root: Path) -> Store:
    """The store on a filesystem whose syncs cost nothing."""
    return Store.open(root, filesystem=FaultyFilesystem())


def found(store: Store) -> set[tuple[str, str]]:
    return {(item.kind, item.path) for item in needless(store).items}


def snapshot(root: Path) -> dict[str, tuple[int, bytes]]:
    """Every name beside and in a store with its time of change and bytes."""
    return {
        str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in root.parent.rglob("*")
    }


def assert_tidy(root: Path) -> None:
    assert needless(Store.open(root)).items == []
    assert leftovers(root) == []
    assert [path.name for path in root.parent.iterdir() if ".creating-" in path.name] == []
    assert [finding for finding in fsck(root, threads=1) if finding.severity != "note"] == []


# -- every kind -----------------------------------------------------------------------------------


@pytest.mark.parametrize("planter", PLANTERS, ids=lambda planter: planter.name)
def test_litter_is_found_and_removed(store: Store, planter: Planter) -> None:
    healthy = contents(store)
    planted = set(planter.plant(store))
    before = snapshot(store.root)
    assert found(store) == planted
    assert snapshot(store.root) == before
    done = clear(store)
    assert (done.kept, done.held, done.notes) == ([], [], [])
    # By the names that they were seen under, not by those that a takeover gives.
    assert sorted((item.kind, item.path) for item in done.removed) == sorted(planted)
    assert_tidy(store.root)
    assert contents(store) == healthy
    assert_complete(store.root)


def test_all_litter_at_once_is_found_and_counted(store: Store) -> None:
    healthy = contents(store)
    planted = litter(store)
    sight = needless(store)
    assert {(item.kind, item.path) for item in sight.items} == set(planted)
    freed = {item.path: (item.bytes, item.inodes) for item in sight.items}
    for path, (size, inodes) in freed.items():
        names = [store.root / path, *(store.root / path).rglob("*")]
        assert inodes == len(names)
        assert size == sum(name.lstat().st_blocks * 512 for name in names)
    done = clear(store)
    assert len(done.removed) == len(planted)
    assert_tidy(store.root)
    assert contents(store) == healthy


def test_a_sound_store_has_nothing_needless(store: Store, tmp_path: Path) -> None:
    for each in (store, empty_store(tmp_path / "empty", LENGTHS)):
        before = snapshot(each.root)
        assert needless(each).items == []
        done = clear(each)
        assert (done.removed, done.kept, done.held) == ([], [], [])
        after = snapshot(each.root)
        assert {name: raw for name, (_, raw) in after.items()} == {
            name: raw for name, (_, raw) in before.items()
        }


def test_what_is_not_litter_stays(store: Store) -> None:
    """Foreign names, links, the ballast, and folders of people."""
    for name in ("ballast", f"{keys.STAGE}/notes", f"{keys.MANIFEST}/notes.json"):
        (store.root / name).write_bytes(b"mine")
    outside = store.root.with_name("outside")
    outside.mkdir()
    (outside / keys.STAGED_JOURNAL).write_bytes(b"")
    (store.root / keys.stage(0, "a" * 16)).symlink_to(outside)
    odd = store.root / keys.stage(0, "b" * 16)
    odd.mkdir()
    (odd / "notes").write_bytes(b"mine")
    (store.root / keys.COMMIT / ".00000000-000001.json.0123abcd").symlink_to(outside)
    aside = store.root / keys.QUARANTINE / "00000000-000002.cccccccccccccccc"
    aside.mkdir()
    before = set(snapshot(store.root))
    assert found(store) == set()
    clear(store)
    assert set(snapshot(store.root)) == before


def test_token_files_behind_a_link_stay(store: Store) -> None:
    outside = store.root.with_name("outside")
    outside.mkdir()
    (outside / "00000002.json").write_bytes(b"mine")
    (store.root / keys.token_folder(1)).symlink_to(outside)
    before = set(snapshot(store.root))
    with growing(store):
        pass
    clear(store)
    assert set(snapshot(store.root)) == before
    assert (outside / "00000002.json").read_bytes() == b"mine"


def test_journalled_work_stays_and_what_was_never_published_of_it_goes(tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store", LENGTHS)
    stage_samples(store, 1)
    folder = stage_samples(store, 0)
    temporary = folder / ".00000000-000001.json.0123abcd"
    temporary.write_bytes(b"half")
    (store.root / keys.manifest(keys.ShardVersion(0, 1), "d" * 16)).write_bytes(b"of nothing")
    abandon(store, 1)
    kept = journalled(store.root)
    clear(store)
    assert journalled(store.root) == kept
    assert sorted(leftovers(store.root)) == sorted(
        f"{keys.STAGE}/{path.name}" for path in (store.root / keys.STAGE).iterdir()
    )
    source = SeededSource(store.identity)
    assert extract(store, source).complete
    assert not kept & set(source.asked)
    assert_complete(store.root)


def test_the_manifest_that_proves_an_unmarked_shard_stays(store: Store) -> None:
    marker = store.marker(0)
    (store.root / marker.name).unlink()
    (store.root / keys.manifest(keys.ShardVersion(0, 1), "d" * 16)).write_bytes(b"of nothing")
    assert found(store) == set()
    clear(store)
    assert (store.root / marker.manifest_name).exists()
    assert extract(store, SeededSource(store.identity)).samples_extracted == 0
    assert_exact(store.root)


def test_an_older_generation_stays_while_the_newest_is_not_proven(store: Store) -> None:
    planted = set(litter(store, ["superseded"]))
    manifest = store.root / store.marker(0).manifest_name
    raw = manifest.read_bytes()
    manifest.write_bytes(raw[:-9])
    assert found(store) == set()
    manifest.write_bytes(raw)
    shard = store.root / keys.shard_file(0)
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-1])
    assert found(store) == set()
    clear(store)
    shard.write_bytes(whole)
    assert found(store) == planted


def test_a_manifest_stays_that_may_be_the_only_proof_of_the_file_in_place(store: Store) -> None:
    """The marker of a newer generation was lost: its file is in place, its manifest proves it."""
    marker = store.marker(0)
    names = (marker.name, marker.manifest_name)
    older = {name: (store.root / name).read_bytes() for name in names}
    shard = store.root / keys.shard_file(0)
    replace(store, 0)
    replaced = store.marker(0)
    manifest = store.manifest(replaced)
    (store.root / replaced.name).unlink()
    for name, raw in older.items():
        (store.root / name).write_bytes(raw)
    # Equal states cannot tell the two apart; other ones can.
    assert found(store) == {("manifest", replaced.manifest_name)}
    damaged = bytearray(shard.read_bytes())
    damaged[manifest.chunks[0].offset] ^= 1
    shard.write_bytes(damaged)
    other = manifest.to_document()
    other["chunks"] = [[c, o, n, "0" * 16 if c == manifest.chunks[0].chunk else h]
                       for c, o, n, h in other["chunks"]]  # fmt: skip
    (store.root / replaced.manifest_name).write_bytes(seal(other))
    assert found(store) == set()


def test_quarantine_goes_only_on_demand(store: Store) -> None:
    healthy = contents(store)
    folder = store.root / keys.QUARANTINE / f"00000000-000002.{'a' * 16}"
    (folder / "0001.folder" / "deeper").mkdir(parents=True)
    (folder / "0000.whole").write_bytes(b"x" * 5000)
    (folder / "0002.link").symlink_to(store.root / keys.PLAN)
    (store.root / keys.QUARANTINE / "people's notes").write_bytes(b"x")
    clear(store)
    assert folder.exists()
    with_claim = hold(store, 0)
    held = needless(store, quarantine=True)
    assert [item.path for item in held.items] == [f"{keys.QUARANTINE}/people's notes"]
    with_claim.release()
    assert len(needless(store, quarantine=True).items) == 2
    assert len(clear(store, quarantine=True).removed) == 2
    assert [*(store.root / keys.QUARANTINE).iterdir()] == []
    assert contents(store) == healthy
    assert_complete(store.root)


@pytest.mark.parametrize("folder", [keys.CALIBRATION, keys.WAIVER])
def test_a_temporary_file_that_no_claim_guards_goes_only_when_old(
    store: Store, folder: str
) -> None:
    path = store.root / folder / ".00000000.json.0123abcd"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"being published")
    assert found(store) == set()
    done = clear(store)
    assert path.exists()
    assert (done.removed, done.kept) == ([], [])
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    os.utime(path, (0, 0))
    assert found(store) == {("temporary", f"{folder}/{path.name}")}
    assert len(clear(store).removed) == 1


def test_a_claim_that_a_dead_process_did_not_come_to_publish_goes_at_once(store: Store) -> None:
    path = store.root / abandon(store, 0)
    path.rename(path.with_name(f".{path.name}.0123abcd"))
    assert len(clear(store).removed) == 1
    assert_tidy(store.root)


def test_a_store_that_lost_its_plan_is_refused(store: Store, tmp_path: Path) -> None:
    extend(store, more_samples(tmp_path / "more.jsonl", (4,), first=len(LENGTHS)))
    (store.root / keys.plan(1)).unlink()
    for act in (needless, clear):
        with pytest.raises(InvalidDocument, match="larger than its newest whole plan"):
            act(Store.open(store.root))


def test_what_a_live_process_has_claimed_is_left_alone(store: Store) -> None:
    litter(store)
    guarded = {item.path for item in needless(store).items if item.of == 0}
    claim = hold(store, 0)
    before = {path for path in guarded if (store.root / path).exists()}
    assert len(before) > 6
    sight = needless(store)
    assert sight.held == [0]
    assert not {item.path for item in sight.items if item.of == 0}
    done = clear(store)
    assert done.held == [0]
    assert all((store.root / path).exists() for path in before)
    claim.release()
    clear(store)
    assert_tidy(store.root)


def test_beside_an_extraction_nothing_is_taken(tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store", LENGTHS)
    seen: list[int] = []

    def look(_: int) -> None:
        assert needless(store).items == []
        done = clear(Store.open(store.root))
        assert (done.removed, done.kept) == ([], [])
        seen.append(len(done.held))

    source = ManyInFlight(store.identity, before_answer=look)
    assert extract(store, source).complete
    assert max(seen) >= 1
    assert_complete(store.root)


# -- after crashes, and beside stalled writers ----------------------------------------------------


def extraction(store: Store) -> None:
    summary = extract(store, SeededSource(store.identity))
    assert summary.complete or summary.shards_claimed_by_others


def replacement(store: Store) -> None:
    replace(store, 0)


def extension(store: Store) -> None:
    extend(store, more_samples(store.root.parent / "more.jsonl", (4, 7), first=len(LENGTHS)))


Work = Callable[[Store], None]
WORKS: dict[str, tuple[Work, bool]] = {
    "extraction": (extraction, False),
    "replacement": (replacement, True),
    "extension": (extension, True),
}


def made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def template(tmp_path: Path, *, filled: bool, codec: str = "none") -> Path:
    store = empty_store(made(tmp_path / "template") / "store", (3, 9), codec=codec)
    return (fill(store) if filled else store).root


def copied(source: Path, root: Path) -> Path:
    shutil.rmtree(root, ignore_errors=True)
    return Path(shutil.copytree(source, root))


def die(root: Path) -> None:
    """Make the claims of this process look like those of one that is gone."""
    for path in (root / keys.CLAIM).glob("*.json"):
        holder = claims.read_holder(LOCAL, path)
        claims._HELD.discard(holder.writer if holder else "")
    for path in (root / keys.CLAIM).glob(".*"):
        os.utime(path, (0, time.time() - 3601))


def silence(root: Path) -> None:
    for path in (root / keys.CLAIM).glob("*.json"):
        os.utime(path, (0, time.time() - 61))


def lose_claims(root: Path) -> None:
    for path in (root / keys.CLAIM).glob("*.json"):
        path.unlink()


def finish(root: Path, kept: set[int]) -> None:
    """All that is planned can be had, and what was journalled is not computed again."""
    store = unsynced(root)
    source = SeededSource(store.identity)
    assert extract(store, source).complete
    assert not kept & set(source.asked)
    if journalled(root):
        # What a repair had computed for the next generation waits for a repair.
        replace(store, 0)
    clear(store)
    assert_complete(root)
    assert_tidy(root)


LONG = [pytest.param(codec, 1, marks=pytest.mark.sweep) for codec in ("none", "blosc-zstd")]
EVERY = [8, pytest.param(1, marks=pytest.mark.sweep)]


@pytest.mark.parametrize("name", WORKS)
@pytest.mark.parametrize(("codec", "every"), [("none", 4), *LONG])
def test_after_a_crash_at_any_operation_gc_takes_nothing_that_is_needed(
    tmp_path: Path,
    name: str,
    codec: str,
    every: int,
    record_property: Callable[[str, object], None],
) -> None:
    work, filled = WORKS[name]
    source, root = template(tmp_path, filled=filled, codec=codec), tmp_path / "store"
    done, n = False, 0
    while not done:
        filesystem = FaultyFilesystem()
        filesystem.crash(n)
        try:
            work(Store.open(copied(source, root), filesystem=filesystem))
            done = True
        except Crash:
            pass
        kept = journalled(root)
        before = assert_exact(root)
        die(root)
        cleared = clear(unsynced(root))
        assert (cleared.kept, cleared.held, cleared.notes) == ([], [], []), n
        assert assert_exact(root) >= before, n
        assert journalled(root) >= kept - committed_samples(root), n
        finish(root, kept)
        n += every
    print(f"gc after a crash of a {name}: {n} operations by {every}")  # noqa: T201
    record_property("operations", n // every)
    assert n > 30


def committed_samples(root: Path) -> set[int]:
    store = Store.open(root)
    return {s for shard in store.committed() for s in store.samples.shard_samples(shard)}


class Interrupted(FaultyFilesystem):
    """Calls ``between`` once, before the n-th operation."""

    def __init__(self, at: int, between: Callable[[], None]) -> None:
        super().__init__()
        self.at: int | None = at
        self.between = between

    def _count(self, kind: str, path: Path) -> None:
        if self.at is not None and len(self.operations) >= self.at:
            self.at = None
            self.between()
        super()._count(kind, path)


STALLS: dict[str, Callable[[Path], None]] = {
    "live": lambda _: None,
    "silent": silence,
    "unclaimed": lose_claims,
}


@pytest.mark.parametrize("every", EVERY)
@pytest.mark.parametrize("stall", STALLS)
@pytest.mark.parametrize("name", WORKS)
def test_a_writer_stalled_anywhere_finishes_or_is_refused(
    tmp_path: Path,
    name: str,
    stall: str,
    every: int,
    record_property: Callable[[str, object], None],
) -> None:
    """gc runs to its end between any two operations of a writer, which then goes on."""
    work, filled = WORKS[name]
    source, root = template(tmp_path, filled=filled), tmp_path / "store"
    refused = n = 0
    while True:
        kept: set[int] = set()
        cleared: list[Cleared] = []

        def between(kept: set[int] = kept, cleared: list[Cleared] = cleared) -> None:
            STALLS[stall](root)
            kept |= journalled(root)
            cleared.append(clear(unsynced(root)))

        filesystem = Interrupted(n, between)
        store = Store.open(copied(source, root), filesystem=filesystem)
        try:
            work(store)
        except ClaimedByAnother:
            refused += 1
        if not cleared:
            break
        assert [done.kept for done in cleared] == [[]], n
        there = assert_exact(root)
        assert there == len(committed_samples(root))
        if stall == "live":
            # At the end a claim that is being given up is nobody's any more.
            assert {item.kind for item in cleared[0].removed} <= {"claim"}, n
            assert refused == 0, n
            assert name == "extension" or there == 2, n
        finish(root, kept)
        n += every
    print(f"gc beside a stalled {name}, {stall}: {n} gaps by {every}, {refused} refused")  # noqa: T201
    record_property("gaps", n // every)
    assert n > 30
    assert refused or stall == "live" or name == "extraction"


# -- gc itself ------------------------------------------------------------------------------------


@pytest.fixture
def littered(tmp_path: Path) -> Path:
    """A small store with litter of every kind, in a folder of its own."""
    store = fill(empty_store(made(tmp_path / "littered") / "store", (3, 9)))
    litter(store)
    return store.root.parent


def copies(littered: Path, target: Path) -> Iterator[Path]:
    while True:
        shutil.rmtree(target, ignore_errors=True)
        yield Path(shutil.copytree(littered, target)) / "store"


@pytest.mark.parametrize(
    ("code", "forever", "kinds"),
    [
        (None, True, CHANGING),
        (errno.EIO, False, CHANGING),
        pytest.param(errno.EIO, True, CHANGING, marks=pytest.mark.sweep),
        (errno.ENOSPC, True, GROWING),
        pytest.param(errno.ENOSPC, False, GROWING, marks=pytest.mark.sweep),
    ],
)
def test_gc_crashed_or_refused_anywhere_harms_nothing_and_the_next_one_finishes(
    littered: Path,
    tmp_path: Path,
    code: int | None,
    forever: bool,  # noqa: FBT001 - a parameter of the test
    kinds: frozenset[str],
    record_property: Callable[[str, object], None],
) -> None:
    healthy = contents(Store.open(littered / "store"))
    for n, root in enumerate(copies(littered, tmp_path / "copy")):
        filesystem = FaultyFilesystem(kinds)
        if code is None:
            filesystem.crash(n)
        else:
            filesystem.fail(n, code, forever=forever)
        with contextlib.suppress(Crash, OSError):
            clear(Store.open(root, filesystem=filesystem))
        reached = n < len(filesystem.operations)
        assert contents(Store.open(root)) == healthy
        assert assert_exact(root) == 2
        assert filesystem.touched_after_failure == []
        die(root)
        done = clear(unsynced(root))
        assert done.kept == []
        assert_tidy(root)
        if not reached:
            break
    print(f"gc refused, {code}, {forever}: {n} operations")  # noqa: T201
    record_property("operations", n)
    assert n > 8


@pytest.mark.parametrize("every", EVERY)
def test_gc_itself_stalled_anywhere_and_overtaken_takes_nothing_of_its_successors(
    littered: Path, tmp_path: Path, every: int, record_property: Callable[[str, object], None]
) -> None:
    """Between any two of its operations, others extract, replace and extend; then it goes on."""
    for at, root in enumerate(copies(littered, tmp_path / "copy")):
        n = at * every
        happened: list[int] = []

        def between(root: Path = root, happened: list[int] = happened) -> None:
            silence(root)
            store = extend(
                unsynced(root), more_samples(tmp_path / "more.jsonl", (4,), first=2)
            ).store
            replace(store, 0)
            extract(store, SeededSource(store.identity))
            happened.append(assert_exact(root))

        clear(Store.open(root, filesystem=Interrupted(n, between)))
        if not happened:
            break
        assert assert_exact(root) == happened[0] == 3, n
        finish(root, {0, 1, 2})
    print(f"gc stalled and overtaken: {n} gaps by {every}")  # noqa: T201
    record_property("gaps", n // every)
    assert n > 30


def test_a_growth_stalled_anywhere_at_its_beginning_keeps_off_its_successors_tokens(
    littered: Path, tmp_path: Path
) -> None:
    """What it takes for token files of nobody may be those of a plan by the time it goes on."""
    for n, root in enumerate(copies(littered, tmp_path / "copy")):
        happened: list[int] = []

        def between(root: Path = root, happened: list[int] = happened) -> None:
            silence(root)
            more = more_samples(tmp_path / "more.jsonl", (4,), first=2)
            happened.append(extend(unsynced(root), more).store.plan.samples)

        store = Store.open(root, filesystem=Interrupted(n, between))
        with contextlib.suppress(ClaimedByAnother), growing(store):
            pass
        if not happened:
            break
        grown = Store.open(root)
        assert [len(grown.tokens(shard).keys) for shard in range(grown.plan.shards)] == [2, 1], n
    assert n > 10


def test_who_was_overtaken_takes_no_manifest_away(store: Store) -> None:
    """A successor may go by one that nothing named before."""
    (_, manifest), *_ = litter(store, ["orphan-manifests"])
    stalled = hold(store, 0)
    dropped = Bin(store, stalled)
    dropped.drop(store.root / litter(store, ["temporaries"])[0][1])
    silence(store.root)
    with claimed(store.filesystem, store.root, store.identity.uuid, 0) as claim:
        take_over(store, claim)
        with pytest.raises(FileNotFoundError):
            dropped.drop(store.root / manifest)
    assert (store.root / manifest).exists()


def test_markers_are_durable_before_what_they_make_needless_goes(store: Store) -> None:
    filesystem = FaultyFilesystem()
    litter(store, ["superseded", "staged"])
    clear(Store.open(store.root, filesystem=filesystem))
    done = [(kind, path.relative_to(store.root).parts[0]) for kind, path in filesystem.operations]
    first = min(done.index(("unlink", keys.COMMIT)), done.index(("rename", keys.STAGE)))
    assert done.index(("sync", keys.COMMIT)) < first


FEW = ("superseded", "staged", "nothing-staged", "orphan-manifests")


@pytest.mark.parametrize("full", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_a_power_cut_at_any_moment_of_gc_leaves_the_store_right(
    tmp_path: Path,
    full: bool,  # noqa: FBT001 - a parameter of the test
    record_property: Callable[[str, object], None],
) -> None:
    store = fill(empty_store(tmp_path / "store", (3, 9) if full else (3,)))
    # What lies beside the store is not in the model.
    names = [p.name for p in PLANTERS if p.name != "creation"] if full else FEW
    litter(store, names)
    healthy = contents(store)
    filesystem = RecordingFilesystem(store.root)
    clear(Store.open(store.root, filesystem=filesystem))
    after = tmp_path / "after" / "store"
    after.parent.mkdir()
    states = list(filesystem.states)
    for at in (moments := visited(len(states))):
        shutil.rmtree(after, ignore_errors=True)
        write_state(states[at], after)
        silence(after)
        for path in after.rglob(".*"):
            os.utime(path, (0, time.time() - 3601))
        assert contents(Store.open(after)) == healthy
        assert_exact(after)
        again = unsynced(after)
        assert extract(again, SeededSource(again.identity)).samples_extracted == 0
        clear(again)
        assert_tidy(after)
    print(f"power cuts of gc: {len(moments)} states")  # noqa: T201
    record_property("states", len(moments))
    assert len(states) > 20


# -- real disks, real processes -------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 1 MiB."""
    if os.geteuid():
        pytest.skip("mounting a filesystem takes root")
    disk = made(tmp_path / "disk")
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "small", disk], check=True)
    yield disk
    subprocess.run(["/bin/umount", disk], check=True)


def fill_disk(disk: Path) -> None:
    """Leave not a single block free."""
    left = os.statvfs(disk).f_bfree
    (disk / "filler").write_bytes(bytes(4096 * left))
    assert os.statvfs(disk).f_bfree == 0


@pytest.mark.root
def test_on_a_disk_full_to_the_last_block_gc_makes_room_for_extraction(small_disk: Path) -> None:
    store = empty_store(small_disk / "store", LENGTHS)
    kept = stage_samples(store, store.plan.shards - 1)
    fill(store, shards=range(1))
    planted = litter(store)
    size = sum(item.bytes for item in needless(store).items)
    fill_disk(small_disk)
    source = SeededSource(store.identity)
    with pytest.raises(OSError, match="No space left"):
        extract(store, source)
    done = clear(store)
    assert (len(done.removed), done.kept, done.notes) == (len(planted), [], [])
    assert os.statvfs(small_disk).f_bfree * 4096 >= size
    assert kept.exists() or journalled(store.root)
    assert extract(store, source).complete
    assert len(source.asked) == len(set(source.asked))
    assert not set(source.asked) & set(store.samples.shard_samples(store.plan.shards - 1))
    (small_disk / "filler").unlink()
    clear(store)
    assert_complete(store.root)
    assert_tidy(store.root)


@pytest.mark.root
def test_without_space_for_a_claim_what_needs_one_stays_and_is_named(small_disk: Path) -> None:
    store = fill(empty_store(small_disk / "store", LENGTHS))
    litter(store, ["orphan-manifests"])
    fill_disk(small_disk)
    done = clear(store)
    assert done.removed == []
    assert len(done.kept) == 2
    assert all("No space left" in why for _, why in done.kept)


@pytest.mark.root
def test_the_ballast_of_a_killed_extraction_makes_room_for_a_claim(small_disk: Path) -> None:
    store = fill(empty_store(small_disk / "store", LENGTHS))
    planted = litter(store, ["orphan-manifests"])
    ballast.keep(store.filesystem, store.root)
    fill_disk(small_disk)
    done = clear(store)
    assert (len(done.removed), done.kept) == (len(planted), [])


def command(module: str, *words: Path | str) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'cli'}"}
    return subprocess.Popen(
        [sys.executable, "-m", module, *map(str, words)],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("rounds", [1, pytest.param(8, marks=pytest.mark.sweep)])
def test_gcs_beside_extractions_that_are_killed_leave_all_that_was_journalled(
    tmp_path: Path, rounds: int, record_property: Callable[[str, object], None]
) -> None:
    lengths = random.Random(7).choices(range(1, 17), k=24)  # noqa: S311 - no secret
    whole = fill(empty_store(tmp_path / "whole", lengths))
    store, log = empty_store(tmp_path / "store", lengths), tmp_path / "log"
    chance = random.Random(rounds)  # noqa: S311 - no secret
    safe: set[int] = set()
    computed: list[str] = []
    for _ in range(rounds):
        writers = [
            command("hsstore.testing.slow_extraction", store.root, log, "0.01") for _ in range(2)
        ]
        cleaners = [command("hsstore_cli", "gc", store.root, "--apply") for _ in range(2)]
        time.sleep(chance.uniform(0.5, 2.5))
        for process in writers:
            process.kill()
        for process in cleaners:
            _, said = process.communicate(timeout=60)
            assert process.returncode == 0, said
        for process in writers:
            process.communicate(timeout=60)
        assert_exact(store.root)
        computed = log.read_text().split() if log.exists() else []
        again = [sample for sample in safe if computed.count(str(sample)) > 1]
        assert not again
        safe = committed_samples(store.root) | journalled(store.root)
        assert all(done.kept == [] for done in [clear(store)])
        assert committed_samples(store.root) | journalled(store.root) == safe
        safe = {sample for sample in safe if computed.count(str(sample)) == 1}
    source = SeededSource(store.identity)
    assert extract(store, source).complete
    assert not safe & set(source.asked)
    clear(store)
    assert contents(store) == contents(whole)
    assert_complete(store.root)
    assert_tidy(store.root)
    print(f"gc beside killed extractions: {2 * rounds} kills, {2 * rounds} gcs")  # noqa: T201
    record_property("kills", 2 * rounds)


class Told(Filesystem):
    """Counts how often any folder is listed."""

    def __init__(self) -> None:
        self.listed = 0

    def names(self, path: Path) -> list[str]:
        self.listed += 1
        return super().names(path)


def test_what_was_removed_is_seen_by_one_listing_of_each_folder(tmp_path: Path) -> None:
    root, listed = empty_store(tmp_path / "store", [3]).root, []
    for count in (1, 20):
        for number in range(count):
            left = root / keys.CALIBRATION / f".00000000.json.{number:08x}"
            left.touch()
            os.utime(left, (1e9, 1e9))
        counting = Told()
        assert len(clear(Store.open(root, filesystem=counting)).removed) == count
        listed.append(counting.listed)
    assert listed[0] == listed[1]
