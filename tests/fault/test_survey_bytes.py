"""One sample file, byte by byte: what is not found is harmless, or what no file proves."""

from pathlib import Path
from typing import Any

import pytest

from hsstore.interop.foreign import Broken, ForeignFile
from hsstore.interop.surveying.look import look_at, opened_container
from hsstore.testing import loose_files

CONTAINERS = {
    "x.pt": loose_files.as_zip,
    "x.pt.gz": loose_files.as_gzip,
    "old.pt": loose_files.as_legacy,
    "x.safetensors": loose_files.as_safetensors,
}
# Of a zip most bytes are padding; each kind of byte is met by every step that is a prime.
STEP = 13


@pytest.fixture(params=CONTAINERS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def small_item() -> dict[str, Any]:
    item = loose_files.specforge_item(0)
    return {k: (v[:5] if v.ndim == 1 else v[:, :5, :8]).clone() for k, v in item.items()}


def saved(folder: Path, name: str) -> bytes:
    CONTAINERS[name](small_item(), folder / name)
    return (folder / name).read_bytes()


def held(folder: Path, name: str) -> object:
    """All that a reader gets from the file."""
    try:
        with opened_container(ForeignFile(folder, name, None)) as container:
            return {
                key: (header, container.array(key).tobytes())
                for key, header in container.tensors.items()
            }
    except Broken as broken:
        return str(broken.fault)


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :]


def sweep_bits(folder: Path, name: str, step: int) -> dict[str, int]:
    """Flip a bit of every ``step``-th byte; how many were found, harmless, beyond proof."""
    raw = saved(folder, name)
    whole, counts = held(folder, name), dict.fromkeys(("found", "harmless", "unverifiable"), 0)
    for at in range(0, len(raw), step):
        (folder / name).write_bytes(flipped(raw, at))
        look = look_at(folder, name, "checksums")
        if look.faults:
            counts["found"] += 1
        elif held(folder, name) == whole:
            counts["harmless"] += 1
        else:
            assert look.proof == "none", f"byte {at} changed what is read, and nothing told"
            counts["unverifiable"] += 1
    print(f"{name}: {counts}, 0 missed")  # noqa: T201 - for the log of CI
    return counts


def test_a_flipped_bit_is_found_or_harmless_or_beyond_proof(tmp_path: Path, name: str) -> None:
    counts = sweep_bits(tmp_path, name, STEP)
    assert counts["found"]
    assert bool(counts["unverifiable"]) == (name in {"old.pt", "x.safetensors"})


@pytest.mark.sweep
def test_each_flipped_bit_is_found_or_harmless_or_beyond_proof(tmp_path: Path, name: str) -> None:
    sweep_bits(tmp_path, name, 1)


def test_a_file_that_is_cut_anywhere_is_found_at_once(tmp_path: Path, name: str) -> None:
    raw = saved(tmp_path, name)
    for length in {*range(0, len(raw), STEP), len(raw) - 1}:
        (tmp_path / name).write_bytes(raw[:length])
        assert look_at(tmp_path, name, "quick").faults, f"{length} of {len(raw)} bytes"


@pytest.mark.parametrize("tail", [b"\0", b"\0" * 4096, b"\0" * 100_000, b"x", None])
def test_what_follows_behind_the_end_is_found(
    tmp_path: Path, name: str, tail: bytes | None
) -> None:
    raw = saved(tmp_path, name)
    (tmp_path / name).write_bytes(raw + (raw if tail is None else tail))
    assert look_at(tmp_path, name, "quick").faults


def test_zips_without_checksums_are_beyond_proof_and_no_damage(tmp_path: Path) -> None:
    import torch  # noqa: PLC0415 - as the others of this folder

    torch.serialization.set_crc32_options(False)
    try:
        saved(tmp_path, "x.pt")
    finally:
        torch.serialization.set_crc32_options(True)
    look = look_at(tmp_path, "x.pt", "content")
    assert look.faults == ()
    assert look.proof == "none"
    assert look.tokens == 5
