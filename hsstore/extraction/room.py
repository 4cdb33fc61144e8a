"""Whether the disk has room for what comes next, and waiting until it has."""

import contextlib
import errno
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hsstore.errors import OUT_OF_SPACE, OutOfSpace
from hsstore.model.progress import Progress
from hsstore.storage import ballast
from hsstore.storage.space import available, usual_reserve
from hsstore.storage.store import Store

POLL_SECONDS = 0.5
# Free space is no evidence on thin storage, nor under a quota: only trying again tells.
RETRY_SECONDS, LONGEST_RETRY_SECONDS = 1.0, 60.0
# A disk that takes nothing more while it has less than this is just full.
SURPRISING_FREE = 1 << 20
# A shard on its way takes about half as many.
FEW_INODES = 16


@dataclass(frozen=True, slots=True)
class SpacePolicy:
    """How much of the disk an extraction leaves free, and how long it waits for more.

    ``min_free_bytes`` None is 1 % of the filesystem, at most 1 GiB. An extraction that can go on
    with nothing for ``max_wait_seconds`` gives up.
    """

    min_free_bytes: int | None = None
    max_wait_seconds: float = 600.0


class Room:
    """The space of a store's filesystem as one extraction sees it; without a policy, not at all.

    Once something did not fit, nothing fits before a quarter of what is to stay free is there on
    top of it: an extraction that went on at the first free block would stop at the next.
    """

    def __init__(
        self,
        store: Store,
        policy: SpacePolicy | None,
        progress: Progress,
    ) -> None:
        self._root = store.root
        self._filesystem = store.filesystem
        self._policy = policy
        self._progress = progress
        self._lacking = 0
        self._not_before = 0.0
        self._retry = RETRY_SECONDS
        self._stuck_since: float | None = None
        self._told_lacking = 0

    @property
    def waits(self) -> bool:
        """Whether space is looked after, and waited for."""
        return self._policy is not None

    @contextlib.contextmanager
    def prepared(self) -> Iterator[None]:
        """Something is put aside, during a with block, for the moment when the disk is full."""
        if self._policy is None:
            yield
            return
        ballast.keep(self._filesystem, self._root)
        try:
            yield
        finally:
            ballast.release(self._filesystem, self._root)

    def has(self, needed: int) -> bool:
        """Whether ``needed`` bytes more would leave free what is to stay free. Raises OSError."""
        if self._policy is None:
            return True
        short = self._free() < needed + self._min_free()
        if short:
            self._lacking = needed + self._min_free() * 5 // 4
        return not short

    def may_wait_for(self, error: Exception) -> bool:
        """Whether the disk refused something that it may take later."""
        if self._policy is None or not isinstance(error, OSError):
            return False
        # No waiting raises the largest size of a file.
        return error.errno in OUT_OF_SPACE and error.errno != errno.EFBIG

    def refused(self) -> None:
        """The disk said no, whatever it says of its free space."""
        if ballast.release(self._filesystem, self._root):
            return
        self._lacking = max(self._lacking, self._min_free() * 5 // 4)
        self._not_before = time.monotonic() + self._retry
        self._retry = min(2 * self._retry, LONGEST_RETRY_SECONDS)

    def moved(self) -> None:
        """Something became durable, which ends a pause if there was one. Raises OSError."""
        self._retry = RETRY_SECONDS
        if self._stuck_since is not None:
            self._tell("resumed", f"after {time.monotonic() - self._stuck_since:.0f} s")
            self._stuck_since = None
            ballast.keep(self._filesystem, self._root)

    def wait(self, stop: Callable[[], bool], tick: Callable[[str], None]) -> None:
        """Return once there is room, or ``stop`` says so; ``tick`` hears what is waited for.

        Raises OutOfSpace where nothing moved for longer than the policy waits, OSError.
        """
        if self._policy is None or self._is_there():
            return
        if self._stuck_since is None:
            self._stuck_since = time.monotonic()
            self._tell("paused", self._shortage())
        elif self._lacking > self._told_lacking:
            # What was asked for is there, and turned out not to be enough.
            self._progress.note(f"extraction still paused: {self._shortage()}")
        self._told_lacking = self._lacking
        while not stop() and not self._is_there():
            waited = time.monotonic() - self._stuck_since
            if waited >= self._policy.max_wait_seconds:
                raise OutOfSpace(
                    f"{self._shortage()}; waited for {waited:.0f} s, and the samples in committed "
                    "shards and journals are safe",
                    place=str(self._root),
                    remedy="free space, then run the same command again to go on",
                )
            tick(self._shortage())
            time.sleep(POLL_SECONDS)
        self._lacking = 0

    def _is_there(self) -> bool:
        return time.monotonic() >= self._not_before and self._free() >= self._lacking

    def _shortage(self) -> str:
        space, needed = available(self._root), self._lacking
        free = space.available_bytes
        if free < needed:
            return f"{_size(free)} of the disk are free, {_size_up(needed)} are needed to go on"
        if space.available_inodes is not None and space.available_inodes < FEW_INODES:
            return f"too few inodes of the disk are free for more files: {space.available_inodes}"
        if free < SURPRISING_FREE:
            return f"the disk takes no more: {_size(free)} are free"
        return f"the disk takes no more, although it says that {_size(free)} are free"

    def _tell(self, name: str, detail: str) -> None:
        self._progress.note(f"extraction {name}: {detail}")
        self._progress.event(name, {"detail": detail, "free_bytes": self._free()})

    def _min_free(self) -> int:
        if self._policy is not None and self._policy.min_free_bytes is not None:
            return self._policy.min_free_bytes
        return usual_reserve(available(self._root))

    def _free(self) -> int:
        return available(self._root).available_bytes


def _size(count: int) -> str:
    """Not more than it is."""
    return f"{count // 10**7 / 100:.2f} GB" if count >= 10**8 else f"{count // 1000} kB"


def _size_up(count: int) -> str:
    """Not less than it is: whoever frees so much has freed enough."""
    step = 10**7 if count >= 10**8 else 1000
    return _size(-(-count // step) * step)
