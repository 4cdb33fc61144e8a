"""A read-only look at a tree of loose sample files, as a stream of findings.

For the evening after a crash, before anything is imported: what format it is, what is there,
missing and broken, which bytes a checksum proves and which nothing can prove, and what it costs
to extract again what is lost.
"""

import os
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from hsstore.errors import MalformedInput
from hsstore.interop.foreign import Fault, natural
from hsstore.interop.matching import Rows
from hsstore.interop.surveying import look as looking
from hsstore.interop.surveying.cost import cost_of
from hsstore.interop.surveying.expected import STATS, Expectation, from_rows, from_stats
from hsstore.interop.surveying.finding import Depth, SurveyFinding, SurveySummary
from hsstore.interop.surveying.layouts import evidence_of, index_of, layout_of
from hsstore.interop.surveying.look import Look
from hsstore.interop.surveying.matching import Matched, by_numbers, by_rows
from hsstore.interop.surveying.names import role_of
from hsstore.interop.surveying.redo import dataset_lines, name_lines, refuse_redo, write_redo
from hsstore.interop.surveying.samples import (
    Sample,
    Seen,
    counts_from_zero,
    duplicates_by_name,
    duplicates_by_states,
    duplicates_by_tokens,
    number_names,
    samples_of,
    sound_files,
    suffixes,
)
from hsstore.interop.surveying.schema import Schema, leading
from hsstore.interop.surveying.tree import Entry, FolderSize, walk
from hsstore.model import commands, keys
from hsstore.model.progress import Progress, Silent
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.tokenised import read_samples

MOST_THREADS = 4
# Looked at ahead of the one whose turn it is to be told.
AHEAD = 4


def survey(
    root: str | os.PathLike[str],
    *,
    depth: Depth = "checksums",
    dataset: Path | None = None,
    samples: int | None = None,
    redo: Path | None = None,
    threads: int | None = None,
    progress: Progress | None = None,
    filesystem: Filesystem = LOCAL,
) -> "Survey":
    """Look at the tree at ``root``; nothing is written but the list that ``redo`` names.

    ``depth`` is ``quick`` (headers and token ids), ``checksums`` (also all bytes that a checksum
    vouches for) or ``content`` (also the values of all states). What should be there is told by
    ``dataset`` (JSON lines as ``create`` takes them; files are matched to its rows by their
    tokens), by ``samples``, or by a stats.json in the tree. Iterate over the result for the
    findings; its ``summary`` counts along. Raises MalformedInput for what is no folder, or a
    store; iterating, for a dataset that is none; OSError where the root cannot be listed, and where
    descriptors or memory run out.
    """
    root = Path(root)
    if filesystem.exists(root / keys.IDENTITY):
        raise MalformedInput("it is a store, not a tree of loose files", place=str(root),
                             remedy=f"run: {commands.hsstore('fsck', root)}")  # fmt: skip
    if redo is not None:
        refuse_redo(redo, root)
    run = Survey(root, depth, progress or Silent(), filesystem)
    run.dataset, run.redo, run.told = dataset, redo, samples
    run.threads = threads or min(MOST_THREADS, len(os.sched_getaffinity(0)))
    return run


class Survey:
    """One survey: an iterator of findings. ``summary`` says what was seen so far."""

    def __init__(
        self, root: Path, depth: Depth, progress: Progress, filesystem: Filesystem
    ) -> None:
        self.root = root
        self.summary = SurveySummary(str(root), depth)
        self.dataset: Path | None = None
        self.redo: Path | None = None
        self.told: int | None = None
        self.threads = 1
        self._progress = progress
        self._filesystem = filesystem
        self._files: list[Seen] = []
        self._folders: dict[str, FolderSize] = {}
        self._rows: Rows | None = None
        self._samples: list[Sample] = []
        self._schema: Schema | None = None
        self._stats: list[str] = []

    def __iter__(self) -> Generator[SurveyFinding, None, None]:
        started = time.monotonic()
        try:
            for finding in self._findings():
                self.summary.count(finding)
                yield finding
        except (KeyboardInterrupt, GeneratorExit):
            self.summary.stopped = "interrupted"
            raise
        finally:
            self.summary.broken = sum(not sample.sound for sample in self._samples)
            self.summary.seconds = time.monotonic() - started

    def _findings(self) -> Iterator[SurveyFinding]:
        if self.dataset is not None:
            self._progress.note(f"reading {self.dataset}")
            self._rows = Rows.of(read_samples(self.dataset))
        yield from self._list()
        yield from self._expect()
        yield from self._look()
        yield from self._compare()
        yield from self._match()
        self.summary.complete = True

    # -- what lies there ----------------------------------------------------------------------

    def _list(self) -> Iterator[SurveyFinding]:
        """Walk the tree: sizes, sample files, and whatever is none."""
        names: set[str] = set()
        for entry in walk(self.root, self._filesystem):
            names.add(entry.name)
            if entry.what == "file":
                self._count(entry)
                yield from self._sort(entry)
            else:
                yield _no_file(entry)
        self._files.sort(key=lambda file: natural(file.entry.path))
        number_names(self._files)
        self._samples = samples_of(self._files)
        summary = self.summary
        summary.present = len(self._samples)
        summary.folders = [asdict(size) for size in self._folders.values()]
        summary.format = index_of(names)
        if not self._files:
            yield SurveyFinding("no-samples", "no file here is a sample by its name")
        else:
            summary.evidence = [f"sample files by name: {suffixes(self._files)}"]
        yield from self._sparse()
        yield from duplicates_by_name(self._samples)

    def _count(self, entry: Entry) -> None:
        self._folders.setdefault(entry.folder, FolderSize(entry.folder)).add(entry)
        self.summary.bytes += entry.size
        self.summary.allocated += entry.allocated

    def _sort(self, entry: Entry) -> Iterator[SurveyFinding]:
        match role_of(entry.name):
            case "sample":
                self._files.append(Seen(entry))
                self.summary.unread.add(entry.size)
            case "temporary":
                detail = f"{entry.size} bytes left by a writer that did not finish"
                yield SurveyFinding("temporary", detail, entry.path)
            case "foreign":
                detail = f"{entry.size} bytes, of no format of such trees by its name"
                yield SurveyFinding("foreign-file", detail, entry.path)
            case "beside" if entry.name == STATS:
                self._stats.append(entry.path)

    def _sparse(self) -> Iterator[SurveyFinding]:
        count = sum(size.sparse for size in self._folders.values())
        if count:
            detail = f"take clearly less of the disk than their length: {count} (holes, where "
            detail += "nothing was written, or a disk that compresses)"
            yield SurveyFinding("sparse", detail)

    # -- what should lie there ----------------------------------------------------------------

    def _expect(self) -> Iterator[SurveyFinding]:
        stats = self._told_by_stats()
        if stats.doubt:
            yield SurveyFinding("expected-unknown", stats.doubt)
        if self.dataset is not None and self._rows is not None:
            chosen = from_rows(self.dataset, self._rows)
        elif self.told is not None:
            chosen = Expectation(self.told, evidence=f"--samples says {self.told}")
        else:
            chosen = stats
        summary = self.summary
        summary.expected, summary.expected_tokens = chosen.samples, chosen.tokens
        summary.expected_evidence = chosen.evidence
        if stats.evidence and stats.samples != chosen.samples:
            detail = f"{chosen.evidence}, but {stats.evidence}"
            yield SurveyFinding("expected-differs", detail)

    def _told_by_stats(self) -> Expectation:
        """What the stats.json says that lies at the root, or the only one that lies below it."""
        stats = [STATS] if STATS in self._stats else self._stats
        if len(stats) > 1:
            return Expectation(doubt=f"there are several: {', '.join(stats)}")
        return from_stats(self.root / stats[0], self._filesystem) if stats else Expectation()

    # -- file by file -------------------------------------------------------------------------

    def _look(self) -> Iterator[SurveyFinding]:
        in_bytes = self.summary.depth != "quick"
        total = self.summary.unread.bytes if in_bytes else len(self._files)
        self._progress.start(total, 0, "bytes" if in_bytes else "files")
        for file, look in self._looks():
            file.look = look
            self._settle(file)
            self._progress.advance(file.entry.size if in_bytes else 1)
            yield from (_of(file, fault) for fault in look.faults)

    def _looks(self) -> Iterator[tuple[Seen, Look]]:
        """Look at all files, several at once, in order."""
        pending: deque[tuple[Seen, Future[Look]]] = deque()
        with ThreadPoolExecutor(self.threads, thread_name_prefix="survey") as pool:
            try:
                for file in self._files:
                    pending.append((file, self._begin(pool, file)))
                    if len(pending) > AHEAD * self.threads:
                        yield _awaited(*pending.popleft())
                while pending:
                    yield _awaited(*pending.popleft())
            finally:
                for _, future in pending:
                    future.cancel()

    def _begin(self, pool: ThreadPoolExecutor, file: Seen) -> "Future[Look]":
        """Have a file looked at, unless its size tells all: after a crash there are many such."""
        if file.entry.size:
            return pool.submit(self._look_at, file)
        told: Future[Look] = Future()
        told.set_result(Look((Fault("empty", "0 bytes"),)))
        return told

    def _look_at(self, file: Seen) -> Look:
        return looking.look_at(
            self.root, file.entry.path, self.summary.depth, self._filesystem, self._rows
        )

    def _settle(self, file: Seen) -> None:
        """Count a file that was looked at."""
        summary, size = self.summary, file.entry.size
        summary.unread.take(size)
        if file.look.faults:
            summary.condemned.add(size)
        else:
            tally = {"checksum": summary.proven, "none": summary.unverifiable}
            tally.get(file.look.proof, summary.unread).add(size)

    # -- all files together -------------------------------------------------------------------

    def _compare(self) -> Iterator[SurveyFinding]:
        """Keys, shapes and dtypes of each file against those of the rest; duplicates."""
        schemas = Counter(
            Schema.of(file.look.arrays, file.look.tokens)
            for file in self._files
            if file.look.arrays is not None and file.look.tokens is not None and file.sound
        )
        self._schema = leading(schemas)
        self.summary.evidence += evidence_of(schemas)
        if self._schema is not None:
            self.summary.format = layout_of(self._schema)
            yield from self._strangers(self._schema)
        elif schemas:
            detail = f"{schemas.total()} files are of {len(schemas)} kinds, none of them most"
            yield SurveyFinding("mixed", detail)
        if self._rows is None:
            yield from duplicates_by_tokens(self._samples)
        yield from duplicates_by_states(self._samples)

    def _strangers(self, schema: Schema) -> Iterator[SurveyFinding]:
        for file in self._files:
            if file.look.arrays is None or not file.sound:
                continue
            differences = schema.differences(file.look.arrays, file.look.tokens)
            faults = tuple(Fault(kind, detail) for kind, detail in differences)
            file.look = replace(file.look, faults=file.look.faults + faults)
            yield from (_of(file, fault) for fault in faults)

    def _match(self) -> Iterator[SurveyFinding]:
        summary = self.summary
        matched = self._matched()
        summary.missing = matched.missing
        sound = [file.look.tokens or 0 for file in sound_files(self._samples)]
        summary.tokens = sum(sound)
        lengths = list(self._lengths(matched))
        summary.redo = cost_of(lengths, self._mean(sound, lengths), self._schema)
        yield from matched.findings
        if self.redo is not None and matched.lost:
            self.summary.redo_lines = write_redo(self.redo, self._redo(matched), self._filesystem)

    def _matched(self) -> Matched:
        if self._rows is None:
            return by_numbers(self._samples, self.summary.expected,
                              from_zero=counts_from_zero(self._files))  # fmt: skip
        if self._files and not any(file.held for file in self._files):
            raise MalformedInput(
                "none of its files tells the tokens of a sample, by which a row is found",
                place=str(self.root), remedy="leave --dataset out",
            )  # fmt: skip
        return by_rows(self._samples, self._rows)

    def _lengths(self, matched: Matched) -> Iterator[int | None]:
        """The tokens of each lost sample; None where nobody tells."""
        told = {file.entry.path: file.look.tokens for file in self._files if not file.sound}
        for lost in matched.lost:
            if self._rows is not None and lost.row is not None:
                yield int(self._rows.lengths[lost.row])
            else:
                yield told.get(lost.path)
        if not any(lost.reason == "missing" for lost in matched.lost):
            yield from [None] * (matched.missing or 0)

    def _mean(self, sound: list[int], lengths: list[int | None]) -> float | None:
        """Tokens of a sample that tells none: what is left of all, or the mean of sound ones."""
        unknown = lengths.count(None)
        doubled = self.summary.kinds["duplicate"]
        total = None if doubled else self.summary.expected_tokens
        left = 0 if total is None else total - sum(sound) - sum(filter(None, lengths))
        if unknown and left >= unknown:
            return left / unknown
        return sum(sound) / len(sound) if sound else None

    def _redo(self, matched: Matched) -> Iterable[bytes]:
        if self.dataset is not None:
            return dataset_lines(
                self.dataset, (lost.row for lost in matched.lost if lost.row is not None)
            )
        return name_lines(matched.lost)


def _awaited(file: Seen, future: "Future[Look]") -> tuple[Seen, Look]:
    return file, future.result()


def _no_file(entry: Entry) -> SurveyFinding:
    if entry.what == "unreadable":
        return SurveyFinding("unreadable", entry.detail, entry.path)
    what = "a symbolic link, which is not followed" if entry.what == "link" else "a special file"
    return SurveyFinding("link", what, entry.path)


def _of(file: Seen, fault: Fault) -> SurveyFinding:
    return SurveyFinding(fault.kind, fault.detail, file.entry.path, file.number)
