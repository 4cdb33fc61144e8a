import itertools

from hypothesis import given
from hypothesis import strategies as st

from hsstore.model.geometry import Geometry, choose_geometry, place


@st.composite
def placements(draw: st.DrawFn) -> tuple[Geometry, list[int]]:
    chunk_rows = draw(st.integers(1, 9))
    shard_rows = chunk_rows * draw(st.integers(1, 12))
    geometry = Geometry(chunk_rows, shard_rows, 2, 8, 2)
    return geometry, draw(st.lists(st.integers(1, shard_rows), min_size=1, max_size=60))


@given(placements())
def test_no_two_samples_share_a_chunk_and_none_crosses_a_shard(
    drawn: tuple[Geometry, list[int]],
) -> None:
    geometry, lengths = drawn
    taken: set[tuple[int, int]] = set()
    for extent in place(lengths, geometry):
        chunks = extent.chunk_range(geometry)
        assert extent.first_row % geometry.chunk_rows == 0
        assert extent.first_row + extent.rows <= geometry.shard_rows
        assert len(chunks) * geometry.chunk_rows >= extent.rows
        assert chunks.stop <= geometry.chunks_per_shard
        assert taken.isdisjoint((extent.shard, c) for c in chunks)
        taken.update((extent.shard, c) for c in chunks)


@given(placements())
def test_samples_keep_their_order_and_a_shard_ends_only_when_full(
    drawn: tuple[Geometry, list[int]],
) -> None:
    geometry, lengths = drawn
    extents = list(place(lengths, geometry))
    assert [(e.sample, e.rows) for e in extents] == list(enumerate(lengths))
    for one, other in itertools.pairwise(extents):
        end = one.chunk_range(geometry).stop * geometry.chunk_rows
        needed = geometry.chunks(other.rows) * geometry.chunk_rows
        if end + needed <= geometry.shard_rows:
            assert (other.shard, other.first_row) == (one.shard, end)
        else:
            assert (other.shard, other.first_row) == (one.shard + 1, 0)


@given(st.integers(1, 64), st.integers(1, 20_000), st.sampled_from([2, 4]), st.integers(1, 200_000))
def test_a_chosen_geometry_always_fits(
    layers: int, hidden_size: int, itemsize: int, longest_sample: int
) -> None:
    geometry = choose_geometry(
        layers=layers, hidden_size=hidden_size, itemsize=itemsize, longest_sample=longest_sample
    )
    assert geometry.shard_rows % geometry.chunk_rows == 0
    assert geometry.shard_rows >= longest_sample
    assert 16 <= geometry.chunk_rows <= 256
    assert geometry.chunk_rows == 16 or geometry.chunk_bytes <= 4 << 20
