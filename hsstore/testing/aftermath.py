"""What must hold after trouble at a scenario, and that the same command then ends the same."""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from hsstore.errors import HsstoreError
from hsstore.model import keys
from hsstore.storage import writer
from hsstore.storage.claim import STALE_SECONDS, Holder
from hsstore.storage.store import Store
from hsstore.testing.crash_states import RecordingFilesystem, State, snapshot, write_state
from hsstore.testing.faults import Crash, FaultyFilesystem
from hsstore.testing.scenarios import Scenario, Witness, store_in
from hsstore.testing.verdicts import Litter, journalled

# What a broken promise shows as.
VIOLATIONS = (AssertionError, HsstoreError, OSError)


@dataclass(frozen=True, slots=True)
class Promises:
    """What somebody was told: which samples are safe, which shards committed, that all is done."""

    safe: frozenset[int] = frozenset()
    committed: frozenset[int] = frozenset()
    done: bool = False

    @classmethod
    def by(cls, witness: Witness, cut: int) -> "Promises":
        """Those that were made before the state after the operation ``cut`` came to be."""
        return cls(
            frozenset(s for s, told in witness.safe.items() if told <= cut),
            frozenset(s for s, told in witness.committed.items() if told <= cut),
            witness.done is not None and witness.done <= cut,
        )

    def and_also(self, other: "Promises") -> "Promises":
        """Both."""
        return Promises(
            self.safe | other.safe, self.committed | other.committed, self.done or other.done
        )


@dataclass(slots=True)
class Stage:
    """A scenario made ready: its first state, what that promises, and what must come of it."""

    scenario: Scenario
    folder: Path
    start: State = ()
    before: Promises = field(default_factory=Promises)
    expected: object = None

    @classmethod
    def of(cls, scenario: Scenario, place: Path, codec: str) -> "Stage":
        """Prepare a scenario once; ``place`` is an empty folder."""
        made = cls(scenario, place / "folder")
        made.folder.mkdir()
        with small_syncs():
            scenario.prepare(made.folder, codec)
            made.start = snapshot(made.folder)
            made.before = _there(store_in(made.folder))
            made.put(made.start)
            filesystem = FaultyFilesystem()
            scenario.work(made.folder, filesystem, Witness(filesystem))
        made.expected = scenario.verdict(made.folder)
        return made

    def put(self, state: State) -> None:
        """Let the folder be in a state, as it is found a while later."""
        shutil.rmtree(self.folder)
        write_state(state, self.folder)
        claims = store_in(self.folder) / keys.CLAIM
        if claims.exists():
            for claim in claims.iterdir():
                os.utime(claim, (0, time.time() - STALE_SECONDS - 1))

    def check(self, promised: Promises, *, other_boot: bool = False) -> None:
        """Raise unless everything promised holds and the same command ends as if undisturbed.

        With ``other_boot`` no process of before can be proved dead.
        """
        scenario, promised = self.scenario, promised.and_also(self.before)
        scenario.truth(self.folder)
        if promised.committed:
            there = Store.open(store_in(self.folder), to_check=True).committed()
            assert promised.committed <= there.keys(), "a committed shard is gone"
        assert not promised.done or scenario.gained(self.folder), "success was false"
        filesystem = FaultyFilesystem()
        witness = Witness(filesystem)
        with small_syncs(), _nobody_provably_dead() if other_boot else contextlib.nullcontext():
            scenario.work(self.folder, filesystem, witness)
        lost = promised.safe & set(witness.asked)
        assert not lost, f"samples {sorted(lost)} were safe and are computed again"
        assert scenario.verdict(self.folder) == self.expected, "it ends otherwise"


def recorded(
    stage: Stage, *, omitted: str = "", killed: str = "", turn: int = 1, breadth: int = 1
) -> tuple[RecordingFilesystem, Witness]:
    """The scenario's work under a recording filesystem, without the syncs that match ``omitted``.

    With ``killed``, the work of a second process: a first one was killed when it came to that sync
    for the ``turn``-th time, and what it had not synced is not durable yet.
    """
    stage.put(stage.start)
    filesystem = RecordingFilesystem(stage.folder, breadth=breadth)
    witness = Witness(filesystem)
    with small_syncs():
        if killed:
            filesystem.recording, filesystem.deadly = False, (killed, turn)
            with contextlib.suppress(Crash):
                stage.scenario.work(stage.folder, filesystem, witness)
            assert witness.done is None, f"nothing comes to {killed}"
            filesystem.heal()
            filesystem.recording = True
            filesystem.sites.clear()
        filesystem.omitted = omitted
        stage.scenario.work(stage.folder, filesystem, witness)
    return filesystem, witness


def violation(
    stage: Stage, filesystem: RecordingFilesystem, witness: Witness
) -> tuple[int, Exception | None]:
    """How many states were looked at until one was wrong, and how it was; None if none was.

    The last cuts come first: most of what was not synced then never was. States that were there
    before a sync was left out are not looked at; litter is nothing wrong.
    """
    seen = 0
    latest_first = sorted(filesystem.states.items(), key=lambda found: found[1], reverse=True)
    for number, (state, cut) in enumerate(latest_first):
        if cut < (filesystem.first_omitted or 0):
            continue
        seen += 1
        stage.put(state)
        try:
            stage.check(Promises.by(witness, cut), other_boot=number % 2 == 1)
        except Litter:
            continue
        except VIOLATIONS as error:
            return seen, error
    return seen, None


@contextlib.contextmanager
def small_syncs() -> Iterator[None]:
    """Journal every sample."""
    with mock.patch.object(writer, "SYNC_BYTES", 1):
        yield


@contextlib.contextmanager
def _nobody_provably_dead() -> Iterator[None]:
    with mock.patch.object(Holder, "provably_dead", return_value=False):
        yield


def _there(root: Path) -> Promises:
    """What a store promises by what it holds."""
    if not root.exists():
        return Promises()
    try:
        committed = Store.open(root, to_check=True).committed()
    except HsstoreError:
        # Nothing was promised of a store that cannot be opened.
        return Promises()
    return Promises(frozenset(journalled(root)), frozenset(committed))
