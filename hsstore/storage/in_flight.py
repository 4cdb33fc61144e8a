"""The system calls that are on their way to the storage, for another process to see.

A process whose call never returns can tell nobody. So the table lies in memory that it shares with
the process it was forked from: it notes each call before it makes it and clears the note when the
call has returned, and the other one, which never touches the storage, sees what is left.
"""

import itertools
import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from threading import get_native_id

SLOTS = 256
# A path has at most 4096 bytes; memory that no slot has used costs nothing.
SLOT_BYTES = 8192
_NUMBER = struct.Struct("=Q")
_HEAD = struct.Struct("=QII")
_TEXT_BYTES = SLOT_BYTES - _HEAD.size


@dataclass(frozen=True, slots=True)
class Operation:
    """A call that has not returned. ``number`` counts calls, ``thread`` is the kernel's number."""

    number: int
    thread: int
    name: str
    path: str


class InFlight:
    """At most ``SLOTS`` calls at once, each in a slot of its own; safe from any thread.

    Made before the fork; only one process notes, any number may look.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, SLOTS * SLOT_BYTES)
        self._numbers = itertools.count(1)
        # Taking from a list's end and appending to it are atomic.
        self._free = list(range(0, SLOTS * SLOT_BYTES, SLOT_BYTES))

    def begin(self, name: str, path: Path | str) -> int | None:
        """Note a call; what to give to ``end``. None where no slot is free: it goes unseen."""
        try:
            slot = self._free.pop()
        except IndexError:
            return None
        text = f"{name} {path}".encode(errors="surrogateescape")[:_TEXT_BYTES]
        start = slot + _HEAD.size
        self._memory[start : start + len(text)] = text
        _HEAD.pack_into(self._memory, slot, next(self._numbers), get_native_id(), len(text))
        return slot

    def end(self, slot: int | None) -> None:
        """Clear the note of a call that has returned."""
        if slot is not None:
            _NUMBER.pack_into(self._memory, slot, 0)
            self._free.append(slot)

    def operations(self) -> Iterator[Operation]:
        """The calls that have not returned. One that begins meanwhile may be garbled."""
        for slot in range(0, SLOTS * SLOT_BYTES, SLOT_BYTES):
            number, thread, length = _HEAD.unpack_from(self._memory, slot)
            if number:
                start = slot + _HEAD.size
                text = self._memory[start : start + length].decode(errors="surrogateescape")
                name, _, path = text.partition(" ")
                yield Operation(number, thread, name, path)
