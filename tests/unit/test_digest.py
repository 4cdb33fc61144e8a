import numpy as np
import pytest
import xxhash

from hsstore.storage.digest import as_float32, chunk_digest, content_digest, statistics


@pytest.mark.parametrize("padding", [0, 1, 1000, 3 << 20])
def test_padding_counts_as_zeros(padding: int) -> None:
    raw = b"some bytes"
    assert chunk_digest(raw, padding) == xxhash.xxh3_64_hexdigest(raw + bytes(padding))


def test_content_is_hashed_row_by_row() -> None:
    states = np.arange(24, dtype="<u2").reshape(3, 2, 4)
    assert content_digest(states) == xxhash.xxh3_128_hexdigest(states.tobytes())


def test_bfloat16_is_the_upper_half_of_float32() -> None:
    values = np.array([0.0, -1.5, np.inf, 2.0**-126], np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    assert np.array_equal(as_float32(bits), values)


def test_figures_are_those_of_all_rows_of_a_short_sample() -> None:
    states = np.array([[[3, 4], [0, -9]], [[0, 0], [1, 0]], [[6, 8], [0, 2]]], np.float32)
    figures = statistics(states)
    assert (figures.rows, figures.median_norm, figures.max_abs) == (3, (5.0, 2.0), (8.0, 9.0))


def test_figures_of_a_long_sample_are_of_evenly_spaced_rows() -> None:
    states = np.arange(130, dtype=np.float32).reshape(130, 1, 1)
    rows = [i * 130 // 64 for i in range(64)]
    figures = statistics(states)
    assert figures.rows == 64
    assert figures.max_abs == (float(rows[-1]),)
    assert figures.median_norm == ((rows[31] + rows[32]) / 2,)


@pytest.mark.parametrize("bits", [0x7FC0, 0x7F81, 0xFF80])
def test_values_that_are_not_finite_make_figures_not_warnings(bits: int) -> None:
    states = np.full((2, 1, 4), bits, np.uint16)
    assert not np.isfinite(statistics(states).max_abs[0])


def test_large_values_do_not_overflow() -> None:
    figures = statistics(np.full((1, 1, 4), 3e38, np.float32))
    assert figures.median_norm[0] == pytest.approx(6e38)
