"""Hashing many chunks at the speed of the disk: large reads into reused buffers, on threads."""

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hsstore.model.manifest import Chunk
from hsstore.storage import digest
from hsstore.storage.filesystem import Filesystem

READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class BadChunk:
    """A chunk that is not what its manifest says.

    ``found`` is the xxh3_64 of what was read (None where reading failed), ``zeros`` whether that
    was nothing but zeros, ``error`` what the system said, ``stable`` False where a second reading,
    past the page cache, was right after all.
    """

    chunk: Chunk
    found: str | None = None
    zeros: bool = False
    error: str | None = None
    stable: bool = True


class ChunkReader:
    """Verifies chunks against their hashes. Shared by the threads that examine shards."""

    def __init__(self, filesystem: Filesystem, threads: int | None = None) -> None:
        self.threads = threads or min(4, len(os.sched_getaffinity(0)))
        self._filesystem = filesystem
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="verify")
        self._buffers = threading.local()

    def verify(self, fd: int, path: Path, chunks: Iterable[Chunk]) -> Iterator[BadChunk]:
        """The chunks whose stored bytes differ from their hash; ``fd`` stays open meanwhile."""
        tasks = [self._pool.submit(self._run, fd, path, run) for run in _runs(chunks)]
        try:
            for task in tasks:
                yield from task.result()
        except CancelledError:
            return
        finally:
            for task in tasks:
                task.cancel()

    def close(self) -> None:
        """Stop; what is being verified is given up."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, fd: int, path: Path, run: list[Chunk]) -> list[BadChunk]:
        """Verify chunks that lie back to back."""
        total = sum(chunk.length for chunk in run)
        view = self._buffer(total)
        try:
            count = self._filesystem.read_at(fd, view, run[0].offset, path)
        except OSError as error:
            if len(run) > 1:
                return [bad for chunk in run for bad in self._run(fd, path, [chunk])]
            return [BadChunk(run[0], error=error.strerror or str(error))]
        bad, at = [], 0
        for chunk in run:
            stored = view[at : min(at + chunk.length, count)]
            at += chunk.length
            if digest.chunk_digest(stored) != chunk.xxh3_64:
                bad.append(self._again(fd, path, chunk))
        return bad

    def _again(self, fd: int, path: Path, chunk: Chunk) -> BadChunk:
        """Read once more, past the page cache: bad memory is not a bad disk."""
        stored = bytearray(chunk.length)
        try:
            self._filesystem.forget_cached(fd)
            count = self._filesystem.read_at(fd, stored, chunk.offset, path)
        except OSError as error:
            return BadChunk(chunk, error=error.strerror or str(error))
        found = digest.chunk_digest(memoryview(stored)[:count])
        return BadChunk(chunk, found, zeros=not any(stored), stable=found != chunk.xxh3_64)

    def _buffer(self, size: int) -> memoryview:
        buffer = getattr(self._buffers, "memory", None)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers.memory = bytearray(max(size, READ_BYTES))
        return memoryview(buffer)[:size]


def _runs(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Neighbouring chunks together, up to one read."""
    run: list[Chunk] = []
    for chunk in sorted(chunks, key=lambda c: c.offset):
        end = run[-1].offset + run[-1].length if run else -1
        start = run[0].offset if run else 0
        if run and (chunk.offset != end or end + chunk.length - start > READ_BYTES):
            yield run
            run = []
        run.append(chunk)
    if run:
        yield run
