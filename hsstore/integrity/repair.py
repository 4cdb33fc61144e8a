"""repair: fsck's findings, a plan, and on demand its execution, checked again at the end."""

import contextlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsstore.errors import ClaimedByAnother, Stopped, StoreError
from hsstore.integrity.fsck import Fsck
from hsstore.integrity.mend import Mended, Mender, OpenSource, is_unreadable, staged_bytes
from hsstore.integrity.replica import Replica
from hsstore.integrity.restore import Restorer, refuse_grown, refuse_to_go_on
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.model.progress import Progress, Silent
from hsstore.model.repair_plan import Action, Provider, RepairPlan, Step
from hsstore.storage.leftovers import finish_growth, secure_plan
from hsstore.storage.lost_plan import refuse_lost_plan
from hsstore.storage.store import Store

PathLike = str | os.PathLike[str]

DERIVED: dict[str, Action] = {
    "folder": "make-folder",
    "growth": "finish-growth",
    "metadata": "rewrite-metadata",
    "tokens": "rebuild-tokens",
    "array": "rewrite-array",
    "calibration": "set-aside-calibration",
}

RESTORED = frozenset(DERIVED.values()) - {"finish-growth"}


@dataclass(slots=True)
class RepairResult:
    """A repair, planned (``applied`` False) or done.

    ``remaining`` are the errors that are left; ``found`` counts the errors there were.
    """

    plan: RepairPlan
    found: int
    applied: bool = False
    done: Mended = field(default_factory=Mended)
    remaining: tuple[Finding, ...] = ()

    @property
    def corrected(self) -> bool:
        """Whether something was done and nothing is left to do."""
        return self.applied and not self.remaining

    def to_json(self) -> dict[str, Any]:
        """The last line of ``repair --json``."""
        done = {name: getattr(self.done, name) for name in Mended.__slots__}
        return {
            "type": "summary",
            "applied": self.applied,
            "problems_found": self.found,
            "problems_remaining": len(self.remaining),
            "lacks_source": self.plan.lacks_source,
        } | done


def repair(
    store: Store | PathLike,
    *,
    source: OpenSource | None = None,
    replica: PathLike | None = None,
    shards: range | None = None,
    apply: bool = False,
    threads: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> RepairResult:
    """Plan the repair of a store, or of a range of its shards, and with ``apply`` carry it out.

    Order: decided replacements are finished, whole shards without a marker are committed, derived
    files are written again; then each damaged or missing shard gets its next generation from its
    whole samples, from ``replica`` (the path of a copy; only verified bytes are taken) and from
    ``source`` (called only if states must be computed; it is asked for exactly the lost samples).
    What is replaced goes to quarantine/ first. Raises IdentityMismatch where source or replica is
    another than the store's, OutOfSpace, Stopped, OSError; what was computed by then is kept.
    """
    opened = store if isinstance(store, Store) else Store.open(Path(store), to_check=True)
    _refuse_misplaced_folders(opened)
    refuse_lost_plan(opened)
    copy = None if replica is None else Replica(opened, Path(replica))
    progress = progress or Silent()
    run = Fsck(Subject(opened, "data", threads), shards, progress, stop, keep_cases=True)
    findings = [finding for finding in run if finding.severity != "note"]
    if not run.summary.complete:
        raise Stopped("stopped before anything was mended", remedy="run the same command again")
    plan = _plan(run, findings, copy, with_source=source is not None)
    errors = tuple(f for f in findings if f.severity == "error")
    result = RepairResult(plan, len(errors), remaining=errors)
    if apply and plan.steps:
        _apply(result, run, copy, source, progress, stop)
        result.remaining = _check_again(run, threads, stop)
    return result


def _check_again(run: Fsck, threads: int | None, stop: Callable[[], bool]) -> tuple[Finding, ...]:
    """The errors that are left, by another look at all that was unsound."""
    touched = [case.shard for case in run.cases]
    before = run.subject
    subject = Subject(before.store, "data", threads)
    # Those of the other shards are as they were; only together can they contradict each other.
    for origin, shards in before.origins.items():
        if others := [shard for shard in shards if shard not in touched]:
            subject.origins[origin] = others
    subject.compared = before.compared
    again = Fsck(subject, touched, Silent(), stop)
    remaining = tuple(finding for finding in again if finding.severity == "error")
    if not again.summary.complete:
        raise Stopped(
            "stopped before what was mended was checked again",
            remedy=f"run: hsstore fsck {before.root}",
        )
    return remaining


def _refuse_misplaced_folders(store: Store) -> None:
    """Where a folder is a link or a file, everything in it looks lost; a person must look first."""
    for folder in keys.FOLDERS:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(store.filesystem.status(store.root / folder).st_mode):
                raise StoreError(
                    "something else is in place of this folder",
                    place=str(store.root / folder),
                    remedy="put the real folder back, then run the same command again",
                )


# -- planning --------------------------------------------------------------------------------------


def _plan(
    run: Fsck, findings: list[Finding], replica: Replica | None, *, with_source: bool
) -> RepairPlan:
    steps = list(_derived(findings))
    for case in run.cases:
        steps += _steps(case, replica, with_source=with_source)
    return RepairPlan(tuple(steps))


def _derived(findings: list[Finding]) -> Iterator[Step]:
    order = list(DERIVED)
    wanted = [f for f in findings if f.kind.partition("-")[0] in DERIVED]
    for finding in sorted(wanted, key=lambda f: order.index(f.kind.partition("-")[0])):
        action = DERIVED[finding.kind.partition("-")[0]]
        yield Step(action, finding.kind, "store", finding.shard, finding.path)


def _steps(case: ShardCase, replica: Replica | None, *, with_source: bool) -> Iterator[Step]:
    kinds = sorted({f.kind for f in case.findings if f.kind.partition("-")[0] not in DERIVED})
    reason = ", ".join(kinds)
    if "intent-pending" in kinds:
        yield Step("finish-replacement", "intent-pending", "store", case.shard)
    if case.provable:
        yield Step("roll-forward", reason, "store", case.shard)
    elif case.lost:
        action: Action = "extract" if kinds == ["shard-missing"] else "replace"
        yield from _remade(case, replica, action, reason, with_source=with_source)
    elif case.marker is None or is_unreadable(case):
        yield Step("replace", reason, "store", case.shard, writes_bytes=staged_bytes(case))
    elif case.discredited:
        yield Step("set-aside", reason, "store", case.shard, case.discredited[0])


def _remade(
    case: ShardCase, replica: Replica | None, action: Action, reason: str, *, with_source: bool
) -> Iterator[Step]:
    """A step for each provider of lost samples."""
    by_provider: dict[Provider, list[int]] = {}
    contents = {s.sample: s.content for s in case.manifest.samples} if case.manifest else {}
    for sample in sorted(case.lost):
        in_replica = replica and replica.sample(case.shard, sample, contents.get(sample))
        provider: Provider = "source" if with_source else "nobody"
        by_provider.setdefault("replica" if in_replica else provider, []).append(sample)
    table = case.subject.table
    for provider, samples in by_provider.items():
        yield Step(
            action,
            reason,
            provider,
            case.shard,
            samples=case.subject.keys(case.shard, samples),
            tokens=int(table.length[samples].sum()) if table else 0,
            writes_bytes=staged_bytes(case),
        )


# -- applying --------------------------------------------------------------------------------------


def _apply(
    result: RepairResult,
    run: Fsck,
    replica: Replica | None,
    open_source: OpenSource | None,
    progress: Progress,
    stop: Callable[[], bool],
) -> None:
    store = run.subject.store
    refuse_grown(store, run.subject.newest())
    secure_plan(store)
    result.applied = True
    if any(step.action == "finish-growth" for step in result.plan.steps):
        finish_growth(store, progress)
    if any(step.action in RESTORED for step in result.plan.steps):
        restorer = Restorer(store, replica.store if replica else None, stop=stop)
        store = restorer.restore_all(run.shards).store
    subject = Subject(store, "data", run.subject.chunks.threads)
    mender = Mender(subject, source=open_source, replica=replica, progress=progress, stop=stop)
    result.done = mender.done
    try:
        if result.plan.needs_source:
            mender.open_source()
        progress.start(sum(step.tokens for step in result.plan.steps), 0, "tok")
        for shard in result.plan.shards:
            refuse_to_go_on(stop)
            with _noted(result.done):
                mender.mend(shard)
    finally:
        subject.chunks.close()
        mender.close()


@contextlib.contextmanager
def _noted(done: Mended) -> Iterator[None]:
    """Leave a shard that another writer holds to that writer."""
    try:
        yield
    except ClaimedByAnother as error:
        done.notes.append(str(error))
