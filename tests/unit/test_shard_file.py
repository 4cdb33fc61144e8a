import google_crc32c
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsstore.model.geometry import Geometry
from hsstore.model.manifest import Chunk
from hsstore.storage.shard_file import MISSING, decode_index, encode_index

GEOMETRY = Geometry(4, 16, 2, 8, 2)
CHUNKS = (Chunk(2, 0, 128, ""), Chunk(0, 128, 99, ""))
INDEX = encode_index(CHUNKS, GEOMETRY)


def test_an_index_lists_offset_and_length_of_every_chunk() -> None:
    entries = decode_index(INDEX, GEOMETRY)
    assert entries[[0, 2]].tolist() == [[128, 99], [0, 128]]
    assert (entries[[1, 3]] == MISSING).all()


def test_its_bytes_are_those_of_the_zarr_specification() -> None:
    entries = np.array([128, 99, 2**64 - 1, 2**64 - 1, 0, 128, 2**64 - 1, 2**64 - 1], "<u8")
    assert INDEX[:-4] == entries.tobytes()
    assert int.from_bytes(INDEX[-4:], "little") == google_crc32c.value(entries.tobytes())


@given(st.integers(0, len(INDEX) - 1), st.integers(1, 255))
def test_any_changed_byte_is_noticed(at: int, change: int) -> None:
    raw = bytearray(INDEX)
    raw[at] ^= change
    with pytest.raises(ValueError, match="crc32c"):
        decode_index(bytes(raw), GEOMETRY)


@pytest.mark.parametrize("raw", [b"", INDEX[:-1], INDEX + b"\0"])
def test_another_length_is_refused(raw: bytes) -> None:
    with pytest.raises(ValueError, match="bytes, not 68"):
        decode_index(raw, GEOMETRY)


def test_a_chunk_beyond_the_shard_is_refused() -> None:
    with pytest.raises(IndexError):
        encode_index([Chunk(4, 0, 1, "")], GEOMETRY)
