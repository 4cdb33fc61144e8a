"""The program ``hsstore`` as a shell starts it: a supervisor, and the work in a child of it.

A process that waits for storage which does not answer cannot be told to stop, by nobody, and does
not say what it waits for. So the process that the shell waits for never touches a store: it is
forked before anything heavy is imported, and watches the other one do the work.
"""

import math
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence

from hsstore.storage.in_flight import InFlight
from hsstore_cli import exit_codes, standard_streams
from hsstore_cli.lifeline import Lifeline
from hsstore_cli.supervisor import AWAITED, Supervisor

SETTING = "HSSTORE_STALL_SECONDS"
DEFAULT_SECONDS = 60.0
LEAST_SECONDS = 1.0


def main() -> int:
    """Run ``hsstore`` as typed and return its exit code; only the child's returns, if there is one.

    Without a command there is nothing to supervise, and nothing with ``HSSTORE_STALL_SECONDS=0``.
    """
    standard_streams.ensure()
    try:
        seconds = stall_seconds(os.environ)
    except ValueError as error:
        return _refuse(str(error), exit_codes.USAGE)
    command = command_of(sys.argv[1:])
    if command is None or not seconds:
        return _work()
    try:
        return supervised(_work, command, seconds)
    except ForkFailed as error:
        return _refuse(f"{error}; {SETTING}=0 runs without a supervisor", exit_codes.FAILED)


def stall_seconds(environment: Mapping[str, str]) -> float:
    """How long one call may wait for the storage; 0 is for ever. Raises ValueError."""
    typed = environment.get(SETTING, "").strip()
    if not typed:
        return DEFAULT_SECONDS
    try:
        seconds = float(typed)
    except ValueError:
        seconds = math.nan
    if seconds == 0 or LEAST_SECONDS <= seconds < math.inf:
        return seconds
    raise ValueError(
        f"{SETTING} is {typed!r}: give the seconds that the storage may take for one operation, "
        f"at least {LEAST_SECONDS:g}, or 0 to wait for ever"
    )


def command_of(typed: Sequence[str]) -> str | None:
    """The command among the words typed; hsstore's own options take no values."""
    return next((word for word in typed if not word.startswith("-")), None)


class ForkFailed(Exception):
    """The system has no room for another process."""


def supervised(work: Callable[[], int], command: str, seconds: float) -> int:
    """Fork; in the child, what ``work`` returns. The parent ends itself as the child did.

    Raises ForkFailed.
    """
    in_flight, lifeline = InFlight(), Lifeline()
    # Nothing may arrive before both know what to do with it.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, AWAITED)
    # Ignored, as some parents leave it, would hide how the child ended.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        child = os.fork()
    except OSError as error:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise ForkFailed(f"no process for the work: {error.strerror}") from None
    if child:
        # At once: nothing that exit handlers could do is wanted of a supervisor.
        os._exit(Supervisor(child, command, in_flight, lifeline, seconds).wait())
    lifeline.hold()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    _announce(in_flight)
    return work()


def _announce(in_flight: InFlight) -> None:
    from hsstore.storage.filesystem import Filesystem  # noqa: PLC0415 - the parent needs none

    Filesystem.in_flight = in_flight


def _work() -> int:
    from hsstore_cli.main import main as run  # noqa: PLC0415 - the parent needs no click

    return run()


def _refuse(why: str, code: int) -> int:
    sys.stderr.write(f"hsstore: error: {why}\n")
    return code
