"""How fast an extraction is, what it waits for, and how long the rest takes."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

RECENT_SECONDS = 60.0
LOOK_SECONDS = 1.0

Side = Literal["source", "disk"]
Item = TypeVar("Item")


class Stopwatch:
    """Seconds spent waiting for either side; one side at a time, the innermost counts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.began = clock()
        self._seconds: dict[Side | None, float] = {"source": 0.0, "disk": 0.0, None: 0.0}
        self._side: Side | None = None
        self._since = self.began

    def seconds(self, side: Side) -> float:
        """How long it was that side's turn, up to now."""
        self._switch(self._side)
        return self._seconds[side]

    @contextlib.contextmanager
    def on(self, side: Side) -> Iterator[None]:
        """Count the block for a side."""
        before = self._switch(side)
        try:
            yield
        finally:
            self._switch(before)

    def timed(self, items: Iterable[Item], side: Side) -> Iterator[Item]:
        """The items, the making of each counted for a side."""
        iterator = iter(items)
        while True:
            with self.on(side):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    def _switch(self, side: Side | None) -> Side | None:
        now = self.clock()
        self._seconds[self._side] += now - self._since
        before, self._side, self._since = self._side, side, now
        return before


@dataclass(slots=True)
class Pace:
    """Counts the work of one run and tells its speed over the last minute.

    Only what was computed now is speed: what was found done, or failed, only shortens the way.
    ``tokens_left`` is what this run still has before it.
    """

    watch: Stopwatch
    row_bytes: int
    tokens_left: int
    tokens: int = 0
    _marks: deque[tuple[float, int]] = field(default_factory=deque)
    _looked: float = float("-inf")

    def due(self) -> bool:
        """Whether the last look is a second ago; asking begins the next second."""
        now = self.watch.clock()
        if now - self._looked < LOOK_SECONDS:
            return False
        self._looked = now
        return True

    def figures(self) -> dict[str, Any]:
        """Rates of the last minute, seconds waited since the start, and the time left in seconds.

        A rate is None where no time has passed; the time left is None while nothing moves.
        """
        now = self.watch.clock()
        if not self._marks:
            self._marks.append((self.watch.began, 0))
        self._marks.append((now, self.tokens))
        while len(self._marks) > 2 and now - self._marks[1][0] > RECENT_SECONDS:  # noqa: PLR2004
            self._marks.popleft()
        rate = self._rate()
        return {
            "tokens": self.tokens,
            "tokens_left": self.tokens_left,
            "tokens_per_second": rate,
            "bytes_per_second": None if rate is None else rate * self.row_bytes,
            "seconds_left": self.tokens_left / rate if rate else None,
            "seconds": now - self.watch.began,
            "seconds_source": self.watch.seconds("source"),
            "seconds_disk": self.watch.seconds("disk"),
        }

    def _rate(self) -> float | None:
        (first, before), (last, tokens) = self._marks[0], self._marks[-1]
        return (tokens - before) / (last - first) if last > first else None
