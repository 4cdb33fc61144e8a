import numpy as np
import pytest

from hsstore.errors import MalformedInput
from hsstore.model.geometry import Extent, Geometry, choose_geometry, place


def chosen(
    row_bytes: int, longest: int = 1, chunk_rows: int | None = None, shard_rows: int | None = None
) -> tuple[int, int]:
    geometry = choose_geometry(
        layers=1,
        hidden_size=row_bytes // 2,
        itemsize=2,
        longest_sample=longest,
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
    )
    return geometry.chunk_rows, geometry.shard_rows


@pytest.mark.parametrize(
    ("row_bytes", "longest", "expected"),
    [
        (4 * 7168 * 2, 1, (64, 32_768)),
        (4 * 4096 * 2, 1, (128, 32_768)),
        (3 * 576 * 2, 1, (256, 32_768)),
        (2, 1, (256, 32_768)),
        (8 << 20, 1, (16, 256)),
        (64 << 20, 1, (16, 32)),
        (4 * 7168 * 2, 32_768, (64, 32_768)),
        (4 * 7168 * 2, 32_769, (64, 32_832)),
        (2, 100_000, (256, 100_096)),
    ],
)
def test_rows_follow_from_the_bytes_of_a_row(
    row_bytes: int, longest: int, expected: tuple[int, int]
) -> None:
    assert chosen(row_bytes, longest) == expected


def test_overrides_are_taken_as_they_are() -> None:
    assert chosen(64, 10, chunk_rows=3, shard_rows=12) == (3, 12)
    assert chosen(64, 10, chunk_rows=3) == (3, 32_769)


@pytest.mark.parametrize(
    ("longest", "chunk_rows", "shard_rows", "told"),
    [
        (1, 0, None, "must be at least 1"),
        (1, 16, -16, "must be at least 1"),
        (1, 16, 40, "no positive multiple of 16-row chunks"),
        (1, 64, 32, "no positive multiple"),
        (33, 16, 32, "the longest sample has 33 tokens, a shard only 32 rows"),
        (1, 1 << 25, 1 << 25, "bytes of a chunk.*another --chunk-rows"),
        (1, 16, 1 << 70, "rows of a shard"),
    ],
)
def test_what_does_not_fit_together_is_refused(
    longest: int, chunk_rows: int | None, shard_rows: int | None, told: str
) -> None:
    with pytest.raises(MalformedInput, match=told):
        chosen(64, longest, chunk_rows, shard_rows)


GEOMETRY = Geometry(chunk_rows=4, shard_rows=16, layers=3, hidden_size=8, itemsize=2)


def test_sizes_follow_from_rows() -> None:
    assert (GEOMETRY.row_bytes, GEOMETRY.chunk_bytes, GEOMETRY.chunks_per_shard) == (48, 192, 4)
    assert GEOMETRY.index_bytes == 4 * 16 + 4
    assert [GEOMETRY.chunks(rows) for rows in (1, 4, 5, 16)] == [1, 1, 2, 4]


def test_samples_are_placed_next_fit() -> None:
    placed = list(place([3, 5, 4, 1, 16, 1, 9, 8], GEOMETRY, first_shard=2, first_sample=10))
    assert placed == [
        Extent(10, 2, 0, 3),
        Extent(11, 2, 4, 5),
        Extent(12, 2, 12, 4),
        Extent(13, 3, 0, 1),
        Extent(14, 4, 0, 16),
        Extent(15, 5, 0, 1),
        Extent(16, 5, 4, 9),
        Extent(17, 6, 0, 8),
    ]
    assert placed[1].chunk_range(GEOMETRY) == range(1, 3)


def test_a_large_dataset_fills_its_shards() -> None:
    """37,312 samples with 87.8 million tokens, four layers of 7168 in bfloat16."""
    geometry = choose_geometry(layers=4, hidden_size=7168, itemsize=2, longest_sample=8192)
    drawn = np.random.default_rng(0).gamma(1.6, 1, 37_312)
    lengths = np.clip(drawn / drawn.mean() * 2353, 16, 8192).astype(int)
    extents = list(place(map(int, lengths), geometry))
    shards = extents[-1].shard + 1
    fill = lengths.sum() / (shards * geometry.shard_rows)
    assert abs(lengths.sum() - 87.8e6) < 1e6
    assert abs(shards - 2865) < 60
    assert fill > 0.93
