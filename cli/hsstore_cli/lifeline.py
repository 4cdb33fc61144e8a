"""Two pipes between the supervisor and the process that works.

Through one, the supervisor lets the worker go; its end, when the supervisor is killed, says the
same. Through the other the worker says which signals have reached it, so that one that a terminal
or a batch system sends to both is not passed on for a second time.
"""

import os
import select
import signal
import threading
import time

from hsstore_cli import standard_streams

LET_GO = 0
"""Said where others say a signal's number: the worker holds nobody's output open any more."""


class Lifeline:
    """Made before the fork; then ``hold`` is for the worker, all else for the supervisor."""

    def __init__(self) -> None:
        self._pulled, self._pull = os.pipe()
        self._heard, self._hear = os.pipe()
        os.set_blocking(self._hear, False)
        self._said: set[int] = set()

    # -- the worker ---------------------------------------------------------------------------

    def hold(self) -> None:
        """Tell of signals from now on, and end with the supervisor or at its word."""
        os.close(self._pull)
        os.close(self._heard)
        signal.set_wakeup_fd(self._hear, warn_on_full_buffer=False)
        threading.Thread(target=self._wait_to_be_let_go, name="lifeline", daemon=True).start()

    def _wait_to_be_let_go(self) -> None:
        os.read(self._pulled, 1)
        try:
            # A call that never returns keeps this process, killed or not, and all that it has open.
            standard_streams.let_go()
            os.write(self._hear, bytes([LET_GO]))
        finally:  # with too many files open, or with nobody left to be told
            os.kill(os.getpid(), signal.SIGKILL)

    # -- the supervisor -------------------------------------------------------------------------

    def watch(self) -> None:
        """Take the supervisor's side."""
        os.close(self._pulled)
        os.close(self._hear)

    def let_go(self, within: float) -> None:
        """Ask the worker to close its output and end; wait at most ``within`` seconds for it."""
        os.write(self._pull, b"\0")
        self.reached(LET_GO, within)

    def reached(self, number: int, within: float) -> bool:
        """Whether the worker was reached by that signal, or is gone; waits so many seconds."""
        deadline = time.monotonic() + within
        while number not in self._said:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._heard], [], [], left)[0]:
                return False
            said = os.read(self._heard, 4096)
            if not said:
                return True
            self._said.update(said)
        self._said.discard(number)
        return True

    def forget(self) -> None:
        """What was said until now was about signals for the worker alone."""
        while select.select([self._heard], [], [], 0)[0] and os.read(self._heard, 4096):
            pass
        self._said.clear()
