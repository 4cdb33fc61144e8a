"""fsck: every check over every shard, read-only, as a stream of findings."""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
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
)
from hsstore.integrity.examine import Listing, examine
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model import keys
from hsstore.model.finding import Finding, Level, Summary, severity_of
from hsstore.model.progress import Progress, Silent
from hsstore.storage.filesystem import LOCAL
from hsstore.storage.store import Store

PathLike = str | os.PathLike[str]


def fsck(
    store: Store | PathLike,
    level: Level = "data",
    *,
    shards: range | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> "Fsck | Unopened":
    """Check a store, or a range of its shards; nothing is written.

    ``level`` is ``quick`` (markers and sizes), ``manifest`` (and every document, index, token file
    and array, and norms by layer), ``data`` (and every stored chunk) or ``thorough`` (and what the
    decoded rows are). Iterate over the result for the findings; its
    ``summary`` counts along. A store whose identity or plan is damaged gives that one finding.
    Raises NotAStore, UnsupportedFormat.
    """
    if isinstance(store, Store):
        return Fsck(Subject(store, level, threads), shards, progress or Silent(), stop)
    try:
        opened = Store.open(Path(store), to_check=True)
    except (InvalidDocument, OSError) as error:
        return Unopened(Path(store), level, error)
    return Fsck(Subject(opened, level, threads), shards, progress or Silent(), stop)


class Unopened:
    """The run of fsck over a store that cannot be opened: one finding, and nothing was checked."""

    store = None

    def __init__(self, root: Path, level: Level, error: InvalidDocument | OSError) -> None:
        self.summary = Summary(level, shards_total=0, unverified=0)
        self._finding = _unopened(root, error)

    def __iter__(self) -> Iterator[Finding]:
        self.summary.findings[self._finding.severity] = 1
        yield self._finding


def _unopened(root: Path, error: InvalidDocument | OSError) -> Finding:
    identity = not _is_readable(root / keys.IDENTITY)
    path = keys.IDENTITY if identity else keys.PLAN
    if isinstance(error, InvalidDocument) and error.place:
        path = Path(error.place).relative_to(root).as_posix()
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
    return Finding(kind, severity_of(kind), detail, path=path)


def _is_readable(path: Path) -> bool:
    """Whether a file's bytes can be had: errors of reading do not name it."""
    try:
        LOCAL.read(path)
    except OSError:
        return False
    return True


class Fsck:
    """One run of fsck: an iterator of findings.

    ``cases`` is what is known of unsound shards, with their manifests, where ``keep_cases`` asks
    for it.
    """

    def __init__(self, subject: Subject, shards: Iterable[int] | None, progress: Progress,
                 stop: Callable[[], bool], *, keep_cases: bool = False) -> None:  # fmt: skip
        plan = subject.store.plan
        every = range(plan.shards)
        self.subject = subject
        self.store: Store | None = subject.store
        self.shards = [*every] if shards is None else [k for k in shards if k in every]
        self.summary = Summary(subject.level, plan.shards, unverified=self._samples())
        self.cases: list[ShardCase] = []
        self._keep_cases = keep_cases
        self._progress = progress
        self._stop = stop
        self._damaged: set[tuple[int, str]] = set()

    def __iter__(self) -> Iterator[Finding]:
        try:
            for finding in self._findings():
                self._count(finding)
                yield finding
        finally:
            self.subject.chunks.close()

    def _findings(self) -> Iterator[Finding]:
        subject = self.subject
        yield from plans.check(subject)
        yield from calibrations.check(subject)
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
        self._progress.start(len(self.shards), 0, "shards")
        for case in self._cases():
            self._settle(case)
            comparisons.note(case)
            yield from case.findings
            self._progress.advance(1)
        if self.summary.shards_checked < len(self.shards):
            return
        if subject.at_least("manifest"):
            yield from arrays.check_tables(subject)
            yield from origins.check(subject)
            yield from comparisons.check(subject)
        self.summary.complete = True

    def _cases(self) -> Iterator[ShardCase]:
        """Examine shards, several at once, in order."""
        listing, ahead = Listing(self.subject), self.subject.chunks.threads
        pending: deque[Future[ShardCase]] = deque()
        with ThreadPoolExecutor(ahead, thread_name_prefix="examine") as pool:
            try:
                for shard in self.shards:
                    if self._stop():
                        return
                    pending.append(pool.submit(examine, self.subject, shard, listing))
                    if len(pending) > ahead:
                        yield pending.popleft().result()
                while pending:
                    if self._stop():
                        return
                    yield pending.popleft().result()
            finally:
                for future in pending:
                    future.cancel()
                if pending:
                    self.subject.chunks.close()

    def _settle(self, case: ShardCase) -> None:
        summary = self.summary
        summary.shards_checked += 1
        summary.bytes_checked += case.bytes_checked
        summary.unverified -= case.verified
        if case.findings and self._keep_cases:
            self.cases.append(case)

    def _count(self, finding: Finding) -> None:
        self.summary.findings[finding.severity] += 1
        if finding.severity == "error" and finding.shard is not None:
            self._damaged.update((finding.shard, key) for key in finding.samples or ())
            self.summary.samples_damaged = len(self._damaged)

    def _samples(self) -> int:
        return sum(len(self.subject.samples(shard)) for shard in self.shards)
