"""Saying that a source is waited for: when it begins and when it is over, not every second."""

import re
import time
from collections.abc import Callable

from hsstore.model.progress import Progress
from hsstore.model.source import Waiting

# What a wait says of its own length changes all the time.
_SECONDS = re.compile(r"\d+(\.\d+)? s\b")


class Waits:
    """Reports the outages and the news of one source.

    ``detail`` says what is waited for now, None for nothing. A source that is only busy is left to
    whoever shows that: a slow one waits before each of its answers.
    """

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self.detail: str | None = None
        self._progress = progress
        self._clock = clock
        self._began = 0.0
        self._outage: str | None = None

    def waiting(self, waiting: Waiting) -> None:
        """No answer came; news are told at once, and so is an outage that is not told already."""
        if waiting.news:
            self._progress.note(waiting.detail)
            self._progress.event("source-news", {"detail": waiting.detail})
            return
        self.detail = waiting.detail
        if waiting.outage:
            self._tell(waiting.detail)
        else:
            self._end()

    def over(self) -> None:
        """An answer came, or the work ended."""
        self._end()
        self.detail = None

    def _tell(self, detail: str) -> None:
        topic = _SECONDS.sub("", detail)
        if topic == self._outage:
            return
        name = "outage-changed"
        if self._outage is None:
            name, self._began = "outage-began", self._clock()
        self._outage = topic
        self._progress.note(detail)
        self._progress.event(name, {"detail": detail})

    def _end(self) -> None:
        if self._outage is None:
            return
        seconds = self._clock() - self._began
        self._outage = None
        self._progress.note(f"the outage is over after {seconds:.0f} s")
        self._progress.event("outage-ended", {"seconds": round(seconds, 3)})
