"""The client's side of a spool folder: hellos, finished requests, and what is left to remove."""

import contextlib
import errno
import fcntl
import os
import re
import socket
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from hsstore.capture import spool_format
from hsstore.capture.spool_format import DTYPES, ERROR, HEADER, HELLO, STATES, Segment
from hsstore.errors import SourceUnavailable
from hsstore.extraction.sglang.outcome import AttemptFailed, Busy, Discarded
from hsstore.storage.codec import stored_dtype

HELLO_BYTES = 1 << 20
REASON_BYTES = 1 << 16
FULL = "spool-full"
# More than the whole spool: waiting makes no room for it.
NEVER_FITS = re.compile(r"a segment of \d+ bytes, and the spool may hold \d+")
OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Hello:
    """What one writing process of a server says that it captures; see the plugin."""

    boot: str
    rank: int
    ranks: int
    release: str
    plugin: str
    model_path: str | None
    layers: tuple[int | str, ...]
    engine_layers: tuple[int, ...]
    dtype: str
    hidden_size: int
    norm: str
    spool_bytes: int
    refused: str | None


class Spool:
    """A spool folder; every file in it is reached through one handle.

    ``unreadable`` tells whether it held hellos of another user. Raises SourceUnavailable where
    it cannot be opened, or where finished files could not be removed from it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.unreadable = False
        try:
            self._folder = os.open(path, OPEN_FOLDER)
        except OSError as error:
            raise SourceUnavailable(
                f"the spool folder cannot be opened: {error.strerror}",
                place=str(path),
                remedy="give --spool the folder that the server was launched with as HSSTORE_SPOOL",
            ) from None
        if not os.access(path, os.W_OK | os.X_OK):
            self.close()
            raise SourceUnavailable(
                "no file may be removed from the spool folder, and so it would fill up",
                place=str(path),
                remedy="run client and server as one user, who may write to the folder",
            )

    def hellos(self) -> list[Hello]:
        """The hellos of servers that may be alive; a file that is none is passed over."""
        self._follow()
        self.unreadable = False
        names = sorted(filter(HELLO.fullmatch, self._names()))
        return [hello for name in names if (hello := self._hello(name)) is not None]

    def states(self, rid: str, states: NDArray[Any], dtype: str, boot: str | None = None) -> str:
        """Read a finished request into ``states`` [tokens, layers, hidden]; return its boot id.

        Every row must be there exactly once, of one boot: ``boot`` where given, else Discarded.
        Raises AttemptFailed for anything missing or damaged, Busy where the server had no room.
        """
        try:
            fd = os.open(rid, OPEN_FILE, dir_fd=self._folder)
        except OSError as error:
            raise torn(f"its file cannot be opened: {error.strerror}") from None
        try:
            return _Reading(fd, rid, states, dtype, boot).run()
        except OSError as error:
            raise torn(f"its file cannot be read: {error.strerror}") from None
        finally:
            os.close(fd)

    def remove(self, rid: str) -> None:
        """Remove a request's file, if there is one and it may be removed."""
        # What stays counts as unread: the server says so once its spool is full.
        with contextlib.suppress(OSError):
            os.unlink(rid, dir_fd=self._folder)

    def remove_run(self, run: str) -> int:
        """Remove all that is left of a client's run; how many files that were."""
        prefix = spool_format.rid(run, 0)[:-8]
        left = [name for name in self._names() if name.startswith(prefix)]
        for name in left:
            self.remove(name)
        return len(left)

    def close(self) -> None:
        """Let go of the folder."""
        os.close(self._folder)

    def _follow(self) -> None:
        """Turn to the folder that is at the path now, if somebody made it anew."""
        with contextlib.suppress(OSError):
            if os.path.samestat(self.path.stat(), os.fstat(self._folder)):
                return
            new = os.open(self.path, OPEN_FOLDER)
            # The number stays, which another thread may be using.
            os.dup2(new, self._folder, inheritable=False)
            os.close(new)

    def _names(self) -> list[str]:
        with os.scandir(self._folder) as entries:
            return [entry.name for entry in entries]

    def _hello(self, name: str) -> Hello | None:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            try:
                fd = os.open(name, OPEN_FILE, dir_fd=self._folder)
            except PermissionError:
                self.unreadable = True
                return None
            try:
                found = orjson.loads(os.read(fd, HELLO_BYTES))
                ours = found["format"] == spool_format.FORMAT and found["kind"] == "hsstore-spool"
                if ours and not _is_left_behind(fd, found.get("host")):
                    return _hello(found)
            finally:
                os.close(fd)
        return None


def _is_left_behind(fd: int, host: object) -> bool:
    """Whether a hello's server is gone for certain: it locks the file as long as it lives."""
    if host != socket.gethostname():
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _hello(found: dict[str, Any]) -> Hello:
    return Hello(
        boot=str(found["boot"]),
        rank=int(found["rank"]),
        ranks=int(found["ranks"]),
        release=str(found["release"]),
        plugin=str(found["plugin"]),
        model_path=found["model_path"] and str(found["model_path"]),
        layers=tuple(found["layers"] or ()),
        engine_layers=tuple(found["engine_layers"] or ()),
        dtype=str(found["dtype"]),
        hidden_size=int(found["hidden_size"] or 0),
        norm=str(found["norm"]),
        spool_bytes=int(found["spool_bytes"] or 0),
        refused=None if found["refused"] is None else str(found["refused"]),
    )


class _Reading:
    """One file of segments, read from front to end into the caller's array."""

    def __init__(
        self, fd: int, rid: str, states: NDArray[Any], dtype: str, boot: str | None
    ) -> None:
        self.fd = fd
        self.rid = rid
        self.states = states
        self.dtype = dtype
        self.boot = boot
        self.have = np.zeros(len(states), bool)

    def run(self) -> str:
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            raise torn("its file is no plain file")
        for segment, at in self._segments(status.st_size):
            if segment.kind == ERROR:
                raise self._reason(segment, at)
            self._refuse_other(segment)
            self._take(segment, at)
        if not self.have.all():
            raise torn(f"{int(self.have.sum())} of {len(self.have)} rows are there")
        if self.boot is None:
            raise torn("its file is empty")
        return self.boot

    def _segments(self, size: int) -> Iterator[tuple[Segment, int]]:
        at = 0
        while at < size:
            raw = os.pread(self.fd, HEADER.size, at)
            try:
                segment = spool_format.decode_header(raw, self.rid)
            except spool_format.TornSegment as error:
                raise torn(str(error)) from None
            at += HEADER.size
            if segment.payload_bytes > size - at:
                raise torn("a segment is cut short")
            yield segment, at
            at += segment.payload_bytes

    def _refuse_other(self, segment: Segment) -> None:
        if self.boot is None:
            self.boot = segment.boot
        if segment.boot != self.boot:
            raise Discarded("its states were written by another server process")
        _, layers, hidden = self.states.shape
        wanted = (STATES, DTYPES[self.dtype], layers, hidden)
        if (segment.kind, segment.dtype, segment.layers, segment.hidden_size) != wanted:
            raise AttemptFailed(
                "wrong-shape",
                f"the spool holds rows of {segment.layers} layers of {segment.hidden_size} values "
                f"of dtype {segment.dtype}, not {layers} of {hidden} of dtype {wanted[1]}",
            )

    def _take(self, segment: Segment, at: int) -> None:
        first, end = segment.first_row, segment.first_row + segment.rows
        if end > len(self.have) or self.have[first:end].any():
            raise torn(f"rows {first} to {end - 1} are there twice, or not of this prompt")
        into = self.states[first:end].reshape(-1).view(np.uint8).data
        if segment.payload_bytes != len(into):
            raise torn("a segment's size is not that of its rows")
        _read_into(self.fd, into, at)
        if xxhash.xxh3_64_intdigest(into) != segment.payload_xxh3_64:
            raise torn("a segment's bytes are damaged")
        self.have[first:end] = True

    def _reason(self, segment: Segment, at: int) -> AttemptFailed | Busy:
        said = os.pread(self.fd, min(segment.payload_bytes, REASON_BYTES), at)
        reason = " ".join(said.decode(errors="replace").split())[:200]
        if reason.startswith(FULL) and not NEVER_FITS.search(reason):
            return Busy(f"the spool is full: {reason.removeprefix(FULL).lstrip(': ')}")
        return AttemptFailed("not-captured", f"the server captured nothing: {reason}")


def _read_into(fd: int, into: memoryview, at: int) -> None:
    done = 0
    while done < len(into):
        read = os.preadv(fd, [into[done:]], at + done)
        if read == 0:
            raise OSError(errno.EIO, "the file was cut short")
        done += read


def torn(detail: str) -> AttemptFailed:
    """The failure of a request whose file is not whole."""
    return AttemptFailed("torn-spool", detail)


def rows_like(tokens: int, layers: int, hidden_size: int, dtype: str) -> NDArray[Any]:
    """A new array for states [tokens, layers, hidden] in the stored dtype."""
    return np.empty((tokens, layers, hidden_size), stored_dtype(dtype))
