"""Hashing many chunks at the speed of the disk: large reads into reused buffers, on threads."""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from hsstore.model.manifest import Chunk
from hsstore.storage import digest
from hsstore.storage.filesystem import Filesystem

READ_BYTES = 4 << 20

# Called with each chunk and its stored bytes, or None where they are not what the manifest says.
Look = Callable[[Chunk, memoryview | None], None]


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
        by_offset = sorted(chunks, key=lambda c: c.offset)
        return self._verify(fd, path, [[run] for run in _runs(by_offset)], lambda _, __: None)

    def verify_samples(
        self, fd: int, path: Path, samples: Iterable[list[Chunk]], look: Look
    ) -> Iterator[BadChunk]:
        """The same for the chunks of samples, each list in the order of rows.

        ``look`` is called with every chunk, for one sample by one thread and in that order. Its
        bytes are valid during the call only.
        """
        batches = [[*_runs(batch)] for batch in _batches(samples)]
        return self._verify(fd, path, batches, look)

    def _verify(
        self, fd: int, path: Path, batches: list[list[list[Chunk]]], look: Look
    ) -> Iterator[BadChunk]:
        tasks = [self._pool.submit(self._batch, fd, path, batch, look) for batch in batches]
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

    def _batch(self, fd: int, path: Path, runs: list[list[Chunk]], look: Look) -> list[BadChunk]:
        return [bad for run in runs for bad in self._run(fd, path, run, look)]

    def _run(self, fd: int, path: Path, run: list[Chunk], look: Look) -> list[BadChunk]:
        """Verify chunks that lie back to back."""
        total = sum(chunk.length for chunk in run)
        view = self._buffer(total)
        try:
            count = self._filesystem.read_at(fd, view, run[0].offset, path)
        except OSError as error:
            if len(run) > 1:
                return [bad for chunk in run for bad in self._run(fd, path, [chunk], look)]
            look(run[0], None)
            return [BadChunk(run[0], error=error.strerror or str(error))]
        bad, at = [], 0
        for chunk in run:
            stored = view[at : min(at + chunk.length, count)]
            at += chunk.length
            if digest.chunk_digest(stored) == chunk.xxh3_64:
                look(chunk, stored)
            else:
                bad.append(self._again(fd, path, chunk, look))
        return bad

    def _again(self, fd: int, path: Path, chunk: Chunk, look: Look) -> BadChunk:
        """Read once more, past the page cache: bad memory is not a bad disk."""
        stored = bytearray(chunk.length)
        try:
            self._filesystem.forget_cached(fd)
            count = self._filesystem.read_at(fd, stored, chunk.offset, path)
        except OSError as error:
            look(chunk, None)
            return BadChunk(chunk, error=error.strerror or str(error))
        found = digest.chunk_digest(memoryview(stored)[:count])
        look(chunk, memoryview(stored) if found == chunk.xxh3_64 else None)
        return BadChunk(chunk, found, zeros=not any(stored), stable=found != chunk.xxh3_64)

    def _buffer(self, size: int) -> memoryview:
        buffer = getattr(self._buffers, "memory", None)
        if buffer is None or len(buffer) < size:
            buffer = self._buffers.memory = bytearray(max(size, READ_BYTES))
        return memoryview(buffer)[:size]


def _batches(samples: Iterable[list[Chunk]]) -> Iterator[list[Chunk]]:
    """The chunks of neighbouring samples together, up to one read."""
    batch: list[Chunk] = []
    length = 0
    for chunks in sorted(samples, key=lambda chunks: chunks[0].offset):
        more = sum(chunk.length for chunk in chunks)
        if batch and length + more > READ_BYTES:
            yield batch
            batch, length = [], 0
        batch += chunks
        length += more
    if batch:
        yield batch


def _runs(chunks: Iterable[Chunk]) -> Iterator[list[Chunk]]:
    """Chunks in their order, neighbours together, up to one read."""
    run: list[Chunk] = []
    for chunk in chunks:
        end = run[-1].offset + run[-1].length if run else -1
        start = run[0].offset if run else 0
        if run and (chunk.offset != end or end + chunk.length - start > READ_BYTES):
            yield run
            run = []
        run.append(chunk)
    if run:
        yield run
