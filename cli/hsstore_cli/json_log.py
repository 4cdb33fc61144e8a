"""``--log-json``: what a run does, as JSON lines for machines."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from hsstore.errors import StorageFailed
from hsstore_cli import render

FIGURES_SECONDS = 10.0


class JsonLog:
    """A Progress that writes a line for each event, for a with block.

    A line is an object with ``time`` (RFC 3339, UTC), ``event`` and what belongs to it; each is
    flushed. A file is appended to; ``-`` is stderr. One that cannot be opened raises StorageFailed;
    one that cannot be written later is told once, and no reason to end a run.
    """

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._clock = clock
        self._figures_at = float("-inf")
        self._file: TextIO | None = None

    def __enter__(self) -> Self:
        try:
            self._file = (
                sys.stderr if self._place == "-" else Path(self._place).open("a", encoding="utf-8")
            )
        except OSError as error:
            raise StorageFailed(
                f"the log cannot be written: {error.strerror}",
                place=self._place,
                remedy="give --log-json another file, or -",
            ) from None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._file is not None and self._file is not sys.stderr:
            try:
                self._file.close()
            except OSError as failure:
                self._give_up(failure)

    def start(self, total: int, done: int, unit: str) -> None:
        """Log how much there is to do."""
        self.event("work", {"total": total, "done": done, "unit": unit})

    def advance(self, units: int) -> None:
        """Figures say it."""

    def note(self, text: str) -> None:
        """Log a line for people."""
        self.event("note", {"text": text})

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        """Log an event; figures every ten seconds."""
        if self._file is None or (name == "figures" and not self._figures_due()):
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = json.dumps({"time": now, "event": name, **members}, allow_nan=False)
        try:
            self._file.write(f"{line}\n")
            self._file.flush()
        except OSError as error:
            self._give_up(error)

    def _figures_due(self) -> bool:
        now = self._clock()
        if now - self._figures_at < FIGURES_SECONDS:
            return False
        self._figures_at = now
        return True

    def _give_up(self, error: OSError) -> None:
        failed, self._file = self._file, None
        if failed is sys.stderr:
            return  # there is nobody to tell
        if failed is not None:
            # Its buffer would be written again at the end.
            with contextlib.suppress(OSError):
                failed.close()
        render.tell(f"{self._place}: {error.strerror}; going on without the log")
