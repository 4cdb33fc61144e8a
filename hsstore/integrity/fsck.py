"""fsck: every check over every shard, read-only, as a stream of findings."""

import contextlib
import errno
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path

from hsstore.errors import InvalidDocument
from hsstore.integrity.checks import (
    arrays,
    calibrations,
    comparisons,
    folders,
    metadata,
    origins,
    plans,
    waivers,
)
from hsstore.integrity.examine import Listing, examine
from hsstore.integrity.scrub.remembered import Memory, generation_of
from hsstore.integrity.scrub.report_file import Transcript
from hsstore.integrity.scrub.schedule import Scrub, refuse_within
from hsstore.integrity.scrub.verdicts import FileHint, file_hint
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model import commands, keys
from hsstore.model.document import timestamp
from hsstore.model.finding import Finding, Level, Summary, severity_of
from hsstore.model.progress import Progress, Silent
from hsstore.model.report import Checked, Run
from hsstore.storage.filesystem import LOCAL
from hsstore.storage.store import Store

PathLike = str | os.PathLike[str]

TICK_SECONDS = 1.0
# Looking at a shard's names and sizes takes less time than handing it to a thread.
QUICK_AT_ONCE = 64


def fsck(
    store: Store | PathLike,
    level: Level = "data",
    *,
    shards: range | None = None,
    scrub: Scrub | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> "Fsck | Unopened":
    """Check a store, or a range of its shards; nothing is written into it.

    ``level`` is ``quick`` (markers and sizes), ``manifest`` (and every document, index, token file
    and array, and norms by layer), ``data`` (and every stored chunk) or ``thorough`` (and what the
    decoded rows are). ``scrub`` makes the run one of many: a subset, a time limit, verdicts that
    are remembered, a report. Iterate over the result for the findings; its ``summary`` counts
    along, and only ``summary.complete`` says that all was looked at. A store whose identity or plan
    is damaged gives that one finding. Raises NotAStore, UnsupportedFormat, MalformedInput for a
    report or state inside the store; iterating, StorageFailed where the report cannot be written.
    """
    progress, scrub = progress or Silent(), scrub or Scrub()
    root = store.root if isinstance(store, Store) else Path(store)
    try:
        opened = store if isinstance(store, Store) else Store.open(root, to_check=True)
    except (InvalidDocument, OSError) as error:
        refuse_within(root, scrub)
        return Unopened(root, level, error, scrub, progress)
    refuse_within(root, scrub)
    return Fsck(Subject(opened, level, threads), shards, progress, stop, scrub=scrub)


class Unopened:
    """The run of fsck over a store that cannot be opened: one finding, and nothing was checked."""

    store = None

    def __init__(self, root: Path, level: Level, error: InvalidDocument | OSError, scrub: Scrub,
                 progress: Progress) -> None:  # fmt: skip
        self.summary = Summary(level, shards_total=0, unverified=0, subset=scrub.subset)
        started = timestamp(scrub.clock.now())
        run = Run(None, os.path.abspath(root), level, None, 0, 0, started)  # noqa: PTH100 - links stay
        self.transcript = Transcript(run, scrub, progress.note)
        self._finding = _unopened(root, error)

    def __iter__(self) -> Generator[Finding, None, None]:
        with self.transcript.kept(self.summary):
            self.summary.findings[self._finding.severity] = 1
            self.transcript.finding(self._finding)
            yield self._finding


def _unopened(root: Path, error: InvalidDocument | OSError) -> Finding:
    path = _named(root, error)
    identity = path == keys.IDENTITY
    if isinstance(error, InvalidDocument):
        state, detail = "invalid", error.message
    else:
        gone = isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError)
        state = "invalid" if gone or error.errno == errno.ELOOP else "unreadable"
        detail = error.strerror or str(error)
    remedy = "hsstore.json of this very store" if identity else "plan/ of this very store"
    kind = f"{'identity' if identity else 'plan'}-{state}"
    detail = f"{detail}; nothing else can be checked until a copy of {remedy} is put back"
    repair = commands.hsstore("repair", root, *commands.REPLICA, "--apply")
    return Finding(kind, severity_of(kind), detail, path=path, repair=repair)


def _named(root: Path, error: InvalidDocument | OSError) -> str:
    """The document, or folder, that an error of opening a store is about, relative to it."""
    place = error.filename if isinstance(error, OSError) else error.place
    if place and Path(place).is_relative_to(root) and Path(place) != root:
        return Path(place).relative_to(root).as_posix()
    return keys.PLAN if _is_readable(root / keys.IDENTITY) else keys.IDENTITY


def _is_readable(path: Path) -> bool:
    """Whether a file's bytes can be had."""
    try:
        LOCAL.read(path)
    except OSError:
        return False
    return True


# What was known of the file before, and what was found.
Examined = list[tuple[FileHint | None, ShardCase]]
Check = Callable[[], Iterable[Finding]]


class Fsck:
    """One run of fsck: an iterator of findings.

    ``shards`` are those asked for, ``transcript`` tells the run line by line. ``cases`` is what is
    known of unsound shards, with their manifests, where ``keep_cases`` asks for it.
    """

    def __init__(self, subject: Subject, shards: Iterable[int] | None, progress: Progress,
                 stop: Callable[[], bool], *, scrub: Scrub | None = None,
                 keep_cases: bool = False) -> None:  # fmt: skip
        every = range(subject.store.plan.shards)
        self.subject = subject
        self.store: Store | None = subject.store
        self._scrub = scrub or Scrub()
        self.shards = self._scrub.shards(
            every if shards is None else [*filter(every.__contains__, shards)]
        )
        self.summary = Summary(
            subject.level,
            len(every),
            unverified=sum(len(subject.samples(shard)) for shard in self.shards),
            shards_asked=len(self.shards),
            subset=self._scrub.subset,
        )
        self.cases: list[ShardCase] = []
        self.transcript = Transcript(self._run(shards), self._scrub, progress.note)
        self._keep_cases = keep_cases
        self._progress = progress
        self._stop = stop
        self._damaged: set[tuple[int, str]] = set()
        self._after: list[Check] = []
        self._deadline, self._next_tick = float("inf"), float("-inf")

    def then(self, check: Check) -> None:
        """Add a check that comes after all others, in a run that reaches its end."""
        self._after.append(check)

    def __iter__(self) -> Generator[Finding, None, None]:
        clock, seconds = self._scrub.clock, self._scrub.max_duration_seconds
        if seconds is not None:
            self._deadline = clock.elapsed() + seconds
        with contextlib.ExitStack() as stack:
            stack.callback(self.subject.chunks.close)
            stack.enter_context(self.transcript.kept(self.summary))
            self._memory = Memory(self.subject, self._scrub, self._progress.note)
            stack.callback(self._memory.close)
            stack.enter_context(self._interruptible())
            for finding in self._findings():
                self._count(finding)
                self.transcript.finding(finding)
                yield finding

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Say in the summary that somebody ended the run, where somebody does."""
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            self.summary.stopped = "interrupted"
            raise

    def _findings(self) -> Iterator[Finding]:
        subject = self.subject
        yield from plans.check(subject)
        yield from calibrations.check(subject)
        yield from waivers.check(subject)
        unlisted = set()
        for finding in folders.check(subject):
            unlisted |= {finding.path} if finding.kind == "folder-unreadable" else set()
            yield finding
        # Without these nothing can be said of any shard, least of all that it is lost.
        if unlisted & {keys.COMMIT, keys.INTENT}:
            return
        if subject.at_least("manifest"):
            yield from metadata.check(subject)
            yield from folders.check_tokens(subject)
            yield from folders.check_zarr(subject)
        yield from self._shards()
        if self.summary.stopped == "interrupted":
            return
        # Of the shards that were looked at, however many: another run sees to the others.
        if subject.at_least("manifest"):
            yield from arrays.check_tables(subject)
            yield from origins.check(subject)
            yield from self._compared()
        if self.summary.stopped:
            return
        failed = False
        for check in self._after:
            for finding in check():
                failed |= finding.kind == "audit-failed"
                yield finding
        audit = self.summary.audit
        self.summary.complete = not failed and (audit is None or audit.complete)

    def _compared(self) -> Iterator[Finding]:
        """What shows between shards, here or in an earlier run that looked at others of them."""
        for finding in comparisons.check(self.subject):
            self._memory.accuse(finding)
            yield finding
        compared = self.subject.compared.generations.keys()
        yield from self._memory.recalled({*self.shards}, compared, self._listing)

    # -- shard by shard -------------------------------------------------------------------------

    def _shards(self) -> Iterator[Finding]:
        self._listing = listing = Listing(self.subject)
        due = self._schedule(listing)
        for file, case in self._cases(due, listing):
            self._settle(case)
            comparisons.note(case)
            yield from case.findings
            self._done(case, file)
        self.transcript.flush()

    def _schedule(self, listing: Listing) -> list[int]:
        due, recent = self._memory.schedule(self.shards, listing)
        self.summary.shards_recent = len(recent)
        self.summary.unverified -= sum(len(self.subject.samples(shard)) for shard in recent)
        if self.subject.at_least("data"):
            left, done = (sum(map(self._bytes, shards)) for shards in (due, recent))
            self._progress.start(left + done, done, "bytes")
        else:
            self._progress.start(len(self.shards), len(recent), "shards")
        return due

    def _bytes(self, shard: int) -> int:
        """How long a shard's file is, which is what looking at all of it takes."""
        file = file_hint(self.subject.store, shard)
        return 0 if file is None else file.size

    def _cases(
        self, shards: Sequence[int], listing: Listing
    ) -> Iterator[tuple[FileHint | None, ShardCase]]:
        """Examine shards, several at once, in order."""
        at_once = 1 if self.subject.at_least("manifest") else QUICK_AT_ONCE
        ahead = self.subject.chunks.threads
        pending: deque[Future[Examined]] = deque()
        with ThreadPoolExecutor(ahead, thread_name_prefix="examine") as pool:
            try:
                for first in range(0, len(shards), at_once):
                    if self._is_stopped():
                        return
                    if self._is_late(pending):
                        break
                    batch = shards[first : first + at_once]
                    pending.append(pool.submit(self._examine, batch, listing))
                    if len(pending) > ahead:
                        yield from self._awaited(pending.popleft())
                while pending:
                    if self._is_stopped():
                        return
                    yield from self._awaited(pending.popleft())
            finally:
                for future in pending:
                    future.cancel()
                if pending:
                    self.subject.chunks.close()

    def _examine(
        self, shards: Sequence[int], listing: Listing
    ) -> list[tuple[FileHint | None, ShardCase]]:
        """Examine shards, each with the hint of its file from before."""
        hints = map(self._memory.hint, shards)
        return [
            (hint, examine(self.subject, k, listing)) for k, hint in zip(shards, hints, strict=True)
        ]

    def _awaited(self, future: "Future[Examined]") -> "Examined":
        """What a thread found, and meanwhile what there is is kept."""
        while not wait([future], TICK_SECONDS).done:
            self._tick()
        return future.result()

    def _is_stopped(self) -> bool:
        if self._stop():
            self.summary.stopped = "interrupted"
        return self.summary.stopped == "interrupted"

    def is_out_of_time(self) -> bool:
        """Whether the time is up: what is not begun yet is left out then, as the summary says."""
        if self._scrub.clock.elapsed() < self._deadline:
            return False
        self.summary.stopped = "max-duration"
        return True

    def _is_late(self, pending: "deque[Future[Examined]]") -> bool:
        """Whether the time is up, and something was begun; the rest is left for another run."""
        if not (self.summary.shards_checked or pending) or not self.is_out_of_time():
            return False
        first = None if self.summary.shards_checked else pending[0]
        begun = [future for future in pending if future is first or not future.cancel()]
        pending.clear()
        pending.extend(begun)
        return True

    def _settle(self, case: ShardCase) -> None:
        summary = self.summary
        summary.shards_checked += 1
        summary.bytes_checked += case.bytes_checked
        summary.unverified -= case.verified
        if case.findings and self._keep_cases:
            self.cases.append(case)

    def _done(self, case: ShardCase, file: FileHint | None) -> None:
        """Note that all was told of a shard."""
        generation = generation_of(case)
        self.transcript.checked(Checked(case.shard, generation, case.verified, case.bytes_checked))
        self._memory.keep(case, file)
        in_bytes = self.subject.at_least("data")
        self._progress.advance(case.file_bytes or 0 if in_bytes else 1)
        self._tick()

    def _tick(self) -> None:
        """Keep what there is, if that was not done for a second."""
        now = self._scrub.clock.elapsed()
        if now >= self._next_tick:
            self._next_tick = now + TICK_SECONDS
            self._memory.save_when_due()
            self.transcript.flush()
            self._progress.advance(0)

    def _count(self, finding: Finding) -> None:
        self._memory.condemn(finding)
        self.summary.findings[finding.severity] += 1
        if finding.severity == "error" and finding.shard is not None:
            self._damaged.update((finding.shard, key) for key in finding.samples or ())
            self.summary.samples_damaged = len(self._damaged)

    def _run(self, shards: Iterable[int] | None) -> Run:
        """What this run is asked for, as its report begins."""
        store, scrub = self.subject.store, self._scrub
        age = scrub.max_age_seconds
        return Run(
            store=store.identity.uuid,
            root=os.path.abspath(store.root),  # noqa: PTH100 - links stay
            level=self.subject.level,
            plan=store.plan.generation,
            samples_total=store.plan.samples,
            shards_total=store.plan.shards,
            started=timestamp(scrub.clock.now()),
            shards=(shards[0], shards[-1]) if isinstance(shards, range) and shards else None,
            subset=scrub.subset,
            max_age_seconds=None if age is None else int(age),
            source=store.source_words(),
        )
