"""Telling of a stall: one line on stderr, and a log, without waiting for either."""

import json
import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from hsstore import __version__
from hsstore_cli import standard_streams
from hsstore_cli.stalls import Stall

PATIENCE_SECONDS = 2.0
POLL_SECONDS = 0.01
STDERR = 2

REMEDY = (
    "nothing more is written and what is committed or journalled is kept; "
    "once the storage answers, run the same command again"
)


def tell(stalls: Sequence[Stall], command: str, process: int) -> None:
    """Write the log, then the line. Neither is waited for longer than ``PATIENCE_SECONDS``."""
    now = datetime.now(UTC)
    log = log_folder(os.environ)
    if log is None:
        where = "no log: no home folder"
    else:
        log /= f"stalled-{now:%Y%m%dT%H%M%SZ}-{process}.json"
        text = log_text(stalls, command, process, now)
        written = bounded(lambda: _write(log, text), PATIENCE_SECONDS)
        where = f"log: {log}" if written else f"no log: {log.parent} could not be written to"
    line = f"hsstore: error: {described(stalls[0])}; {REMEDY}; {where}\n"
    bounded(lambda: _print(line), PATIENCE_SECONDS)


def described(stall: Stall) -> str:
    """What has stalled, in one line."""
    of = f" of {' '.join(stall.path.split())}" if stall.path else ""
    seen = {"state": stall.state, "kernel:": stall.wait_channel}
    seen_from_here = ", ".join(f"{name} {value}" for name, value in seen.items() if value)
    return (
        f"storage stalled: {stall.operation or 'a system call'}{of} has not returned for "
        f"{stall.seconds:.0f} s" + (f" ({seen_from_here})" if seen_from_here else "")
    )


def log_folder(environment: Mapping[str, str]) -> Path | None:
    """The folder for logs, by the XDG base directory rules; None where there is no home."""
    state, home = environment.get("XDG_STATE_HOME", ""), environment.get("HOME", "")
    if Path(state).is_absolute():
        return Path(state, "hsstore")
    return Path(home, ".local", "state", "hsstore") if Path(home).is_absolute() else None


def log_text(stalls: Sequence[Stall], command: str, process: int, now: datetime) -> str:
    """The log as JSON. Of what was typed it has the command's name only: the rest may be secret."""
    members = {
        "time": now.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "hsstore": __version__,
        "command": command,
        "process": process,
        "stalled": [asdict(stall) for stall in stalls],
    }
    return json.dumps(members, indent=2) + "\n"


def bounded(task: Callable[[], None], seconds: float) -> bool:
    """Run a task in a child and give up on it after ``seconds``: whether it was done.

    The task may itself be stuck in the storage, and must not print. What it raises is not seen.
    """
    try:
        child = os.fork()
    except OSError:  # no room for another process
        return False
    if not child:
        done = False
        try:
            task()
            done = True
        finally:
            os._exit(not done)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status == 0
        time.sleep(POLL_SECONDS)
    os.kill(child, signal.SIGKILL)
    return False


def _write(path: Path, text: str) -> None:
    standard_streams.let_go()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def _print(line: str) -> None:
    os.write(STDERR, line.encode(errors="backslashreplace"))
