import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hsstore.storage import codec

SIZE = 20_000
REAL = np.random.default_rng(0).standard_normal(SIZE // 2).astype(np.float16).tobytes()
FLAT = bytes(SIZE)


@pytest.mark.parametrize("raw", [REAL, FLAT, b"\1\2" * (SIZE // 2)])
@pytest.mark.parametrize("itemsize", [2, 4])
def test_a_chunk_round_trips(raw: bytes, itemsize: int) -> None:
    out = np.ones(SIZE, np.uint8)
    codec.decompress(codec.compress(raw, itemsize), out)
    assert out.tobytes() == raw


def test_compression_is_deterministic_and_pays() -> None:
    assert codec.compress(REAL, 2) == codec.compress(REAL, 2)
    assert len(codec.compress(FLAT, 2)) < SIZE // 50


@pytest.mark.parametrize("size", [0, SIZE - 1, SIZE + 1])
def test_another_size_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match="header"):
        codec.decompress(codec.compress(REAL, 2), np.empty(size, np.uint8))


STORED = codec.compress(REAL, 2)


@pytest.mark.parametrize(
    "changed",
    [STORED[:-1], STORED + b"\0", STORED[:15], b""],
    ids=["shorter", "longer", "header cut", "empty"],
)
def test_cut_and_longer_chunks_are_refused(changed: bytes) -> None:
    with pytest.raises(ValueError, match="header"):
        codec.decompress(changed, np.empty(SIZE, np.uint8))


def mutants(seed: int, count: int) -> None:
    """Decode damaged chunks; a crash ends the process."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    out = np.empty(SIZE, np.uint8)
    refused = 0
    for raw in (REAL, FLAT):
        good = codec.compress(raw, 2)
        for n in range(count):
            stored = bytearray(good)
            for _ in range(chance.randint(1, 6)):
                stored[chance.randrange(64 if n % 2 else len(good)) % len(good)] = chance.randrange(
                    256
                )
            if n % 3 == 0:
                stored[16:] = chance.randbytes(len(good) - 16)
            try:
                codec.decompress(stored, out)
            except ValueError:
                refused += 1
    if not refused > count:
        sys.exit("hardly anything was refused")


def test_crafted_chunks_crash_nothing() -> None:
    call = "import runpy, sys; runpy.run_path(sys.argv[1])['mutants'](7, 6000)"
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", call, __file__]
    subprocess.run(command, check=True, env=environment, timeout=60)


def test_stored_dtypes_are_little_endian() -> None:
    dtypes = {name: codec.stored_dtype(name).str for name in ("bfloat16", "float16", "float32")}
    assert dtypes == {"bfloat16": "<u2", "float16": "<f2", "float32": "<f4"}
