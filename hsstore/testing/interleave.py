"""Writers in one process, each stopped between two of its operations while another goes on."""

import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from hsstore.storage.filesystem import Filesystem
from hsstore.testing.steps import SteppedFilesystem

PATIENCE_SECONDS = 60.0


class Actor:
    """Work on a thread of its own that goes on only while ``run_until`` lets it.

    ``result`` is what the work returned, ``error`` what it raised. ``stopped_at`` describes the
    operation ahead of which it stands.
    """

    def __init__(self, work: Callable[[Filesystem], Any], *, looking: Collection[str] = ()) -> None:
        self.result: Any = None
        self.error: BaseException | None = None
        self.stopped_at = ""
        self.filesystem = SteppedFilesystem(self._before, looking=looking)
        self._work = work
        self._until: int | None = None
        self._go, self._stands = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._act, name="actor", daemon=True)
        self._thread.start()

    def run_until(self, operation: int | None) -> bool:
        """Let it work up to that operation, or to its end; whether it stands there now."""
        if self.ended:
            return False
        self._until = operation
        self._stands.clear()
        self._go.set()
        if not self._stands.wait(PATIENCE_SECONDS):
            raise TimeoutError(f"a writer neither ended nor came to operation {operation}")
        return not self.ended

    @property
    def ended(self) -> bool:
        """Whether the work is over."""
        return self._work is _nothing

    def _act(self) -> None:
        self._wait()
        try:
            self.result = self._work(self.filesystem)
        except BaseException as error:  # noqa: BLE001 - told to whoever directs the writers
            self.error = error
        self._work = _nothing
        self._stands.set()

    def _before(self, number: int, kind: str, path: Path) -> None:
        if threading.current_thread() is self._thread and number == self._until:
            self.stopped_at = f"{number}: {kind} {'/'.join(path.parts[-2:])}"
            self._stands.set()
            self._wait()

    def _wait(self) -> None:
        self._go.wait()
        self._go.clear()


def _nothing(_: Filesystem) -> None:
    """Stands for work that is over."""
