"""Run ``hsstore`` in a process of its own that logs what it computes; to be killed."""

import os
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hsstore.extraction import transformers_source
from hsstore.model.source import Extracted, Failed, Request
from hsstore.storage import writer
from hsstore_cli.main import main


class LoggedSource(transformers_source.TransformersSource):
    """Waits ``seconds`` before each sample, and appends its index to ``log``."""

    log: int
    seconds: float

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed]:
        """One answer a request, in their order."""
        for request in requests:
            time.sleep(self.seconds)
            os.write(self.log, f"{request.sample}\n".encode())
            yield from super().states([request])


def run(arguments: Sequence[str], log: Path, seconds: float) -> None:
    """Exit as ``hsstore`` does with these arguments; the journal is synced every few samples."""
    writer.SYNC_SECONDS = 4 * seconds
    LoggedSource.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    LoggedSource.seconds = seconds
    transformers_source.TransformersSource = LoggedSource  # type: ignore[misc]
    sys.exit(main(arguments))
