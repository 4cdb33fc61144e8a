"""How many requests a server is given at a time, and how long to wait before the next try."""

from collections.abc import Callable
from dataclasses import dataclass

FIRST_SECONDS = 0.25
LONGEST_SECONDS = 30.0


class Pace:
    """Additive increase, multiplicative decrease of the requests in flight at one server.

    Begins at ``start`` and stays within 1 and ``most``. It grows by about one for every round of
    ``limit`` answers, and halves when the server says that it has too much; what comes back of
    the requests that were in flight then cannot halve it again.
    """

    def __init__(self, most: int, start: int) -> None:
        self.most = max(most, 1)
        self._limit = float(min(max(start, 1), self.most))
        self._grace = 0

    @property
    def limit(self) -> int:
        """Requests that may be in flight now."""
        return int(self._limit)

    def answered(self) -> None:
        """One request came back with an answer."""
        self._grace = max(self._grace - 1, 0)
        self._limit = min(self._limit + 1 / self._limit, float(self.most))

    def overloaded(self, in_flight: int) -> None:
        """One came back refused or timed out, with ``in_flight`` others still on their way."""
        if self._grace:
            self._grace -= 1
            return
        self._limit = max(self._limit / 2, 1.0)
        self._grace = in_flight


@dataclass(slots=True)
class Backoff:
    """Waiting times that double, with full jitter: each drawn between 0 and the current bound.

    ``draw`` gives a number in [0, 1); seconds.
    """

    draw: Callable[[], float]
    first: float = FIRST_SECONDS
    longest: float = LONGEST_SECONDS
    failures: int = 0

    def next(self) -> float:
        """How long to wait after one more failure."""
        bound = min(self.first * (1 << self.failures), self.longest)
        self.failures += bound < self.longest
        return bound * self.draw()

    def reset(self) -> None:
        """It worked again."""
        self.failures = 0


def most_in_flight(asked: int | None, running: int | None, queued: int | None) -> int:
    """Requests that a server may be given: what was asked for, within what it can take.

    ``running`` and ``queued`` are its limits for requests at work and waiting; None is no limit.
    Without a wish, twice what it runs at once keeps its queue filled.
    """
    wanted = asked or (2 * running if running else DEFAULT)
    if running is not None and queued is not None:
        wanted = min(wanted, running + queued)
    return max(wanted, 1)


DEFAULT = 32
