"""Reading committed samples: by marker and shard index, one preadv a sample."""

import errno
import os
import threading
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.errors import (
    InvalidDocument,
    SampleAbsent,
    SampleDamaged,
    SampleMissing,
    SampleUnavailable,
)
from hsstore.model import commands, keys
from hsstore.model.geometry import Extent
from hsstore.model.manifest import Chunk, Manifest
from hsstore.model.marker import Marker
from hsstore.storage import codec, digest
from hsstore.storage.commit import pending_intents, read_intent
from hsstore.storage.filesystem import Buffer, Filesystem
from hsstore.storage.shard_file import MISSING, Index, decode_index
from hsstore.storage.store import Store

OPEN_SHARDS = 128
OVERLAP_BYTES = 8 << 20
_GONE = frozenset({errno.ENOENT, errno.ESTALE})


class Mismatch(Exception):
    """What was read is not what the documents say."""


class OpenShard:
    """Descriptor, index and documents of one generation of a shard: one unit, never mixed."""

    def __init__(self, store: Store, marker: Marker) -> None:
        self.marker = marker
        self.path = store.root / keys.shard_file(marker.version.shard)
        self._store = store
        self._manifest: Manifest | None = None
        self._chunks: dict[int, Chunk] | None = None
        self.fd = -1
        self.fd = store.filesystem.open(self.path)
        try:
            self.index = self._read_index()
        except BaseException:
            self.close()
            raise
        self.in_place = self._in_place()

    def _read_index(self) -> Index:
        filesystem, geometry = self._store.filesystem, self._store.identity.geometry
        size = filesystem.size(self.fd)
        if size != self.marker.data_bytes:
            raise Mismatch(f"the shard file has {size} bytes, not {self.marker.data_bytes}")
        raw = bytearray(geometry.index_bytes)
        filesystem.read_at(self.fd, raw, size - len(raw), self.path)
        if xxhash.xxh3_64_hexdigest(raw) != self.marker.index_xxh3_64:
            raise Mismatch("the shard index is not the one that the marker names")
        try:
            return decode_index(bytes(raw), geometry)
        except ValueError as error:
            raise Mismatch(str(error)) from None

    def _in_place(self) -> NDArray[np.bool_]:
        """[chunks], whether each uncompressed chunk lies where its number alone would put it.

        Known once a shard, so that reading a sample need not look at its index entries.
        """
        chunks, size = len(self.index), self._store.identity.geometry.chunk_bytes
        if self._store.identity.codec != "none":
            return np.zeros(chunks, np.bool_)
        expected = size * np.arange(chunks, dtype=np.uint64)
        at_home: NDArray[np.bool_] = (self.index[:, 0] == expected) & (self.index[:, 1] == size)
        return at_home

    @property
    def manifest(self) -> Manifest:
        """The manifest, read when first asked for."""
        if self._manifest is None:
            self._manifest = self._store.manifest(self.marker)
        return self._manifest

    def chunk(self, number: int) -> Chunk | None:
        """What the manifest says of a chunk."""
        if self._chunks is None:
            self._chunks = {chunk.chunk: chunk for chunk in self.manifest.chunks}
        return self._chunks.get(number)

    def close(self) -> None:
        """Let go of the file."""
        if self.fd >= 0:
            self._store.filesystem.close(self.fd)
            self.fd = -1

    def __del__(self) -> None:
        self.close()


class Reader:
    """Reads samples of one store; keeps a bounded number of shards open. Thread safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._filesystem: Filesystem = store.filesystem
        self._geometry = store.identity.geometry
        self._plain = store.identity.codec == "none"
        self._dtype = codec.stored_dtype(store.identity.capture.dtype)
        self._markers = store.committed()
        self._open: OrderedDict[int, OpenShard] = OrderedDict()
        self._lock = threading.Lock()
        self._hashing: tuple[int, ThreadPoolExecutor] | None = None

    def shape(self, sample: int) -> tuple[int, int, int]:
        """[tokens, layers, hidden] of a sample."""
        return (
            int(self.store.samples.length[sample]),
            self._geometry.layers,
            self._geometry.hidden_size,
        )

    def read(
        self,
        sample: int,
        out: NDArray[Any] | None = None,
        *,
        rows: int | None = None,
        verify: bool = False,
    ) -> NDArray[Any]:
        """The states of one sample, [tokens, layers, hidden] in the stored dtype.

        bfloat16 comes as its uint16 bits. ``out``, C-contiguous and of that shape, is filled and
        returned. ``rows``: of the first so many tokens only, at least one; chunks behind them are
        not read. ``verify`` checks every chunk that is read against the manifest. Raises
        SampleMissing, SampleAbsent, SampleDamaged (each names the sample), OSError.
        """
        extent = self.store.samples.extent(sample)
        shape = self.shape(sample) if rows is None else (rows, *self.shape(sample)[1:])
        if not 1 <= shape[0] <= extent.rows:
            raise ValueError(f"rows is {rows}, not from 1 to the sample's {extent.rows}")
        if out is None:
            out = np.empty(shape, self._dtype)
        elif out.shape != shape or out.dtype != self._dtype:
            raise ValueError(f"out is {out.dtype} {out.shape}, not {self._dtype} {shape}")
        elif not out.flags.c_contiguous:
            raise ValueError("out is not C-contiguous")
        try:
            self._fill(extent, out, verify=verify)
        except (SampleMissing, SampleAbsent):
            if not self._has_changed(extent.shard):
                raise
            self._retry(extent, out, verify=verify)
        except (Mismatch, InvalidDocument, OSError) as first:
            if isinstance(first, OSError) and first.errno not in _GONE:
                raise
            self._retry(extent, out, verify=verify)
        return out

    def _retry(self, extent: Extent, out: NDArray[Any], *, verify: bool) -> None:
        """Look once more with fresh markers: the shard may have been replaced meanwhile.

        While a replacement is pending, the file in place may be its file without the index
        telling so, since uncompressed generations have the same; both readings are right.
        """
        self.refresh()
        try:
            self._fill(extent, out, verify=verify)
        except (Mismatch, InvalidDocument, FileNotFoundError) as error:
            try:
                replaced = self._open_replacement(extent.shard)
                if replaced is None:
                    raise
                self._fill_from(replaced, extent, out, verify=verify)
            except (Mismatch, InvalidDocument, FileNotFoundError):
                raise self.unavailable(SampleDamaged, extent, str(error)) from None

    def _has_changed(self, shard: int) -> bool:
        """Whether a shard was committed or replaced since its marker was looked for."""
        return self.store.committed().get(shard) != self._markers.get(shard)

    def refresh(self) -> None:
        """Forget cached markers and open shards."""
        with self._lock:
            self._markers = self.store.committed()
            self._open.clear()

    def _fill(self, extent: Extent, out: NDArray[Any], *, verify: bool) -> None:
        self._fill_from(self._shard(extent), extent, out, verify=verify)

    def _fill_from(
        self, shard: OpenShard, extent: Extent, out: NDArray[Any], *, verify: bool
    ) -> None:
        """The first ``len(out)`` rows of a sample; a chunk to be verified is read as a whole."""
        rows, size = len(out), self._geometry.chunk_rows
        if rows == extent.rows:
            self._fill_rows(shard, extent, out, verify=verify)
            return
        whole = rows - rows % size if verify else rows
        if whole:
            self._fill_rows(shard, replace(extent, rows=whole), out[:whole], verify=verify)
        if whole < rows:
            last = min(size, extent.rows - whole)
            chunk = np.empty((last, *out.shape[1:]), out.dtype)
            cut = replace(extent, first_row=extent.first_row + whole, rows=last)
            self._fill_rows(shard, cut, chunk, verify=verify)
            out[whole:] = chunk[: rows - whole]

    def _fill_rows(
        self, shard: OpenShard, extent: Extent, out: NDArray[Any], *, verify: bool
    ) -> None:
        numbers = extent.chunk_range(self._geometry)
        raw = out.reshape(-1).view(np.uint8)
        if shard.in_place[numbers.start : numbers.stop].all():
            self._fill_at_once(shard, numbers, raw, verify=verify)
            return
        entries = shard.index[numbers.start : numbers.stop]
        if (entries == MISSING).any():
            raise self._absent(extent, shard)
        fill = self._fill_scattered if self._plain else self._fill_compressed
        fill(shard, numbers, entries, raw, verify=verify)

    def _fill_at_once(
        self, shard: OpenShard, numbers: range, raw: NDArray[np.uint8], *, verify: bool
    ) -> None:
        size = self._geometry.chunk_bytes
        if verify and len(raw) >= OVERLAP_BYTES:
            self._fill_while_hashing(shard, numbers, raw)
            return
        if self._read_at(shard, raw.data, numbers.start * size) != len(raw):
            raise Mismatch("the shard file ends inside the sample")
        if verify:
            for n, number in enumerate(numbers):
                rows = raw[n * size : (n + 1) * size]
                self._verify(shard, number, rows.data, size - len(rows))

    def _fill_while_hashing(self, shard: OpenShard, numbers: range, raw: NDArray[np.uint8]) -> None:
        """Hash each chunk on a second thread while the next one is read."""
        size, hasher = self._geometry.chunk_bytes, self._hasher()
        verified = []
        for n, number in enumerate(numbers):
            rows = raw[n * size : (n + 1) * size]
            if self._read_at(shard, rows.data, number * size) != len(rows):
                raise Mismatch("the shard file ends inside the sample")
            verified.append(hasher.submit(self._verify, shard, number, rows.data, size - len(rows)))
        for task in verified:
            task.result()

    def _hasher(self) -> ThreadPoolExecutor:
        """One thread of this process: a thread does not live on in a forked child."""
        with self._lock:
            if self._hashing is None or self._hashing[0] != os.getpid():
                self._hashing = os.getpid(), ThreadPoolExecutor(1, thread_name_prefix="verify")
            return self._hashing[1]

    def _fill_scattered(self, shard: OpenShard, numbers: range, entries: Index,
                        raw: NDArray[np.uint8], *, verify: bool) -> None:  # fmt: skip
        """Chunks in an order of another writer: Zarr leaves the order inside a shard open."""
        size = self._geometry.chunk_bytes
        for n, (offset, length) in enumerate(entries.tolist()):
            into = raw[n * size : (n + 1) * size]
            if length != size or self._read_at(shard, into.data, offset) != len(into):
                raise Mismatch("the shard index names bytes that are not there")
            if verify:
                self._verify(shard, numbers[n], into.data, size - len(into))

    def _fill_compressed(self, shard: OpenShard, numbers: range, entries: Index,
                         raw: NDArray[np.uint8], *, verify: bool) -> None:  # fmt: skip
        size = self._geometry.chunk_bytes
        for n, (offset, length) in enumerate(entries.tolist()):
            if offset + length > shard.marker.data_bytes:
                raise Mismatch("the shard index names bytes past the end of the file")
            stored = bytearray(length)
            if self._read_at(shard, stored, offset) != length:
                raise Mismatch("the shard file ends inside the sample")
            if verify:
                self._verify(shard, numbers[n], stored, 0)
            self._decode(stored, raw[n * size : (n + 1) * size])

    def _decode(self, stored: bytearray, into: NDArray[np.uint8]) -> None:
        size = self._geometry.chunk_bytes
        whole = into if len(into) == size else np.empty(size, np.uint8)
        try:
            codec.decompress(stored, whole)
        except ValueError as error:
            raise Mismatch(str(error)) from None
        if whole is not into:
            into[:] = whole[: len(into)]

    def _read_at(self, shard: OpenShard, into: Buffer, offset: int) -> int:
        return self._filesystem.read_at(shard.fd, into, offset, shard.path)

    def _verify(self, shard: OpenShard, number: int, stored: Buffer, padding: int) -> None:
        chunk = shard.chunk(number)
        if chunk is None or digest.chunk_digest(stored, padding) != chunk.xxh3_64:
            raise Mismatch(f"chunk {number} of shard {shard.marker.version.shard} is damaged")

    # -- shards ---------------------------------------------------------------------------------

    def _shard(self, extent: Extent) -> OpenShard:
        with self._lock:
            shard = self._open.get(extent.shard)
            if shard is not None:
                self._open.move_to_end(extent.shard)
                return shard
        found = self._markers.get(extent.shard)
        if found is None:
            raise self.unavailable(SampleMissing, extent, f"shard {extent.shard} is not committed")
        shard = self._open_shard(*found)
        with self._lock:
            self._open[extent.shard] = shard
            while len(self._open) > OPEN_SHARDS:
                self._open.popitem(last=False)
        return shard

    def _open_shard(self, version: keys.ShardVersion, absent: bool) -> OpenShard:  # noqa: FBT001 - a marker's name
        """The committed generation, or the one that a pending intent is putting in its place."""
        try:
            return OpenShard(self.store, self.store.read_marker(version, absent=absent))
        except (Mismatch, FileNotFoundError):
            replaced = self._open_replacement(version.shard)
            if replaced is None:
                raise
            return replaced

    def _open_replacement(self, shard: int) -> OpenShard | None:
        """The generation that a pending intent is putting in place; None without an intent."""
        for version in pending_intents(self._filesystem, self.store.root):
            if version.shard == shard:
                store = self.store
                intent = read_intent(self._filesystem, store.root, store.identity, version)
                return OpenShard(store, intent)
        return None

    def _absent(self, extent: Extent, shard: OpenShard) -> SampleUnavailable | Mismatch:
        for sample in shard.manifest.absent:
            if sample.sample == extent.sample:
                reason = f"absent: {sample.reason}, {sample.detail}"
                return self.unavailable(SampleAbsent, extent, reason)
        return Mismatch("the shard index lacks a chunk that the manifest has")

    def unavailable(
        self, error: type[SampleUnavailable], extent: Extent, detail: str
    ) -> SampleUnavailable:
        """An error that names the sample and the next command."""
        root, shard = self.store.root, extent.shard
        command = commands.hsstore("fsck", root, "--shards", shard)
        if error is SampleMissing:
            command = commands.extract(root, source=self.store.source_words(), shard=shard)
        return error(
            f"sample {self.store.key(extent.sample)!r} cannot be read: {detail}",
            place=str(root),
            remedy=f"run: {command}",
        )
