"""Saying that a source is waited for: when it begins and when it is over, not every second."""

import re
import time
from collections.abc import Callable

from hsstore.model.progress import Progress
from hsstore.model.source import Waiting

# A source that is only busy is no news before this.
QUIET_SECONDS = 10.0
# What a wait says of its own length changes all the time.
_SECONDS = re.compile(r"\d+(\.\d+)? s\b")


class Waits:
    """Reports the waits of one source; ``detail`` says what is waited for now, None for nothing."""

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self.detail: str | None = None
        self._progress = progress
        self._clock = clock
        self._began = 0.0
        self._told: tuple[str, str] | None = None

    def waiting(self, waiting: Waiting) -> None:
        """No answer came; told at once where there is an outage, else when it lasts."""
        now = self._clock()
        if self.detail is None:
            self._began = now
        self.detail = waiting.detail
        kind = "outage" if waiting.outage else "waiting"
        topic = kind, _SECONDS.sub("", waiting.detail) if waiting.outage else ""
        if self._told and self._told[0] != kind:
            self._end(now)
        if topic != self._told and (waiting.outage or now - self._began >= QUIET_SECONDS):
            began_anew = self._told is None
            self._told = topic
            self._progress.note(waiting.detail)
            self._progress.event(
                f"{kind}-began" if began_anew else f"{kind}-changed", {"detail": waiting.detail}
            )

    def over(self) -> None:
        """An answer came, or the work ended."""
        if self._told:
            self._end(self._clock())
        self.detail = None

    def _end(self, now: float) -> None:
        if self._told:
            seconds = now - self._began
            self._progress.note(f"the {self._told[0]} is over after {seconds:.0f} s")
            self._progress.event(f"{self._told[0]}-ended", {"seconds": round(seconds, 3)})
        self._told, self._began = None, now
