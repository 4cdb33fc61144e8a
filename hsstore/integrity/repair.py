"""repair: fsck's findings, a plan, and on demand its execution, checked again at the end."""

import contextlib
import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsstore.errors import ClaimedByAnother, Stopped, StoreError
from hsstore.integrity.examine import Listing, examine
from hsstore.integrity.fsck import Fsck
from hsstore.integrity.mending.head_documents import give_back_documents
from hsstore.integrity.mending.mend import Mended, Mender, OpenSource
from hsstore.integrity.mending.planning import DERIVED, Means, planned
from hsstore.integrity.mending.repair_cost import refuse_full_disk
from hsstore.integrity.mending.replica import Replica
from hsstore.integrity.mending.restore import Restorer, refuse_grown, refuse_to_go_on
from hsstore.integrity.mending.suspects import Suspects, by_shard
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.model.progress import Progress, Silent
from hsstore.model.repair_plan import RepairPlan, Step
from hsstore.model.report import Report
from hsstore.storage.leftovers import finish_growth, secure_plan
from hsstore.storage.lost_plan import refuse_lost_plan
from hsstore.storage.store import Store

PathLike = str | os.PathLike[str]

RESTORED = frozenset(DERIVED.values()) - {"finish-growth"} | {"rebuild-plan"}

REPLACED = "which was replaced since: check it again"
UNTOLD = "and no whole document tells whether that is what is there: check it again once mended"
UNSEEN = "what else is wrong shows once these documents are back"


@dataclass(slots=True)
class RepairResult:
    """A repair, planned (``applied`` False) or done.

    ``remaining`` are the errors that are left, and those of the warnings that a step was planned
    against; ``found`` counts what there was of both. ``notes`` say what of a report does not hold
    any more.
    """

    plan: RepairPlan
    found: int
    applied: bool = False
    done: Mended = field(default_factory=Mended)
    remaining: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

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
            "seconds": self.plan.seconds,
            "notes": [*self.notes, *self.done.notes],
        } | {name: done[name] for name in done if name != "notes"}


def repair(  # noqa: PLR0913 - what a repair may be given to work with
    store: Store | PathLike,
    *,
    source: OpenSource | None = None,
    replica: PathLike | None = None,
    shards: range | None = None,
    reports: Sequence[Report] = (),
    datasets: Sequence[PathLike] = (),
    given_back: tuple[Step, ...] = (),
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
    What is replaced goes to quarantine/ first.

    With ``reports`` only the shards that they name are looked at, and the samples of which they say
    that the states are false are lost too, unless they were replaced since. ``datasets`` are what
    the store was made and extended from: lost tokens are taken from there, if the plan proves them.
    Where a path is given and hsstore.json or the newest plan are lost, they are taken from
    ``replica`` first; ``given_back`` are the steps of that where it was done for an open store.

    Raises MalformedInput for a report of another store, IdentityMismatch where source or replica is
    another than the store's, OutOfSpace before anything is written where there is not enough for
    all of it, Stopped, OSError; what was computed by then is kept.
    """
    if not isinstance(store, Store):
        given_back = give_back_documents(store, replica, apply=apply)
    if given_back and not apply:
        return only_given_back(given_back)
    opened = store if isinstance(store, Store) else Store.open(Path(store), to_check=True)
    _refuse_misplaced_folders(opened)
    refuse_lost_plan(opened)
    copy = None if replica is None else Replica(opened, Path(replica))
    progress = progress or Silent()
    chosen, suspects = _looked_at(opened, shards, reports)
    run = Fsck(Subject(opened, "data", threads), chosen, progress, stop, keep_cases=True)
    findings = [finding for finding in run if finding.severity != "note"]
    if not run.summary.complete:
        raise Stopped("stopped before anything was mended", remedy="run the same command again")
    accused = _Accused.of(run, suspects)
    job = _Job(run, accused.cases, suspects, copy, source, tuple(datasets), progress, stop)
    means = Means(copy, source is not None, suspects)
    plan = planned(opened, findings, accused.cases, means)
    problems = [*(f for f in findings if f.severity == "error" or f.repair), *accused.held]
    result = RepairResult(
        RepairPlan((*given_back, *plan.steps)),
        len(problems) + len(given_back),
        applied=bool(given_back),
        remaining=tuple(problems),
        notes=accused.notes,
    )
    if apply and plan.steps:
        _apply(result, job)
        result.remaining = _check_again(job, {_what(problem) for problem in problems}, threads)
    return result


def only_given_back(steps: tuple[Step, ...]) -> RepairResult:
    """A repair that shows which documents it would put back: before, nothing else can be seen."""
    return RepairResult(RepairPlan(steps), len(steps), notes=(UNSEEN,))


@dataclass(frozen=True, slots=True)
class _Job:
    """What one repair works on, with what, and who is told."""

    run: Fsck
    cases: list[ShardCase]
    suspects: dict[int, Suspects]
    replica: Replica | None
    source: OpenSource | None
    datasets: tuple[PathLike, ...]
    progress: Progress
    stop: Callable[[], bool]


def _looked_at(
    store: Store, shards: range | None, reports: Sequence[Report]
) -> tuple[Sequence[int] | None, dict[int, Suspects]]:
    """The shards to look at, None for all, and what is held against the states of some."""
    if not reports:
        return shards, {}
    named, suspects = by_shard(store, reports)
    chosen = named if shards is None else named.intersection(shards)
    return sorted(chosen), {shard: suspects[shard] for shard in suspects if shard in chosen}


@dataclass(slots=True)
class _Accused:
    """All unsound shards, with those of which only the states are said to be false."""

    cases: list[ShardCase]
    held: list[Finding] = field(default_factory=list)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, run: Fsck, suspects: dict[int, Suspects]) -> "_Accused":
        """Hold what reports say against the shards as they are now."""
        cases = {case.shard: case for case in run.cases}
        found = cls([])
        sound = dict(_glanced_at(run, suspects.keys() - cases.keys()))
        for shard, said in suspects.items():
            case = cases.get(shard) or sound[shard]
            cases[shard] = case
            held, replaced = said.accuse(case)
            found.held += held
            words = REPLACED if case.manifest else UNTOLD
            found.notes += tuple(_not_held(finding, words) for finding in replaced)
        found.cases = [cases[shard] for shard in sorted(cases)]
        return found


def _glanced_at(run: Fsck, shards: Iterable[int]) -> Iterator[tuple[int, ShardCase]]:
    """Shards that were found sound: their chunks were read, so their documents are enough."""
    subject = Subject(run.subject.store, "manifest", 1)
    listing = Listing(subject)
    try:
        for shard in shards:
            yield shard, examine(subject, shard, listing)
    finally:
        subject.chunks.close()


def _not_held(finding: Finding, words: str) -> str:
    keys_named = ", ".join(finding.samples or ())
    return (
        f"shard {finding.shard}: {finding.kind} of {keys_named or 'no sample'} was found in "
        f"generation {finding.generation}, {words}"
    )


def _check_again(
    job: _Job, problems: Container["_What"], threads: int | None
) -> tuple[Finding, ...]:
    """What is left of it, by another look at all that was unsound."""
    touched = dict.fromkeys(case.shard for case in job.cases)
    first = job.run.subject
    subject = Subject(first.store, "data", threads)
    # Those of the other shards are as they were; only together can they contradict each other.
    for origin, shards in first.origins.items():
        if others := [shard for shard in shards if shard not in touched]:
            subject.origins[origin] = others
    subject.compared = first.compared
    again = Fsck(subject, touched, job.progress, job.stop)
    remaining = tuple(f for f in again if f.severity == "error" or _what(f) in problems)
    if not again.summary.complete:
        raise Stopped(
            "stopped before what was mended was checked again",
            remedy=f"run: hsstore fsck {first.root}",
        )
    return remaining + tuple(_still_accused(job))


# Kind, path and shard.
_What = tuple[str, str | None, int | None]


def _what(finding: Finding) -> _What:
    """What is wrong, and where, however much of it there is."""
    return finding.kind, finding.path, finding.shard


def _still_accused(job: _Job) -> Iterator[Finding]:
    for shard, case in _glanced_at(job.run, job.suspects):
        yield from job.suspects[shard].left(case)


def _refuse_misplaced_folders(store: Store) -> None:
    """Where a folder is a link or a file, everything in it looks lost; a person must look first."""
    for folder in keys.FOLDERS:
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISDIR(store.filesystem.status(store.root / folder).st_mode):
                raise StoreError(
                    "something else is in place of this folder",
                    place=str(store.root / folder),
                    remedy="put the real folder back or, if there is none any more, move this "
                    "away; then run the same command again",
                )


# -- applying --------------------------------------------------------------------------------------


def _apply(result: RepairResult, job: _Job) -> None:
    store, plan = job.run.subject.store, result.plan
    refuse_grown(store, job.run.subject.newest())
    replaced = {s.shard for s in plan.steps if s.action in ("extract", "replace")}
    refuse_full_disk(store.root, [case for case in job.cases if case.shard in replaced])
    secure_plan(store)
    result.applied = True
    if any(step.action == "finish-growth" for step in plan.steps):
        finish_growth(store, job.progress)
    if any(step.action in RESTORED for step in plan.steps):
        store = _restore(store, job)
    subject = Subject(store, "data", job.run.subject.chunks.threads)
    mender = Mender(subject, source=job.source, replica=job.replica, progress=job.progress,
                    stop=job.stop, suspects=job.suspects)  # fmt: skip
    result.done = mender.done
    try:
        if plan.needs_source:
            mender.open_source()
        _mend_all(mender, plan, job)
    finally:
        subject.chunks.close()
        mender.close()


def _restore(store: Store, job: _Job) -> Store:
    """Write derived files again; the store that then is."""
    other = job.replica.store if job.replica else None
    restorer = Restorer(store, other, job.datasets, progress=job.progress, stop=job.stop)
    restored = restorer.restore_all(job.run.shards).store
    if job.replica:
        job.replica.follow(restored)
    return restored


def _mend_all(mender: Mender, plan: RepairPlan, job: _Job) -> None:
    job.progress.start(mender.tokens(plan.shards), 0, "tok")
    for shard in plan.shards:
        refuse_to_go_on(job.stop)
        with _noted(mender.done):
            mender.mend(shard)


@contextlib.contextmanager
def _noted(done: Mended) -> Iterator[None]:
    """Leave a shard that another writer holds to that writer."""
    try:
        yield
    except ClaimedByAnother as error:
        done.notes.append(str(error))
