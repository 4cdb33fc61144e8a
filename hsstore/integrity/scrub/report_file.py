"""Reports of fsck as files: kept while a run goes on, read back as untrusted input."""

import contextlib
import os
import secrets
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hsstore.errors import MalformedInput, StorageFailed
from hsstore.integrity.scrub.schedule import Scrub
from hsstore.model.document import timestamp
from hsstore.model.finding import Finding, Summary
from hsstore.model.report import BEGINNING, NO_REPORT, Checked, Report, ReportLines, Run, parse
from hsstore.storage.filesystem import LOCAL

LARGEST_BYTES = 1 << 30

Sink = Callable[[str], object]


def read_report(path: str | os.PathLike[str]) -> Report:
    """The report in a file, proven to be whole as far as it goes.

    ``report.summary`` is None where its run did not end: it says nothing of the shards that are
    not in ``report.checked``. Raises MalformedInput for what is no report of fsck, torn or edited;
    StorageFailed where it cannot be read.
    """
    place = os.fspath(path)
    try:
        with Path(path).open("rb") as file:
            raw = file.read(LARGEST_BYTES + 1)
    except OSError as error:
        raise StorageFailed.from_os(error) from None
    if len(raw) > LARGEST_BYTES:
        raise MalformedInput("too large for a report", place=place, remedy=NO_REPORT)
    return parse(raw, place)


def write_report(lines: Iterable[str], path: str | os.PathLike[str]) -> None:
    """Write a whole report, in the place of an earlier one that has its name.

    Raises MalformedInput for the name of anything else, StorageFailed.
    """
    file = ReportFile(path, lambda _: None)
    for line in lines:
        file.write(line)
    file.close()
    if not file.whole:
        raise StorageFailed(
            "the report could not be written in full", place=os.fspath(path), remedy="free space"
        )


class Transcript:
    """Tells a run line by line to a report, if one is wanted, and to whoever else wants it."""

    def __init__(self, run: Run, scrub: Scrub, note: Callable[[str], None]) -> None:
        self.run = run
        self.file = None if scrub.report is None else ReportFile(scrub.report, note)
        self._now = scrub.clock.now
        self._lines = ReportLines()
        self._sinks: list[Sink] = [] if self.file is None else [self.file.write]
        self._checked: list[Checked] = []

    def tell(self, sink: Sink) -> None:
        """Give ``sink`` every line, with its newline; to be called before the run begins."""
        self._sinks.append(sink)

    @contextlib.contextmanager
    def kept(self, summary: Summary) -> Iterator[None]:
        """Tell the first line, and in the end the last: none where the run fails."""
        self._tell(self._lines.run(self.run))
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            self._end(summary)
            raise
        else:
            self._end(summary)
        finally:
            if self.file is not None:
                self.file.close()

    def finding(self, finding: Finding) -> None:
        """Tell a finding."""
        self._tell(self._lines.finding(finding))

    def checked(self, shard: Checked) -> None:
        """Note that a shard is done; its findings were told before."""
        self._checked.append(shard)

    def _end(self, summary: Summary) -> None:
        self.flush()
        self._tell(self._lines.summary(summary))

    def flush(self) -> None:
        """Tell which shards are done by now."""
        if self._checked:
            self._tell(self._lines.checked(timestamp(self._now()), self._checked))
            self._checked = []

    def _tell(self, line: str) -> None:
        for sink in self._sinks:
            sink(line)


class ReportFile:
    """A report that is written line by line, and whole up to its last line at any moment.

    With its first line it takes the place of an earlier report. Raises MalformedInput for the name
    of anything else, StorageFailed where the first line cannot be written; what cannot be written
    later is told once (``whole`` is False then), and no reason to end a run.
    """

    def __init__(self, path: str | os.PathLike[str], note: Callable[[str], None]) -> None:
        self.whole = True
        self._path = Path(os.path.realpath(path))
        self._note = note
        self._fd: int | None = None
        self._size = 0

    def write(self, line: str) -> None:
        """Add a line."""
        if self._size == 0:
            self._create(line.encode())
        elif self._fd is not None:
            try:
                self._append(line.encode())
            except OSError as error:
                self._give_up(error)

    def close(self) -> None:
        """Make it durable, its name as well."""
        if self._fd is not None:
            try:
                LOCAL.sync(self._fd, self._path)
                LOCAL.sync_folder(self._path.parent)
            except OSError as error:
                self._give_up(error)
            else:
                LOCAL.close(self._fd)
                self._fd = None

    def _create(self, first: bytes) -> None:
        temporary = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            self._refuse_other_things()
            self._fd = LOCAL.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            self._append(first)
            LOCAL.rename(temporary, self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                LOCAL.unlink(temporary)
            failed = StorageFailed.from_os(error)
            raise type(failed)(
                f"the report cannot be written: {failed.message}",
                place=str(self._path),
                remedy="give --report another file",
            ) from None

    def _refuse_other_things(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            status = LOCAL.status(self._path)
            if not stat.S_ISREG(status.st_mode):
                raise MalformedInput(
                    "a report takes the place of a file, and this is none",
                    place=str(self._path),
                    remedy="give --report a file; --json prints the same lines",
                )
            if status.st_size and not self._is_report():
                raise MalformedInput(
                    "a report takes the place of an earlier one only, and this file is none",
                    place=str(self._path),
                    remedy="give --report another file",
                )

    def _is_report(self) -> bool:
        with self._path.open("rb") as file:
            return file.read(len(BEGINNING)) == BEGINNING

    def _append(self, raw: bytes) -> None:
        if self._fd is not None:
            LOCAL.write_at(self._fd, raw, self._size, self._path)
            self._size += len(raw)

    def _give_up(self, error: OSError) -> None:
        self.whole = False
        failed, self._fd = self._fd, None
        if failed is not None:
            with contextlib.suppress(OSError):
                LOCAL.close(failed)
        self._note(f"{self._path}: {error.strerror}; going on without the report")
