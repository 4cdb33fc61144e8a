"""Writing one generation of a shard into its staging folder, sample by sample.

Payload goes straight from the caller's buffer to its place in the shard file while a helper thread
hashes it, so one sample at a time is in memory and the disk sets the pace.
"""

import contextlib
import dataclasses
import errno
import os
import time
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.errors import OUT_OF_SPACE
from hsstore.model import keys
from hsstore.model.capture import Capture
from hsstore.model.document import seal
from hsstore.model.geometry import Extent, Geometry
from hsstore.model.identity import StoreIdentity
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import AbsentSample, Chunk, Manifest, Statistics, StoredSample
from hsstore.model.marker import Marker
from hsstore.model.source import Failed, Origin
from hsstore.storage import ballast, codec, digest
from hsstore.storage.filesystem import NO_RESERVATION, Buffer, Filesystem
from hsstore.storage.journal import Journal, failure_line, header_line, read_journal, sample_line
from hsstore.storage.shard_file import encode_index

SYNC_BYTES = 64 << 20
SYNC_SECONDS = 2.0
# From this size on, a write goes to the disk while the next sample is made, not only at the sync.
START_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StagedShard:
    """A finished shard in its staging folder: what remains is to commit it."""

    folder: Path
    manifest: bytes
    marker: Marker


class ShardWriter:
    """Fills one staging folder. Not thread safe; one writer a shard.

    After any exception the writer may only be closed: what is journalled is kept, and a new
    writer over the same folder goes on from there.
    """

    def __init__(self, filesystem: Filesystem, folder: Path, identity: StoreIdentity,
                 version: ShardVersion, writer: str) -> None:  # fmt: skip
        self.folder = folder
        self.version = version
        self.writer = writer
        self._filesystem = filesystem
        self._identity = identity
        self._geometry: Geometry = identity.geometry
        self._data_path = folder / keys.STAGED_DATA
        self._journal_path = folder / keys.STAGED_JOURNAL
        self._hasher = ThreadPoolExecutor(1, thread_name_prefix="hash")
        self.journal = Journal()
        self._lines: list[bytes] = []
        self._reserved: dict[int, tuple[int, int]] = {}
        self._unsynced: list[int] = []
        self._durable: list[int] = []
        self._unsynced_bytes = 0
        self._synced_at = time.monotonic()
        self._broken = False
        self._data = filesystem.open(self._data_path, os.O_RDWR | os.O_CREAT)
        try:
            self._journal = filesystem.open(self._journal_path, os.O_RDWR | os.O_CREAT)
        except BaseException:
            filesystem.close(self._data)
            raise
        try:
            filesystem.sync_folder(folder)
            self._load()
        except BaseException:
            self._let_go()
            raise

    @property
    def capture(self) -> Capture:
        """What the store captures."""
        return self._identity.capture

    # -- what is there -------------------------------------------------------------------------

    def _load(self) -> None:
        """Take over what the journal settles, dropping its torn tail."""
        # Lines whose sync failed may be in the cache and not on the disk.
        self._filesystem.forget_cached(self._journal)
        journal = read_journal(self._filesystem.read(self._journal_path))
        here = (self._identity.uuid, self.version.shard, self.version.generation)
        if journal.origins and (journal.store, journal.shard, journal.generation) == here:
            self.journal = journal
        self._journal_end = self.journal.end
        self._filesystem.truncate(self._journal, self._journal_end, self._journal_path)
        self._end = max((c.offset + c.length for c in self._all_chunks()), default=0)
        self._filesystem.truncate(self._data, self._end, self._data_path)

    def verify_journalled(self) -> None:
        """Read every journalled sample past the page cache; forget those whose bytes are wrong.

        The others are durable, for ``take_durable``, once they are synced here.
        """
        self._filesystem.forget_cached(self._data)
        for sample, chunks in list(self.journal.chunks.items()):
            if not chunks_are_whole(self._filesystem, self._data, self._data_path, chunks):
                stored = self.journal.samples[sample]
                self.journal.forget(sample)
                self._clear_padding(stored)
        # A line may be there whose sync failed: only the next one makes it durable.
        self._unsynced = sorted(self.journal.settled())

    def _clear_padding(self, sample: StoredSample) -> None:
        """What damaged a sample may have damaged its padding, which add() does not write."""
        if self._identity.codec == "none":
            geometry = self._geometry
            end = sample.first_row + sample.rows
            padding = -end % geometry.chunk_rows * geometry.row_bytes
            with self._writing():
                self._write(bytes(padding), end * geometry.row_bytes)

    def reserve(self, extents: Iterable[Extent]) -> None:
        """Take the disk space of samples to come, where codec and filesystem allow that.

        Padding stays a hole. Raises OSError where there is not enough; nothing is kept then.
        """
        if self._identity.codec != "none":
            return
        try:
            for extent in extents:
                span = (
                    extent.first_row * self._geometry.row_bytes,
                    extent.rows * self._geometry.row_bytes,
                )
                self._reserved[extent.sample] = span
                if not self._filesystem.reserve(self._data, *span, self._data_path):
                    self._reserved.clear()
                    return
        except OSError:
            self._give_back()
            raise

    def _give_back(self) -> None:
        """Free what was reserved and not used, where the filesystem can."""
        if not self._reserved:
            return
        try:
            for offset, length in self._reserved.values():
                self._filesystem.make_hole(self._data, offset, length, self._data_path)
        except OSError as error:
            # Blocks too many harm nobody, and a full disk may lack the one that notes a hole.
            if error.errno not in OUT_OF_SPACE | NO_RESERVATION:
                raise
        self._reserved.clear()
        # Beyond the end of a file, cutting it there frees blocks, and making a hole does not.
        size = self._filesystem.size(self._data)
        self._filesystem.truncate(self._data, size, self._data_path)

    # -- adding ----------------------------------------------------------------------------------

    def add(self, extent: Extent, key: str, states: NDArray[Any], origin: Origin,
            *, previous: str | None = None) -> None:  # fmt: skip
        """Stage one sample's states [tokens, layers, hidden], in the store's stored dtype.

        Raises ValueError where shape or dtype are not the store's, OSError from the filesystem.
        """
        self._check(extent, states)
        rows = np.ascontiguousarray(states)
        described = self._hasher.submit(_describe, rows)
        with self._writing():
            if self._identity.codec == "none":
                chunks = self._write_plain(extent, rows)
            else:
                chunks = self._write_compressed(extent, rows)
        content, figures = described.result()
        self._settle(
            StoredSample(
                sample=extent.sample,
                key=key,
                first_row=extent.first_row,
                rows=extent.rows,
                content=content,
                statistics=figures,
                origin=self._origin(origin),
                previous=previous,
            ),
            chunks,
        )

    def copy(self, sample: StoredSample, origin: Origin, chunks: dict[int, bytearray]) -> None:
        """Stage a sample whose stored chunks (by chunk number) were verified elsewhere."""
        copied = []
        with self._writing():
            for number, stored in sorted(chunks.items()):
                offset = self._offset(number, len(stored))
                self._write(self._without_padding(sample, number, stored), offset)
                copied.append(Chunk(number, offset, len(stored), digest.chunk_digest(stored)))
        self._settle(self._moved(sample, origin), tuple(copied))

    def place(
        self, sample: StoredSample, origin: Origin, chunks: Iterable[tuple[Chunk, bytearray]]
    ) -> None:
        """Stage a sample as another copy of the store has it: each chunk at its very offset.

        ``chunks`` are those of the other copy with their verified bytes.
        """
        placed = []
        with self._writing():
            for chunk, stored in chunks:
                self._write(self._without_padding(sample, chunk.chunk, stored), chunk.offset)
                placed.append(chunk)
        self._settle(self._moved(sample, origin), tuple(placed))

    def _moved(self, sample: StoredSample, origin: Origin) -> StoredSample:
        """The sample as this journal has it, whose origins have numbers of their own."""
        return dataclasses.replace(sample, origin=self._origin(origin))

    def fail(self, extent: Extent, key: str, failed: Failed, origin: Origin) -> None:
        """Settle a sample that cannot be had: it will be committed as absent, with its reason."""
        self._origin(origin)
        absent = AbsentSample(
            sample=extent.sample,
            key=key,
            first_row=extent.first_row,
            rows=extent.rows,
            reason=failed.kind,
            detail=failed.detail,
            attempts=failed.attempts,
        )
        self.journal.forget(extent.sample)
        self.journal.failures[extent.sample] = absent
        self._lines.append(failure_line(absent))
        self._unsynced.append(extent.sample)
        self.sync_when_due()

    def _check(self, extent: Extent, states: NDArray[Any]) -> None:
        shape = (extent.rows, self._geometry.layers, self._geometry.hidden_size)
        dtype = codec.stored_dtype(self._identity.capture.dtype)
        if states.shape != shape or states.dtype != dtype:
            raise ValueError(
                f"sample {extent.sample}: states are {states.dtype} {states.shape}, "
                f"the store takes {dtype} {shape}"
            )

    def _write_plain(self, extent: Extent, rows: NDArray[Any]) -> tuple[Chunk, ...]:
        raw = rows.data.cast("B")
        size, numbers = self._geometry.chunk_bytes, extent.chunk_range(self._geometry)
        hashes = self._hasher.submit(_plain_digests, raw, size)
        self._write(raw, numbers.start * size)
        return tuple(
            Chunk(number, number * size, size, xxh3)
            for number, xxh3 in zip(numbers, hashes.result(), strict=True)
        )

    def _write_compressed(self, extent: Extent, rows: NDArray[Any]) -> tuple[Chunk, ...]:
        raw, size = rows.data.cast("B"), self._geometry.chunk_bytes
        chunks = []
        for n, number in enumerate(extent.chunk_range(self._geometry)):
            decoded = raw[n * size : (n + 1) * size]
            padded = decoded if len(decoded) == size else bytes(decoded).ljust(size, b"\0")
            stored = codec.compress(padded, self._geometry.itemsize)
            chunks.append(Chunk(number, self._end, len(stored), digest.chunk_digest(stored)))
            self._write(stored, self._end)
        return tuple(chunks)

    def _without_padding(self, sample: StoredSample, number: int, stored: bytearray) -> memoryview:
        """The part of a stored chunk that is not the padding of an uncompressed sample."""
        if self._identity.codec != "none":
            return memoryview(stored)
        before = number * self._geometry.chunk_rows - sample.first_row
        rows = min(sample.rows - before, self._geometry.chunk_rows)
        return memoryview(stored)[: rows * self._geometry.row_bytes]

    def _offset(self, number: int, length: int) -> int:
        plain = self._identity.codec == "none"
        return number * length if plain else self._end

    def _write(self, data: Buffer, offset: int) -> None:
        length = memoryview(data).nbytes
        self._filesystem.write_at(self._data, data, offset, self._data_path)
        if length >= START_BYTES:
            self._filesystem.start_writing(self._data, offset, length)
        self._end = max(self._end, offset + length)
        self._unsynced_bytes += length

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Give a half-written sample's space back when the disk is full, so the rest can sync."""
        whole = self._end
        try:
            yield
        except OSError as error:
            try:
                if error.errno in OUT_OF_SPACE:
                    self._end = whole
                    self._filesystem.truncate(self._data, whole, self._data_path)
                    self._release_ballast()
                    self.sync()
            finally:
                self._broken = True
            raise

    def _settle(self, sample: StoredSample, chunks: tuple[Chunk, ...]) -> None:
        self.journal.samples[sample.sample] = sample
        self.journal.chunks[sample.sample] = chunks
        self.journal.failures.pop(sample.sample, None)
        self._reserved.pop(sample.sample, None)
        self._lines.append(sample_line(sample, chunks))
        self._unsynced.append(sample.sample)
        self.sync_when_due()

    def begin(self, origin: Origin) -> None:
        """Have the journal name an origin, and with it the writer that the marker will name."""
        self._origin(origin)

    def _origin(self, origin: Origin) -> int:
        known = self.journal.origin(origin)
        if known is not None and self._is_named():
            return known
        self.journal.origins.append(origin)
        self.journal.writers.add(self.writer)
        version = self.version
        self._lines.append(
            header_line(self._identity.uuid, version.shard, version.generation, self.writer, origin)
        )
        return len(self.journal.origins) - 1

    def _is_named(self) -> bool:
        """Whether the folder or its journal tells by whose name a marker will call the writer."""
        found = keys.read_stage(self.folder.name)
        return self.writer in self.journal.writers or bool(found and found[1] == self.writer)

    # -- durability --------------------------------------------------------------------------------

    @property
    def broken(self) -> bool:
        """Whether an operation failed after which this writer may only be closed."""
        return self._broken

    @property
    def unsynced_bytes(self) -> int:
        """How much a power cut would cost now."""
        return self._unsynced_bytes

    def take_durable(self) -> list[int]:
        """The samples whose journal lines became durable since this was last asked."""
        durable, self._durable = self._durable, []
        return durable

    def sync_when_due(self) -> None:
        """Sync, if the last time is long ago or much was written since."""
        due = time.monotonic() - self._synced_at >= SYNC_SECONDS
        if due or self._unsynced_bytes >= SYNC_BYTES:
            self.sync()

    def sync(self) -> None:
        """Make every settled sample durable, then say so in the journal."""
        if not self._unsynced or self._broken:
            return
        self._broken = (
            True  # until all of it worked: a file whose sync failed is never synced again
        )
        self._filesystem.sync_data(self._data, self._data_path)
        lines = b"".join(self._lines)
        self._append(lines)
        self._filesystem.sync_data(self._journal, self._journal_path)
        self._broken = False
        self._journal_end += len(lines)
        self._lines.clear()
        self._durable += self._unsynced
        self._unsynced.clear()
        self._unsynced_bytes = 0
        self._synced_at = time.monotonic()

    def _append(self, lines: bytes) -> None:
        """Write to the journal; on a full disk in the place of the ballast."""
        write = partial(self._filesystem.write_at, self._journal, lines, self._journal_end)
        try:
            write(self._journal_path)
        except OSError as error:
            if error.errno not in OUT_OF_SPACE or not self._release_ballast():
                raise
            write(self._journal_path)

    def _release_ballast(self) -> bool:
        return ballast.release(self._filesystem, self.folder.parents[1])

    def finish(self, expected: Collection[int]) -> StagedShard:
        """Write the index, sync everything and describe the shard; nothing is visible yet.

        ``expected`` are the samples of the shard: ValueError unless each is stored or has failed.
        """
        if self.journal.settled() != set(expected):
            raise ValueError(
                f"shard {self.version.shard}: not every sample is settled, or too many"
            )
        self.sync()
        self._give_back()
        chunks = tuple(sorted(self._all_chunks(), key=lambda c: c.chunk))
        end = max((c.offset + c.length for c in chunks), default=0)
        index = encode_index(chunks, self._geometry)
        self._broken = True
        self._filesystem.truncate(self._data, end, self._data_path)
        self._filesystem.write_at(self._data, index, end, self._data_path)
        self._filesystem.sync(self._data, self._data_path)
        self._broken = False
        size = self._filesystem.size(self._data)
        if size != end + len(index):
            raise OSError(0, f"the file has {size} bytes, not {end + len(index)}", self._data_path)
        self._filesystem.sync_folder(self.folder)
        return self._staged(chunks, size, xxhash.xxh3_64_hexdigest(index))

    def _staged(self, chunks: tuple[Chunk, ...], size: int, index_hash: str) -> StagedShard:
        samples = tuple(self.journal.samples[s] for s in sorted(self.journal.samples))
        absent = tuple(self.journal.failures[s] for s in sorted(self.journal.failures))
        manifest = Manifest(
            store=self._identity.uuid,
            version=self.version,
            writer=self.writer,
            data_bytes=size,
            index_xxh3_64=index_hash,
            chunks=chunks,
            samples=samples,
            absent=absent,
            origins=tuple(self.journal.origins),
        )
        raw = seal(manifest.to_document())
        marker = Marker.of(manifest, xxhash.xxh3_128_hexdigest(raw))
        return StagedShard(self.folder, raw, marker)

    def close(self) -> None:
        """Keep what can be kept, and let go of the files."""
        try:
            self.sync()
            self._give_back()
        finally:
            self._let_go()
            # Says that nobody has the file open; gone already once committed or taken over.
            with contextlib.suppress(OSError):
                self._filesystem.unlink(self.folder / keys.STAGED_HOLDER)

    def _let_go(self) -> None:
        self._hasher.shutdown()
        try:
            self._filesystem.close(self._data)
        finally:
            self._filesystem.close(self._journal)

    def _all_chunks(self) -> list[Chunk]:
        return [chunk for chunks in self.journal.chunks.values() for chunk in chunks]


def verified_chunks(
    filesystem: Filesystem, fd: int, path: Path, chunks: Iterable[Chunk]
) -> dict[int, bytearray] | None:
    """The stored bytes of chunks by chunk number, None unless every hash matches."""
    verified = {}
    for chunk in chunks:
        stored = bytearray(chunk.length)
        if not _reads_whole(filesystem, fd, path, chunk, stored):
            return None
        verified[chunk.chunk] = stored
    return verified


def chunks_are_whole(filesystem: Filesystem, fd: int, path: Path, chunks: Iterable[Chunk]) -> bool:
    """Whether every hash matches; one chunk is in memory at a time."""
    memory = bytearray()
    for chunk in chunks:
        if len(memory) < chunk.length:
            memory = bytearray(chunk.length)
        # What the file is too short to fill must not look like what was read before.
        stored = memoryview(memory)[: chunk.length]
        stored[:] = bytes(chunk.length)
        if not _reads_whole(filesystem, fd, path, chunk, stored):
            return False
    return True


def _reads_whole(filesystem: Filesystem, fd: int, path: Path, chunk: Chunk, into: Buffer) -> bool:
    try:
        filesystem.read_at(fd, into, chunk.offset, path)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return False
    return digest.chunk_digest(into) == chunk.xxh3_64


def _describe(rows: NDArray[Any]) -> tuple[str, Statistics]:
    return digest.content_digest(rows), digest.statistics(rows)


def _plain_digests(raw: memoryview, size: int) -> list[str]:
    return [
        digest.chunk_digest(raw[at : at + size], size - len(raw[at : at + size]))
        for at in range(0, len(raw), size)
    ]
