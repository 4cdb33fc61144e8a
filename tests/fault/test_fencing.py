"""A writer stalled between any two steps, overtaken, and woken: its successor's work stays."""

import contextlib
import functools
import gc
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from hsstore.errors import ClaimedByAnother
from hsstore.extraction.extractor import extract
from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import repair
from hsstore.model import keys
from hsstore.storage import writer
from hsstore.storage.claim import read_holder
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.store import Store
from hsstore.testing.damage import flip_bit
from hsstore.testing.elsewhere import claims, make_stale, move_holders_elsewhere
from hsstore.testing.faults import Crash
from hsstore.testing.interleave import Actor
from hsstore.testing.sources import SeededSource
from hsstore.testing.steps import SteppedFilesystem
from hsstore.testing.stores import contents, empty_store, fill, replace
from hsstore.testing.thinning import EVERY
from hsstore.testing.verdicts import assert_complete, assert_exact, journalled

LENGTHS = (3, 4)
LOOKING = (keys.CLAIM, keys.STAGE, keys.INTENT)


@pytest.fixture(autouse=True)
def journal_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SYNC_BYTES", 1)


@pytest.fixture(autouse=True)
def no_locks_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before 3.12 a cached property of two stores has one lock, which two processes do not."""
    for found in gc.get_objects():
        # Not isinstance, at which some lazy objects import, or warn.
        if type(found) is functools.cached_property and hasattr(found, "lock"):
            monkeypatch.setattr(found, "lock", contextlib.nullcontext())


# -- what two writers do -------------------------------------------------------------------------

Work = Callable[[Path, Filesystem], object]


def extraction(root: Path, filesystem: Filesystem) -> SeededSource:
    store = Store.open(root, filesystem=filesystem)
    source = SeededSource(store.identity)
    extract(store, source)
    return source


def replacement(root: Path, filesystem: Filesystem) -> None:
    replace(Store.open(root, filesystem=filesystem), 0)


def repairing(root: Path, filesystem: Filesystem) -> None:
    store = Store.open(root, filesystem=filesystem)
    repair(store, source=lambda: SeededSource(store.identity), apply=True, threads=1)


# -- where they begin ----------------------------------------------------------------------------


def empty(root: Path, codec: str) -> Path:
    return empty_store(root, LENGTHS, codec=codec).root


def filled(root: Path, codec: str) -> Path:
    return fill(Store.open(empty(root, codec))).root


def damaged(root: Path, codec: str) -> Path:
    flip_bit(filled(root, codec) / keys.shard_file(0), 20)
    return root


def begun(root: Path, codec: str) -> Path:
    """What a killed writer leaves: a claim, a holder, and one of the samples."""

    def stop(*_: object) -> None:
        if journalled(root):
            raise Crash

    empty(root, codec)
    with pytest.raises(Crash):
        extraction(root, SteppedFilesystem(stop))
    assert journalled(root) == {0}
    return root


def unexplained(root: Path, codec: str) -> Path:
    """A shard file that nothing proves is in place."""
    path = empty(root, codec) / keys.shard_file(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"what is this?")
    return root


class Scenario(NamedTuple):
    template: Callable[[Path, str], Path]
    work: Work


SCENARIOS = {
    "new": Scenario(empty, extraction),
    "resumed": Scenario(begun, extraction),
    "unexplained": Scenario(unexplained, extraction),
    "replaced": Scenario(filled, replacement),
    "repaired": Scenario(damaged, repairing),
}


class Race:
    """One store, and two writers of it that take turns as they are told."""

    def __init__(self, scenario: Scenario, folder: Path, codec: str) -> None:
        self.scenario = scenario
        self.template = scenario.template(folder / "template", codec)
        self.root = folder / "store"
        whole = Path(shutil.copytree(self.template, folder / "whole"))
        first = self.writer(whole)
        first.run_until(None)
        assert first.error is None
        self.operations = first.filesystem.operations
        self.expected = contents(Store.open(whole))

    def writer(self, root: Path) -> Actor:
        return Actor(lambda filesystem: self.scenario.work(root, filesystem), looking=LOOKING)

    def stalled_at(self, operation: int, *, elsewhere: bool) -> Actor:
        """A writer of a new store that stands there and is taken for dead."""
        shutil.rmtree(self.root, ignore_errors=True)
        shutil.copytree(self.template, self.root)
        old = self.writer(self.root)
        # A thread of its own may be the one that comes to that operation: then it does not stop.
        assert old.run_until(operation) or self.scenario.work is repairing
        move_holders_elsewhere(self.root) if elsewhere else make_stale(self.root)
        return old

    def assert_sound(self, *writers: Actor) -> None:
        """Nobody failed but by being overtaken; what is committed is right and can be completed."""
        for number, each in enumerate(writers):
            story = f"writer {number} stood at {[w.stopped_at for w in writers]}"
            assert each.error is None or isinstance(each.error, ClaimedByAnother), story
        store = Store.open(self.root)
        if self.scenario.work is not repairing:
            assert_exact(self.root)
        self.scenario.work(self.root, store.filesystem)
        fill(store)
        assert_complete(self.root)
        assert contents(Store.open(self.root)) == self.expected
        assert [f for f in fsck(self.root, "data", threads=1) if f.severity != "note"] == []


def overtaken(race: Race, operation: int, *, elsewhere: bool) -> None:
    """The successor runs to its end while the old writer stalls."""
    old = race.stalled_at(operation, elsewhere=elsewhere)
    claimed, kept = bool(claims(race.root)), journalled(race.root)
    held = open_files(race.root)
    new = race.writer(race.root)
    assert not new.run_until(None)
    assert new.error is None, old.stopped_at
    if isinstance(new.result, SeededSource):
        assert not kept & set(new.result.asked), old.stopped_at
    after = committed(race.root)
    assert Path(race.root / keys.shard_file(0)).stat().st_ino not in held, old.stopped_at
    old.run_until(None)
    if claimed:
        assert committed(race.root) == after, old.stopped_at
    race.assert_sound(old, new)


def overtaken_halfway(race: Race, operation: int, later: int, *, elsewhere: bool) -> None:
    """The old writer ends while its successor stands at an operation of its own."""
    old = race.stalled_at(operation, elsewhere=elsewhere)
    new = race.writer(race.root)
    new.run_until(later)
    old.run_until(None)
    new.run_until(None)
    race.assert_sound(old, new)


def open_files(root: Path) -> set[int]:
    """The inodes of staged files that somebody may have open, and that no commit has reached."""
    if list((root / keys.INTENT).iterdir()):
        return set()
    found = []
    for path in (root / keys.STAGE).glob(f"*/{keys.STAGED_HOLDER}"):
        holder, data = read_holder(LOCAL, path), path.with_name(keys.STAGED_DATA)
        if holder is not None and not holder.provably_dead() and data.exists():
            found.append(data.stat())
    return {status.st_ino for status in found if status.st_nlink == 1}


def committed(root: Path) -> dict[str, bytes]:
    """The markers, and the inode of the shard file."""
    found = {p.name: p.read_bytes() for p in (root / keys.COMMIT).glob("[0-9]*.json")}
    return found | {"inode": str((root / keys.shard_file(0)).stat().st_ino).encode()}


# -- the races -------------------------------------------------------------------------------------


@pytest.fixture(params=SCENARIOS)
def race(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Race]:
    made = Race(SCENARIOS[request.param], tmp_path, "none")
    yield made
    shutil.rmtree(made.root)


@pytest.mark.parametrize("every", [17, pytest.param(EVERY, marks=pytest.mark.sweep)])
def test_a_writer_stalled_anywhere_cannot_harm_its_successor(
    race: Race, every: int, record_property: Callable[[str, object], None]
) -> None:
    stalls = range(0, race.operations, every)
    for operation in stalls:
        overtaken(race, operation, elsewhere=bool(operation % 2))
    record_property("stalls", len(stalls))
    print(f"{len(stalls)} stalls of {race.operations} operations, 0 violations")  # noqa: T201


@pytest.mark.parametrize("pairs", [12, pytest.param(150 // EVERY, marks=pytest.mark.sweep)])
def test_a_writer_that_wakes_before_its_successor_is_done_harms_nobody(
    race: Race, pairs: int, record_property: Callable[[str, object], None]
) -> None:
    chance = random.Random(pairs)  # noqa: S311 - no secret
    for _ in range(pairs):
        operation = chance.randrange(race.operations)
        overtaken_halfway(
            race, operation, chance.randrange(race.operations), elsewhere=chance.random() < 0.5
        )
    record_property("pairs of stalls", pairs)
    print(f"{pairs} pairs of stalls, 0 violations")  # noqa: T201
