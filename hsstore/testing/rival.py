"""One of several processes that fill a store together, and that log what they do; to be killed."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from hsstore.extraction import extractor
from hsstore.model import keys
from hsstore.model.source import Extracted, Failed, Request, Waiting
from hsstore.storage import writer
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource


class Log:
    """Lines ``WHAT NAME PID`` that several processes append to one file."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, what: str, name: str | int) -> None:
        """Append one line at once."""
        os.write(self._file, f"{what} {name} {os.getpid()}\n".encode())


class LoggedFilesystem(Filesystem):
    """The local filesystem; every commit marker that this process made visible is logged."""

    def __init__(self, log: Log) -> None:
        self._log = log

    def link(self, source: Path, target: Path) -> None:
        """Link; says so of a marker."""
        super().link(source, target)
        if target.parent.name == keys.COMMIT:
            self._log.write("published", target.name)


class LoggedSource(SeededSource):
    """Answers after ``seconds`` each, and logs each answer before it gives it."""

    log: Log
    seconds: float

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed | Waiting]:
        """One answer a request, in their order."""
        for request in requests:
            time.sleep(self.seconds)
            self.log.write("computed", request.sample)
            yield from super().states([request])


def run(root: Path, log: Path, seconds: float) -> None:
    """Extract what the store lacks and nobody else holds; the journal is synced every few samples.

    A lost claim is noticed at the next sample.
    """
    writer.SYNC_SECONDS, extractor.VERIFY_SECONDS = 4 * seconds, 0
    logged = Log(log)
    store = Store.open(root, filesystem=LoggedFilesystem(logged))
    source = LoggedSource(store.identity)
    source.log, source.seconds = logged, seconds
    extractor.extract(store, source)
