"""Every operation of every kind of work refused, once and for ever, in every way a disk has.

After each: what is committed is right, what was journalled is not computed again, the same command
ends as if nothing had happened, and no file whose sync failed was synced, linked or renamed again.
"""

import errno
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from hsstore.errors import HsstoreError
from hsstore.integrity.fsck import fsck
from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing.aftermath import Promises, Stage, small_syncs
from hsstore.testing.crash_states import snapshot
from hsstore.testing.faults import CHANGING, GROWING, READING, FaultyFilesystem
from hsstore.testing.scenarios import (
    ADOPT,
    CLEAR,
    COPY_AGAIN,
    COPY_GROWN,
    CREATE,
    ENCODE,
    EXTEND,
    EXTRACT,
    REBUILD_PLAN,
    REMAKE,
    REPAIR,
    REPLACE,
    RESTORE,
    RESTORE_FOLDER,
    ROLL_FORWARD,
    SALVAGE,
    SCENARIOS,
    SUPERSEDE,
    Scenario,
    Witness,
    store_in,
)
from hsstore.testing.thinning import visited
from hsstore.testing.verdicts import journalled


class Fault(NamedTuple):
    """``code`` None stands for a write of which the system takes half."""

    code: int | None
    kinds: frozenset[str]
    forever: bool

    def __str__(self) -> str:
        what = "short write" if self.code is None else errno.errorcode[self.code]
        reading = " on reading" if self.kinds == READING else ""
        return f"{what}{reading} {'for ever' if self.forever else 'once'}"

    def script(self, filesystem: FaultyFilesystem, at: int) -> None:
        """Have it happen at an operation."""
        if self.code is None:
            filesystem.shorten(at, forever=self.forever)
        else:
            filesystem.fail(at, self.code, forever=self.forever)


WAYS = [
    *((code, GROWING) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
    (errno.EIO, CHANGING),
    (errno.EIO, READING),
    (None, frozenset({"write"})),
]
FAULTS = [Fault(code, kinds, forever) for code, kinds in WAYS for forever in (False, True)]
SMALL = [
    (EXTRACT, "none", Fault(errno.EIO, CHANGING, forever=False)),
    (EXTRACT, "blosc-zstd", Fault(errno.ENOSPC, GROWING, forever=True)),
    (REPLACE, "none", Fault(errno.ENOSPC, GROWING, forever=False)),
    (EXTEND, "none", Fault(errno.EIO, CHANGING, forever=True)),
]
SHORT = Fault(None, frozenset({"write"}), forever=False)
# Every way for the works that write most; for the others, and for the other codec, some. The three
# ways of a disk to be full are one to the code: all of them where it matters most.
WHOLE = (CREATE, EXTRACT, ADOPT, SALVAGE, REPLACE, EXTEND, CLEAR)
ALL_WAYS = (EXTRACT, REPLACE)
BOTH_CODECS = (EXTRACT, ADOPT, SALVAGE, REPLACE)
SOME = [fault for fault in FAULTS if fault.code not in (errno.EDQUOT, errno.EFBIG)]
REPAIRS = (REPAIR, REMAKE, RESTORE, RESTORE_FOLDER, REBUILD_PLAN, SUPERSEDE)
COPIES = (COPY_AGAIN, COPY_GROWN, ENCODE)
FEW = [
    Fault(errno.ENOSPC, GROWING, forever=True),
    Fault(errno.EIO, CHANGING, forever=False),
    Fault(errno.EIO, READING, forever=False),
]
MATRIX = [
    *((s, "none", fault) for s in WHOLE for fault in (FAULTS if s in ALL_WAYS else SOME)),
    *((scenario, "blosc-zstd", fault) for scenario in BOTH_CODECS for fault in (*FEW, SHORT)),
    *((s, "none", fault) for s in SCENARIOS if s not in WHOLE for fault in FEW),
]
# A repair reads everything several times, as does a copy; one of each that reads is enough. What a
# copy does on a full disk is the same in all of them.
MATRIX = [case for case in MATRIX if case[0] not in REPAIRS or case[2].kinds != READING]
MATRIX = [case for case in MATRIX if case[0] not in COPIES or case[2].kinds == CHANGING]
ALL = [
    *(pytest.param(*case, id="-".join(map(str, case))) for case in SMALL),
    *(
        pytest.param(*case, id="-".join(map(str, case)), marks=pytest.mark.sweep)
        for case in MATRIX
        if case not in SMALL
    ),
]


@pytest.mark.parametrize(("scenario", "codec", "fault"), ALL)
def test_any_refused_operation_costs_only_what_was_not_journalled(
    tmp_path: Path,
    scenario: Scenario,
    codec: str,
    fault: Fault,
    record_property: Callable[[str, object], None],
) -> None:
    stage = Stage.of(scenario, tmp_path, codec)
    moments = visited(operations(stage, fault))
    for at in moments:
        stage.put(stage.start)
        filesystem = FaultyFilesystem(fault.kinds)
        fault.script(filesystem, at)
        witness = Witness(filesystem)
        refused = refusal(stage, filesystem, witness)
        if isinstance(refused, OSError):
            assert refused.filename is not None
            # What could not be looked at may show later, as something that is in the way.
            assert fault.kinds == READING or refused.errno == fault.code, refused
        filesystem.heal()
        stage.check(promises(stage, witness))
        assert filesystem.touched_after_failure == [], f"operation {at}"
    print(f"{scenario}, {codec}, {fault}: {len(moments)} operations, 0 violations")  # noqa: T201 - CI's log
    record_property("operations", len(moments))


def operations(stage: Stage, fault: Fault) -> int:
    """How many operations there are that the fault may hit."""
    stage.put(stage.start)
    filesystem = FaultyFilesystem(fault.kinds)
    assert refusal(stage, filesystem, Witness(filesystem)) is None
    assert filesystem.operations
    return len(filesystem.operations)


def refusal(
    stage: Stage, filesystem: FaultyFilesystem, witness: Witness
) -> OSError | HsstoreError | None:
    try:
        with small_syncs():
            stage.scenario.work(stage.folder, filesystem, witness)
    except (OSError, HsstoreError) as error:
        return error
    return None


def promises(stage: Stage, witness: Witness) -> Promises:
    """What was said before the fault, and what journals say after it."""
    root = store_in(stage.folder)
    kept = journalled(root) if root.exists() else set()
    done = witness.done is not None
    return Promises(frozenset(kept | witness.safe.keys()), frozenset(witness.committed), done)


def test_what_cannot_be_looked_at_now_is_not_set_aside(tmp_path: Path) -> None:
    """Only bytes that are wrong, or that the disk has lost, discredit a shard file in place."""
    stage = Stage.of(ROLL_FORWARD, tmp_path, "none")
    root, refused = store_in(stage.folder), 0
    data = root / keys.shard_file(0)
    for at in range(operations(stage, Fault(errno.EIO, READING, forever=False))):
        stage.put(stage.start)
        filesystem = FaultyFilesystem(READING)
        filesystem.fail(at, errno.EIO)
        refused += refusal(stage, filesystem, Witness(filesystem)) is not None
        if filesystem.operations[at] != ("read", data):
            assert list((root / keys.QUARANTINE).iterdir()) == [], filesystem.operations[at]
    assert refused > 10


@pytest.mark.parametrize("forever", [False, True], ids=["once", "for ever"])
def test_whatever_cannot_be_read_fsck_says_so_and_changes_nothing(
    tmp_path: Path, *, forever: bool
) -> None:
    stage = Stage.of(REPLACE, tmp_path, "none")
    root = store_in(stage.folder)
    before = snapshot(root)
    told, total = 0, len(looked_at(root, FaultyFilesystem(READING))[1])
    for at in range(total):
        filesystem = FaultyFilesystem(READING)
        filesystem.fail(at, errno.EIO, forever=forever)
        found, _ = looked_at(root, filesystem)
        told += bool(found)
    assert looked_at(root, FaultyFilesystem(READING))[0] == []
    assert [entry[:2] for entry in snapshot(root)] == [entry[:2] for entry in before]
    assert told > total / 2
    print(f"fsck: {total} reads refused, {told} of them told")  # noqa: T201 - for CI's log


def looked_at(
    root: Path, filesystem: FaultyFilesystem
) -> tuple[list[object], list[tuple[str, Path]]]:
    """What fsck says of a store, an error that it raises included, and what it read."""
    found: list[object] = []
    try:
        store = Store.open(root, filesystem=filesystem, to_check=True)
        found += fsck(store, threads=1)
    except (OSError, HsstoreError) as error:
        found.append(error)
    return found, filesystem.operations
