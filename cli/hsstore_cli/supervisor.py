"""Waits for the process that works, and ends as it does, or before it where the storage stalls."""

import contextlib
import math
import os
import resource
import signal
import time

from hsstore.storage.in_flight import InFlight
from hsstore_cli import exit_codes, stall_report
from hsstore_cli.lifeline import Lifeline
from hsstore_cli.signal_wait import SignalWait
from hsstore_cli.stalls import Patience

FORWARDED = frozenset(
    {
        *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
        *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM),
    }
)
AWAITED = FORWARDED | {signal.SIGCHLD, signal.SIGTSTP}

# A signal to the whole group reaches both within microseconds.
HEARD_SECONDS = 0.2
LET_GO_SECONDS = 1.0
LONGEST_LOOK_SECONDS = 1.0
LOOKS = 10


class Supervisor:
    """Of one child, which it does not outlive by much and never waits for in vain.

    The signals of ``AWAITED`` are to be blocked when it is made. It opens nothing but /proc, and
    the log when it gives up.
    """

    def __init__(
        self, child: int, command: str, in_flight: InFlight, lifeline: Lifeline, seconds: float
    ) -> None:
        self._child = child
        self._command = command
        self._lifeline = lifeline
        self._patience = Patience(child, in_flight, seconds)
        self._signals = SignalWait(AWAITED)
        self._interval = min(seconds / LOOKS, LONGEST_LOOK_SECONDS)
        self._reached: dict[int, float] = {}
        self._stopped = False
        self._looked = time.monotonic()
        lifeline.watch()

    def wait(self) -> int:
        """The exit code to end with. Where a signal ended the child, this process dies of it."""
        while (status := self._ended()) is None:
            if self._stalled():
                return exit_codes.STALLED
            received = self._signals.received(self._interval)
            if received is None:
                self._lifeline.forget()
            else:
                self._pass_on(received)
        return _mirrored(os.waitstatus_to_exitcode(status))

    def _ended(self) -> int | None:
        """The child's wait status, None while it lives; notes whether it is stopped."""
        while True:
            child, status = os.waitpid(self._child, os.WNOHANG | os.WUNTRACED | os.WCONTINUED)
            if not child:
                return None
            if not (os.WIFSTOPPED(status) or os.WIFCONTINUED(status)):
                return status
            self._stopped = os.WIFSTOPPED(status)

    def _stalled(self) -> bool:
        """Whether the storage does not answer: then that is told and the child given up."""
        now = time.monotonic()
        # More has passed where this process was stopped, and perhaps the child with it.
        passed = min(now - self._looked, 2 * self._interval)
        self._looked = now
        if self._stopped:
            self._patience.reset()
            return False
        stalls = self._patience.look(passed)
        if stalls:
            self._give_up()
            stall_report.tell(stalls, self._command, self._child)
        return bool(stalls)

    def _give_up(self) -> None:
        """Kill the child. It ends when the storage answers, and does nothing more."""
        self._lifeline.let_go(LET_GO_SECONDS)
        os.kill(self._child, signal.SIGKILL)

    def _pass_on(self, number: int) -> None:
        if number == signal.SIGCHLD:
            return
        if number == signal.SIGTSTP:
            self._pause()
            return
        received = time.monotonic()
        if self._lifeline.reached(number, HEARD_SECONDS):
            self._reached[number] = received
        # timeout(1) sends to this process and then to the whole group: that is one signal.
        elif received - self._reached.get(number, -math.inf) > HEARD_SECONDS:
            os.kill(self._child, number)

    def _pause(self) -> None:
        """Stop together with the child, whichever of the two was told to, and go on together."""
        os.kill(self._child, signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTSTP})
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
        os.kill(self._child, signal.SIGCONT)


def _mirrored(code: int) -> int:
    """An exit code; for the negative number of a signal, die of that signal."""
    if code >= 0:
        return code
    # The child has left a core if one was wanted.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):  # SIGKILL has no handler to reset
        signal.signal(-code, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
    os.kill(os.getpid(), -code)
    # Only the first process of a container survives: what a shell says of such an end.
    return 128 - code
