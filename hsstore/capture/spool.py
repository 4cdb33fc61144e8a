"""The spool folder as the server sees it: append segments, never more bytes than allowed."""

import contextlib
import errno
import os
import stat
import time
from pathlib import Path

import xxhash

from hsstore.capture.spool_format import (
    ERROR,
    HEADER,
    RID,
    Segment,
    encode_header,
)

FULL = (errno.ENOSPC, errno.EDQUOT)
REASON_BYTES = 2000
WAIT_SECONDS = 5.0
POLL_SECONDS = 0.05
ABANDONED_SECONDS = 3600.0
FILES_UNSEEN = 4096  # so many files may be written before looking which of them are gone


class SpoolFull(Exception):
    """The client did not delete enough in time, or the filesystem is full."""


class Spool:
    """Request files in a folder, of which this process's own may hold up to ``bound`` bytes.

    A full spool makes ``append`` wait up to ``wait_seconds`` for the client to delete what it has
    read; that stops the scheduler, which is how a slow client slows the server down. After one
    wait in vain it does not wait again until there was room.
    """

    def __init__(
        self, folder: Path, boot: str, bound: int, wait_seconds: float = WAIT_SECONDS
    ) -> None:
        self.folder = folder
        self.boot = boot
        self.bound = bound
        self._wait_seconds = wait_seconds
        self._patient = True
        self._written: dict[str, int] = {}  # bytes of our files that may still exist
        self._total = 0
        self._look_at = FILES_UNSEEN

    def append(self, rid: str, segment: Segment, payload: memoryview) -> None:
        """Add a segment to a request's file: all of it, or SpoolFull or another OSError.

        After an error the file may end in a torn segment: ``fail`` clears it away.
        """
        need = HEADER.size + len(payload)
        self._make_room(need)
        descriptor = self._open(rid)
        try:
            _write(descriptor, [memoryview(encode_header(segment, rid)), payload])
        except OSError as error:
            if error.errno in FULL:
                raise SpoolFull(f"the spool's filesystem is full: {error.strerror}") from error
            raise
        finally:
            os.close(descriptor)
            self._count(rid, self._written.get(rid, 0) + need)

    def fail(self, rid: str, reason: str) -> None:
        """Replace whatever a request's file holds by an error marker with one line of reason.

        The rows before it are of no use any more, and on a full disk they are in its way.
        """
        payload = " ".join(reason.split()).encode()[:REASON_BYTES]
        digest = xxhash.xxh3_64_intdigest(payload)
        segment = Segment(ERROR, 0, 0, 0, 0, 0, len(payload), self.boot, digest)
        descriptor = self._open(rid)
        try:
            os.ftruncate(descriptor, 0)
            _write(descriptor, [memoryview(encode_header(segment, rid)), memoryview(payload)])
        except OSError:
            os.ftruncate(descriptor, 0)  # nothing is better than a torn marker
            raise
        finally:
            os.close(descriptor)
            self._count(rid, HEADER.size + len(payload))

    def sweep(self, clock: Path, age_seconds: float = ABANDONED_SECONDS) -> list[str]:
        """Remove request files that nobody wrote to for ``age_seconds``; their names.

        One that cannot be removed, such as another user's, stays and is not named.
        Time is the filesystem's: ``clock``, a file of ours in the folder, is touched to read it.
        """
        os.utime(clock)
        now = clock.stat().st_mtime
        names = [path.name for path in self.folder.iterdir()]
        return [name for name in names if self._expired(name, now - age_seconds)]

    def _expired(self, name: str, before: float) -> bool:
        if not RID.fullmatch(name):
            return False
        path = self.folder / name
        with contextlib.suppress(OSError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime < before:
                path.unlink()
                return True
        return False

    def _open(self, rid: str) -> int:
        if not RID.fullmatch(rid):
            raise ValueError(f"{rid[:60]!r} is no request id of hsstore")
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.folder / rid, flags | os.O_NONBLOCK, 0o600)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "not a regular file", rid)
        return descriptor

    def _make_room(self, need: int) -> None:
        if need > self.bound:
            raise SpoolFull(f"a segment of {need} bytes, and the spool may hold {self.bound}")
        deadline = time.monotonic() + (self._wait_seconds if self._patient else 0)
        while not self._fits(need):
            if time.monotonic() >= deadline:
                self._patient = False
                raise SpoolFull(f"the client has left {self.bound} bytes of spool unread")
            time.sleep(POLL_SECONDS)
        self._patient = True

    def _fits(self, need: int) -> bool:
        if self._total + need > self.bound or len(self._written) >= self._look_at:
            self._forget_deleted()
        return self._total + need <= self.bound

    def _count(self, rid: str, size: int) -> None:
        self._total += size - self._written.get(rid, 0)
        self._written[rid] = size

    def _forget_deleted(self) -> None:
        self._written = {
            rid: size for rid, size in self._written.items() if os.path.lexists(self.folder / rid)
        }
        self._total = sum(self._written.values())
        self._look_at = max(FILES_UNSEEN, 2 * len(self._written))


def default_bound(folder: Path) -> int:
    """Half of the bytes that are free on the folder's filesystem."""
    space = os.statvfs(folder)
    return space.f_bavail * space.f_frsize // 2


def _write(descriptor: int, parts: list[memoryview]) -> None:
    """Write all of it: one call, unless it is beyond what the kernel takes at once."""
    while parts:
        written = os.writev(descriptor, parts)
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][written:]
