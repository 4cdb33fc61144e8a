"""Files of torch.save, read without torch: bit for bit, or named broken."""

import gzip
import io
import os
import pickle
import random
import struct
import zipfile
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hsstore.interop.foreign import Broken, ForeignFile
from hsstore.interop.torch_file import open_torch
from hsstore.testing.foreign_trees import save

BASE = torch.arange(120, dtype=torch.float32).reshape(20, 6).bfloat16()
RECORD: dict[str, Any] = {
    "ids": torch.arange(5),
    "states": BASE[None],
    "view": BASE[3:9],
    "turned": BASE.T,
    "half": torch.randn(3).half(),
    "flags": torch.tensor([True, False]),
    "empty": torch.empty(0, 4),
    "scalar": torch.tensor(3.5),
    "eight": torch.randn(4).to(torch.float8_e4m3fn),
    "parameter": torch.nn.Parameter(torch.ones(3)),
    "name": "talk-1",
    "list": [1, 2.5, None, {"a": (True, False)}],
    "ordered": OrderedDict(z=1),
}


def read(path: Path) -> dict[str, bytes]:
    with open_torch(ForeignFile(path.parent, path.name, None)) as opened:
        found = {name: opened.array(name).tobytes() for name in opened.tensors}
        opened.prove()
    return found


def fault(path: Path) -> str:
    with pytest.raises(Broken) as caught:
        read(path)
    return caught.value.fault.kind


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("name", ["a.ckpt", "a.ckpt.gz"])
def test_every_tensor_is_read_bit_for_bit(tmp_path: Path, name: str) -> None:
    path = save(RECORD, tmp_path / name)
    tensors = {name: one for name, one in RECORD.items() if isinstance(one, torch.Tensor)}
    assert read(path) == {name: bits(tensor) for name, tensor in tensors.items()}
    with open_torch(ForeignFile(tmp_path, name, None)) as opened:
        assert {n: header.shape for n, header in opened.tensors.items()} == {
            n: tuple(tensor.shape) for n, tensor in tensors.items()
        }


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_any_protocol_of_pickle(tmp_path: Path, protocol: int) -> None:
    torch.save({"a": BASE}, tmp_path / "a", pickle_protocol=protocol)
    assert read(tmp_path / "a") == {"a": bits(BASE)}


def test_every_truncation_is_named(tmp_path: Path) -> None:
    whole = save(RECORD, tmp_path / "a").read_bytes()
    cut = tmp_path / "cut"
    for size in (1, 3, 100, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        assert fault(cut) in ("truncated", "no-container")
    cut.write_bytes(whole[:100])
    assert fault(cut) == "truncated"
    cut.write_bytes(b"")
    assert fault(cut) == "empty"
    cut.write_bytes(bytes(len(whole)))
    assert fault(cut) == "no-container"


def test_a_zeroed_tail_and_a_zeroed_middle_are_named(tmp_path: Path) -> None:
    whole = bytearray(save({"a": torch.randn(1000)}, tmp_path / "a").read_bytes())
    (tmp_path / "tail").write_bytes(whole[:2000] + bytes(len(whole) - 2000))
    assert fault(tmp_path / "tail") == "truncated"
    whole[2000:2400] = bytes(400)
    (tmp_path / "middle").write_bytes(whole)
    assert fault(tmp_path / "middle") == "crc"


def test_no_flipped_bit_gives_other_values(tmp_path: Path) -> None:
    """Each flip is named, or hits padding and changes nothing."""
    record = {"ids": torch.arange(9), "a": BASE}
    whole = save(record, tmp_path / "a").read_bytes()
    right = read(tmp_path / "a")
    chance, named = random.Random(0), 0  # noqa: S311 - no secret
    for _ in range(400):
        at = chance.randrange(len(whole) * 8)
        flipped = bytearray(whole)
        flipped[at // 8] ^= 1 << at % 8
        (tmp_path / "b").write_bytes(flipped)
        try:
            assert read(tmp_path / "b") == right
        except Broken:
            named += 1
    assert named > 100


def test_every_bit_of_gzip_values_counts(tmp_path: Path) -> None:
    whole = save({"a": torch.randn(100)}, tmp_path / "a.gz").read_bytes()
    damaged = tmp_path / "b.gz"
    for at in range(len(whole) // 2, len(whole), 7):
        damaged.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert fault(damaged) in ("crc", "truncated", "no-container")
    damaged.write_bytes(whole[:-1])
    assert fault(damaged) == "truncated"
    damaged.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    assert fault(damaged) == "crc"


class _Evil:
    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[object, ...]:
        return os.mkdir, (self.path,)  # the function is never called: that is the test


class _Custom:
    def __init__(self) -> None:
        self.x = 1


@pytest.mark.parametrize(
    "made",
    [lambda p: _Evil(p / "evil"), lambda _: _Custom(), lambda _: torch.nn.Linear(1, 1)],
    ids=["call", "object", "module"],
)
def test_what_only_a_running_pickle_could_give_is_refused(
    tmp_path: Path, made: Callable[[Path], object]
) -> None:
    path = save({"a": BASE, "b": made(tmp_path)}, tmp_path / "a")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    assert fault(path) == "pickle"
    assert not (tmp_path / "evil").exists()


def test_what_was_not_saved_as_a_dict_has_no_keys(tmp_path: Path) -> None:
    assert fault(save([BASE], tmp_path / "a")) == "keys"
    assert fault(save({1: BASE}, tmp_path / "b")) == "keys"


def test_the_old_format_of_torch_is_no_container(tmp_path: Path) -> None:
    torch.save({"a": BASE}, tmp_path / "a", _use_new_zipfile_serialization=False)
    assert fault(tmp_path / "a") == "no-container"


def test_a_zip_of_something_else_is_no_container(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        archive.writestr("x/y", b"1")
    assert fault(tmp_path / "a") == "no-container"


@pytest.mark.parametrize("name", ["a.ckpt", "a.ckpt.gz"])
@pytest.mark.parametrize("tail", [b"\0", b"x" * 5000])
def test_what_follows_behind_the_zip_is_no_part_of_it(
    tmp_path: Path, name: str, tail: bytes
) -> None:
    path = save(RECORD, tmp_path / "plain")
    longer = path.read_bytes() + tail
    (tmp_path / name).write_bytes(gzip.compress(longer, 1) if name.endswith(".gz") else longer)
    assert fault(tmp_path / name) == "no-container"


def test_compressed_records_are_never_expanded(tmp_path: Path) -> None:
    """A zip bomb: torch.save stores, so what is compressed is none of its files."""
    save({"a": torch.zeros(1 << 20)}, tmp_path / "a")
    with (
        zipfile.ZipFile(tmp_path / "a") as whole,
        zipfile.ZipFile(tmp_path / "bomb", "w", zipfile.ZIP_DEFLATED) as bomb,
    ):
        for record in whole.infolist():
            bomb.writestr(record.filename, whole.read(record))
    assert (tmp_path / "bomb").stat().st_size < 1 << 15
    assert fault(tmp_path / "bomb") == "no-container"


def test_a_gzip_bomb_stops_at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hsstore.interop.file_bytes.SMALLEST_LIMIT_BYTES", 1 << 20)
    monkeypatch.setattr("hsstore.interop.file_bytes.PIECE_BYTES", 1 << 16)
    with gzip.open(tmp_path / "a.gz", "wb") as packed:
        for _ in range(64):
            packed.write(bytes(1 << 20))
    with pytest.raises(Broken, match="expands to more than"):
        read(tmp_path / "a.gz")


def test_sizes_that_the_file_only_claims_are_not_believed(tmp_path: Path) -> None:
    """torch.load would hand out what lies behind the record in memory."""
    whole = bytearray(save({"a": torch.arange(5)}, tmp_path / "a").read_bytes())
    at = whole.index(b"ctorch\nLongStorage")
    # BININT1 5 (values of the storage) and the shape become 200.
    claimed = whole[:at] + whole[at : at + 80].replace(b"K\x05", b"K\xc8") + whole[at + 80 :]
    assert claimed != whole
    _mend_crc(claimed, "data.pkl")
    (tmp_path / "b").write_bytes(claimed)
    assert fault(tmp_path / "b") == "truncated"


def test_a_tensor_may_not_repeat_its_storage(tmp_path: Path) -> None:
    assert fault(save({"a": torch.ones(1).expand(1 << 40)}, tmp_path / "a")) == "shape"


def test_links_and_folders_are_unreadable(tmp_path: Path) -> None:
    path = save({"a": BASE}, tmp_path / "a")
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "folder", "pipe", "absent"):
        assert fault(tmp_path / name) == "unreadable"


def test_nested_tuples_as_keys_are_refused_at_once(tmp_path: Path) -> None:
    """Hashing 60 doublings would take longer than the universe lasts."""
    body = b"\x80\x02}q\x00()" + b"".join(
        b"q" + bytes([n]) + b"h" + bytes([n]) + b"\x86" for n in range(1, 60)
    )
    (tmp_path / "a").write_bytes(_torch_zip(body + b"K\x01u."))
    assert fault(tmp_path / "a") == "pickle"


def _torch_zip(pickled: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("a/data.pkl", pickled)
        archive.writestr("a/byteorder", b"little")
    return stream.getvalue()


def _mend_crc(whole: bytearray, name: str) -> None:
    """Make the CRCs of a record right again, in its header and in the directory."""
    with zipfile.ZipFile(io.BytesIO(bytes(whole))) as archive:
        (record,) = (r for r in archive.infolist() if r.filename.endswith(name))
        start_of_directory = archive.start_dir
    begin = record.header_offset
    extra = sum(struct.unpack_from("<HH", whole, begin + 26))
    data = whole[begin + 30 + extra : begin + 30 + extra + record.file_size]
    at = whole.index(record.filename.encode(), start_of_directory) - 46
    struct.pack_into("<I", whole, at + 16, zlib.crc32(data))
