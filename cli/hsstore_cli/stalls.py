"""Which of another process's calls the storage does not answer."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from hsstore.storage.in_flight import InFlight, Operation
from hsstore_cli import kernel_view
from hsstore_cli.kernel_view import DISK_SLEEP, SLEEPING

MOVING = 10
"""So many times longer may an operation take whose thread is woken up again and again."""

_PROCESS_FILE = "/proc/self/fd/"


@dataclass(frozen=True, slots=True)
class Stall:
    """A call that has not returned for ``seconds``; None for what cannot be seen from here."""

    operation: str | None
    path: str | None
    seconds: float
    thread: int
    state: str | None
    wait_channel: str | None
    system_call: str | None


@dataclass(frozen=True, slots=True)
class _Wait:
    """What a thread is waiting in: an announced operation, or a disk sleep of some other origin.

    Equal from one look to the next as long as nothing has happened.
    """

    thread: int
    switches: int | None
    operation: Operation | None


class Patience:
    """Adds up, look by look, how long each call has been on its way.

    An announced operation is stalled after ``seconds`` in which its thread has not run, and after
    ``MOVING`` times as long in any case: a large sync on slow storage is woken with every piece.
    Whatever else a thread does (reading a model, importing, statvfs) is stalled after ``seconds``
    of uninterruptible sleep in which it has not run. Time counts as it is seen: what passes
    between two looks, while the process could run.
    """

    def __init__(self, process: int, in_flight: InFlight, seconds: float) -> None:
        self._process = process
        self._in_flight = in_flight
        self._seconds = seconds
        self._waits: dict[_Wait, float] = {}
        self._operations: dict[Operation, float] = {}

    def reset(self) -> None:
        """The process is stopped: what it waits for now may answer without being heard."""
        self._waits.clear()
        self._operations.clear()

    def look(self, passed: float) -> list[Stall]:
        """The stalled calls, longest first; ``passed`` seconds are gone since the last look."""
        operations = self._under_way()
        self._operations = {o: self._operations.get(o, -passed) + passed for o in operations}
        waits = self._waiting(operations)
        self._waits = {w: self._waits.get(w, -passed) + passed for w in waits}
        found = {w: s for w, s in self._waits.items() if s >= self._seconds}
        for operation, seconds in self._operations.items():
            if seconds >= MOVING * self._seconds:
                found[_Wait(operation.thread, None, operation)] = seconds
        return sorted((self._stall(w, s) for w, s in found.items()), key=lambda s: -s.seconds)

    def _under_way(self) -> list[Operation]:
        """The announced operations, the last of each thread.

        An exception from a signal's handler may keep a thread from clearing a note.
        """
        numbered = sorted(self._in_flight.operations(), key=lambda operation: operation.number)
        return list({operation.thread: operation for operation in numbered}.values())

    def _waiting(self, operations: list[Operation]) -> Iterator[_Wait]:
        seen = {thread.number: thread for thread in kernel_view.threads(self._process)}
        for operation in operations:
            # Numbers of threads that /proc does not show leave the table alone to decide.
            thread = seen.pop(operation.thread, None)
            if thread is None:
                yield _Wait(operation.thread, None, operation)
            elif thread.state in SLEEPING:
                yield _Wait(thread.number, thread.switches, operation)
        for thread in seen.values():
            if thread.state == DISK_SLEEP:
                yield _Wait(thread.number, thread.switches, None)

    def _stall(self, wait: _Wait, seconds: float) -> Stall:
        process, number = self._process, wait.thread
        thread, call = kernel_view.thread(process, number), kernel_view.call(process, number)
        operation, path = call.name if call else None, call.path if call else None
        if wait.operation is not None:
            operation, path = wait.operation.name, self._full(wait.operation.path)
        return Stall(
            operation=operation,
            path=path,
            seconds=seconds,
            thread=number,
            state=thread.state if thread else None,
            wait_channel=kernel_view.wait_channel(process, number),
            system_call=call.name if call else None,
        )

    def _full(self, path: str) -> str:
        """An announced path as one that means the same from anywhere."""
        if path.startswith(_PROCESS_FILE):
            descriptor = int(path.removeprefix(_PROCESS_FILE))
            return kernel_view.open_file(self._process, descriptor) or path
        return str(PurePosixPath(kernel_view.folder(self._process) or "", path))
