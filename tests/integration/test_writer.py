"""Staging samples: what is refused, what is in memory, what a failed sync forbids."""

import errno
import os
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
from numpy.typing import NDArray

from hsstore.model.document import unseal
from hsstore.model.geometry import Extent
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import Manifest
from hsstore.model.source import Failed
from hsstore.storage import digest
from hsstore.storage.journal import read_journal
from hsstore.storage.shard_file import MISSING, decode_index
from hsstore.storage.store import Store
from hsstore.storage.writer import ShardWriter
from hsstore.testing.faults import FaultyFilesystem
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.stores import empty_store, ids_of, key_of

LENGTHS = (3, 4, 5)


@pytest.fixture(params=["none", "blosc-zstd"])
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Store:
    return empty_store(tmp_path / "store", LENGTHS, shard_rows=32, codec=request.param)


@pytest.fixture
def filesystem() -> FaultyFilesystem:
    return FaultyFilesystem(frozenset({"write", "sync", "link"}))


@pytest.fixture
def writer(store: Store, filesystem: FaultyFilesystem) -> Iterator[ShardWriter]:
    writer = open_writer(store, filesystem)
    yield writer
    writer.close()


def open_writer(store: Store, filesystem: FaultyFilesystem) -> ShardWriter:
    folder = store.root / "stage" / "folder"
    folder.mkdir(exist_ok=True)
    return ShardWriter(filesystem, folder, store.identity, ShardVersion(0, 1), "a" * 16)


def add(store: Store, writer: ShardWriter, sample: int) -> NDArray[Any]:
    states = seeded_states(store.identity, ids_of(sample, LENGTHS[sample]))
    origin = SeededSource(store.identity).origin()
    writer.add(store.samples.extent(sample), key_of(sample), states, origin)
    return states


@pytest.mark.parametrize(
    "states",
    [
        np.zeros((2, 2, 8), np.uint16),
        np.zeros((3, 1, 8), np.uint16),
        np.zeros((3, 2, 9), np.uint16),
        np.zeros((3, 16), np.uint16),
        np.zeros((3, 2, 8), np.float16),
        np.zeros((3, 2, 8), np.int16),
        np.zeros((3, 2, 8), ">u2"),
    ],
    ids=lambda states: f"{states.dtype.str}{states.shape}",
)
def test_another_shape_or_dtype_is_refused(
    store: Store, writer: ShardWriter, states: NDArray[Any]
) -> None:
    origin = SeededSource(store.identity).origin()
    with pytest.raises(ValueError, match=r"sample 0: states are .* the store takes uint16"):
        writer.add(store.samples.extent(0), "key", states, origin)
    add(store, writer, 0)


def test_a_finished_shard_is_described_by_its_manifest(store: Store, writer: ShardWriter) -> None:
    states = {n: add(store, writer, n) for n in (2, 0)}
    failed = Failed(1, "gone", "for good", ("busy", "gone"))
    origin = SeededSource(store.identity).origin()
    writer.fail(store.samples.extent(1), key_of(1), failed, origin)
    staged = writer.finish(range(len(LENGTHS)))
    raw = (writer.folder / "data").read_bytes()
    manifest = Manifest.from_document(unseal(staged.manifest, "manifest"))
    geometry = store.identity.geometry
    entries = decode_index(raw[-geometry.index_bytes :], geometry)
    assert len(raw) == staged.marker.data_bytes == manifest.data_bytes
    assert [c.chunk for c in manifest.chunks] == [0, 2, 3]
    assert (entries[1] == MISSING).all()
    assert (entries[4:] == MISSING).all()
    for chunk in manifest.chunks:
        stored = raw[chunk.offset : chunk.offset + chunk.length]
        assert entries[chunk.chunk].tolist() == [chunk.offset, chunk.length]
        assert digest.chunk_digest(stored) == chunk.xxh3_64
    assert {s.sample: s.content for s in manifest.samples} == {
        n: digest.content_digest(rows) for n, rows in states.items()
    }
    assert [(a.sample, a.reason, a.attempts) for a in manifest.absent] == [
        (1, "gone", ("busy", "gone"))
    ]
    assert (staged.marker.samples, staged.marker.absent, staged.marker.tokens) == (2, 1, 8)


def test_rows_need_not_be_contiguous(store: Store, writer: ShardWriter) -> None:
    states = seeded_states(store.identity, ids_of(0, 3))
    wide = np.zeros((3, 2, 16), np.uint16)
    wide[:, :, ::2] = states
    origin = SeededSource(store.identity).origin()
    writer.add(store.samples.extent(0), "key", wide[:, :, ::2], origin)
    assert writer.journal.samples[0].content == digest.content_digest(states)


def test_a_sample_counts_only_once_it_is_synced(store: Store, writer: ShardWriter) -> None:
    add(store, writer, 0)
    path = writer.folder / "journal"
    assert not read_journal(path.read_bytes()).settled()
    writer.sync()
    assert read_journal(path.read_bytes()).settled() == {0}


@pytest.mark.parametrize("at", [0, 2], ids=["shard file", "journal"])
def test_a_file_whose_sync_failed_is_left_alone(
    store: Store, filesystem: FaultyFilesystem, at: int
) -> None:
    writer = open_writer(store, filesystem)
    add(store, writer, 0)
    filesystem.fail(at, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        writer.sync()
    count = len(filesystem.operations)
    writer.sync()
    writer.close()
    assert filesystem.operations[count:] == []
    assert filesystem.touched_after_failure == []


def test_a_full_disk_keeps_what_came_before(store: Store, filesystem: FaultyFilesystem) -> None:
    writer = open_writer(store, filesystem)
    add(store, writer, 0)
    filesystem.fail(0, errno.ENOSPC)
    with pytest.raises(OSError, match="No space"):
        add(store, writer, 1)
    writer.close()
    again = open_writer(store, filesystem)
    assert again.journal.samples.keys() == {0}
    assert again._end == (writer.folder / "data").stat().st_size
    again.close()


@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_one_sample_at_a_time_is_in_memory(tmp_path: Path, codec: str) -> None:
    store = empty_store(
        tmp_path / "large",
        [4096] * 3,
        hidden_size=1024,
        chunk_rows=256,
        shard_rows=16_384,
        codec=codec,
    )
    filesystem = FaultyFilesystem()
    writer = open_writer(store, filesystem)
    states = np.arange(4096 * 2 * 1024, dtype=np.uint16).reshape(4096, 2, 1024)
    origin = SeededSource(store.identity).origin()
    tracemalloc.start()
    for sample in range(3):
        writer.add(Extent(sample, 0, sample * 4096, 4096), "key", states, origin)
    staged = writer.finish(range(len(LENGTHS)))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    writer.close()
    assert staged.marker.tokens == 3 * 4096
    assert peak < states.nbytes // 2


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.ENOSPC])
def test_blocks_that_cannot_be_given_back_stop_nobody(
    store: Store, filesystem: FaultyFilesystem, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Some filesystems reserve but make no holes, and a full one may lack room to note a hole."""
    refused = OSError(code, os.strerror(code))
    monkeypatch.setattr(filesystem, "make_hole", mock.Mock(side_effect=refused))
    writer = open_writer(store, filesystem)
    extents = [store.samples.extent(sample) for sample in range(len(LENGTHS))]
    writer.reserve(extents)
    add(store, writer, 0)
    add(store, writer, 1)
    origin = SeededSource(store.identity).origin()
    writer.fail(extents[2], key_of(2), Failed(2, "seeded", "cannot"), origin)
    assert writer.finish(range(len(LENGTHS))).marker.absent == 1
    writer.close()


def test_a_file_whose_close_fails_keeps_no_other_open(
    store: Store, filesystem: FaultyFilesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network filesystems tell at close what they could not write."""
    writer = open_writer(store, filesystem)
    closed: list[int] = []

    def close(fd: int) -> None:
        os.close(fd)
        closed.append(fd)
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(filesystem, "close", close)
    with pytest.raises(OSError, match="quota"):
        writer.close()
    assert len(closed) == 2
