import os
from itertools import groupby
from pathlib import Path

import numpy as np
import pytest

from hsstore.model import footprint
from hsstore.model.document import seal
from hsstore.model.geometry import Extent, Geometry, choose_geometry, place
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import Chunk, Manifest, Statistics, StoredSample
from hsstore.model.plan import Plan, TokenFile, TokenFiles
from hsstore.storage import token_file
from hsstore.storage.token_file import ShardTokens

DIGEST, HASH = "a" * 32, "b" * 16
SHAPES = [(1, 64, 2), (4, 64, 4), (3, 577, 2), (4, 7168, 2)]


def shards(
    layers: int, hidden: int, itemsize: int, seed: int
) -> tuple[Geometry, list[list[Extent]]]:
    lengths = np.random.default_rng(seed).integers(1, 400, 60).tolist()
    geometry = choose_geometry(
        layers=layers, hidden_size=hidden, itemsize=itemsize, longest_sample=max(lengths)
    )
    placed = groupby(place(lengths, geometry, first_sample=95), lambda e: e.shard)
    return geometry, [list(group) for _, group in placed]


def manifest(extents: list[Extent], geometry: Geometry) -> Manifest:
    size = geometry.chunk_bytes
    used = footprint.used_chunks(extents[-1], geometry)
    figures = (1.0,) * geometry.layers
    return Manifest(
        store=DIGEST,
        version=ShardVersion(extents[0].shard, 1),
        writer=HASH,
        data_bytes=used * size + geometry.index_bytes,
        index_xxh3_64=HASH,
        chunks=tuple(Chunk(n, n * size, size, HASH) for n in range(used)),
        samples=tuple(
            StoredSample(
                e.sample, str(e.sample), e.first_row, e.rows, DIGEST,
                Statistics(min(e.rows, 64), figures, figures), 0,
            )
            for e in extents
        ),
        absent=(),
        origins=(),
    )  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_manifest_is_predicted_to_within_its_origin(shape: tuple[int, int, int]) -> None:
    geometry, groups = shards(*shape, seed=1)
    for extents in groups:
        without_origin = len(seal(manifest(extents, geometry).to_document()))
        names = 2 * sum(len(str(e.sample)) for e in extents)
        predicted = footprint.manifest_bytes(extents, geometry, names)
        assert 0 < predicted - without_origin < 600


@pytest.mark.parametrize("samples", [1, 7, 1000])
def test_a_token_file_is_predicted_to_the_byte(samples: int) -> None:
    lengths = np.arange(1, samples + 1, dtype=np.int32)
    tokens = int(lengths.sum())
    keys = tuple(f"key-{n}" for n in range(samples))
    encoded = token_file.encode(
        ShardTokens(12345, keys, lengths, np.ones(tokens, np.int32), np.ones(tokens, np.uint8))
    )
    key_bytes = sum(map(len, keys))
    assert footprint.token_file_bytes(samples, tokens, key_bytes) == len(encoded)


@pytest.mark.parametrize("shape", SHAPES)
def test_shard_data_takes_what_a_sparse_file_takes(
    shape: tuple[int, int, int], tmp_path: Path
) -> None:
    geometry, groups = shards(*shape, seed=3)
    extents = groups[0][:20]
    path = tmp_path / "data"
    fd = os.open(path, os.O_CREAT | os.O_WRONLY)
    for e in extents:
        os.pwrite(fd, bytes(e.rows * geometry.row_bytes), e.first_row * geometry.row_bytes)
    end = footprint.used_chunks(extents[-1], geometry) * geometry.chunk_bytes
    os.pwrite(fd, bytes(geometry.index_bytes), end)
    os.fsync(fd)
    os.close(fd)
    taken = path.stat().st_blocks * 512
    path.unlink()
    # The extent tree is the filesystem's own affair, and a block each way at most here.
    assert abs(footprint.data_bytes(extents, geometry) - taken) <= footprint.BLOCK_BYTES


def test_digits_of_a_range_are_counted_without_walking_it() -> None:
    for start, stop, step in [(0, 1, 1), (0, 1001, 1), (95, 155, 1), (0, 512, 3670016), (9, 11, 7)]:
        assert footprint.digit_sum(start, stop, step) == sum(
            len(str(step * n)) for n in range(start, stop)
        )


def test_a_plan_document_is_predicted_closely() -> None:
    files = TokenFiles.of([TokenFile(0, DIGEST)] * 2871)
    plan = Plan(
        store=DIGEST,
        generation=0,
        samples=37_312,
        shards=2871,
        tokens=87_793_206,
        dataset=DIGEST,
        sample_table=DIGEST,
        token_files=files,
    )
    predicted = footprint.plan_bytes(37_312, 2871, 87_793_206)
    assert predicted == len(seal(plan.to_document()))


def test_a_folder_of_many_names_grows() -> None:
    assert footprint.folder_bytes(10, 37) == 4096
    assert footprint.folder_bytes(10_000, 37) > 10_000 * 45
