"""Extract a store with a seeded source that takes its time; to be killed.

``python -m hsstore.testing.slow_extraction STORE LOG SECONDS`` appends the index of every computed
sample to LOG and says ``ready`` once it starts.
"""

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from hsstore.extraction.extractor import extract
from hsstore.model.source import Extracted, Failed, Request, Waiting
from hsstore.storage import writer
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource


class SlowSource(SeededSource):
    """Answers after ``seconds`` each, and logs each answer before it gives it."""

    log: int
    seconds: float

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed | Waiting]:
        """One answer a request, in their order."""
        for request in requests:
            time.sleep(self.seconds)
            os.write(self.log, f"{request.sample}\n".encode())
            yield from super().states([request])


def main(root: str, log: str, seconds: str) -> None:
    """Extract, with a journal that is synced every few samples."""
    writer.SYNC_SECONDS = 4 * float(seconds)
    store = Store.open(Path(root))
    source = SlowSource(store.identity)
    source.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    source.seconds = float(seconds)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    extract(store, source)


if __name__ == "__main__":
    main(*sys.argv[1:])
