"""Files of safetensors: bit for bit, or named broken as far as a header can prove it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hsstore.interop.foreign import Broken, ForeignFile, TensorHeader
from hsstore.interop.safetensors_file import open_safetensors

save_file = pytest.importorskip("safetensors.torch", reason="the extra interop").save_file

TENSORS = {
    "states": torch.randn(3, 2, 4).bfloat16(),
    "ids": torch.arange(3),
    "eight": torch.randn(3).to(torch.float8_e4m3fn),
    "scalar": torch.tensor(2.5),
    "none": torch.empty(0, 4),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_file(TENSORS, tmp_path / "a.safetensors", metadata={"made": "here"})
    return tmp_path / "a.safetensors"


def read(path: Path) -> dict[str, bytes]:
    with open_safetensors(ForeignFile(path.parent, path.name, None)) as opened:
        return {name: opened.array(name).tobytes() for name in opened.tensors}


def fault(path: Path, content: bytes) -> str:
    path.write_bytes(content)
    with pytest.raises(Broken) as caught:
        read(path)
    return caught.value.fault.kind


def test_every_tensor_is_read_bit_for_bit(path: Path) -> None:
    expected = {
        name: tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
        for name, tensor in TENSORS.items()
    }
    assert read(path) == expected
    with open_safetensors(ForeignFile(path.parent, path.name, None)) as opened:
        assert opened.tensors["states"] == TensorHeader("bfloat16", (3, 2, 4))
        assert not opened.verifiable


def test_every_truncation_is_named(path: Path) -> None:
    whole = path.read_bytes()
    assert fault(path, b"") == "empty"
    for size in (1, 7, 20, len(whole) // 2, len(whole) - 1):
        assert fault(path, whole[:size]) == "truncated"
    assert fault(path, whole + b"\0") == "no-container"
    assert fault(path, bytes(len(whole))) == "no-container"


Entry = dict[str, object]


CHANGES: dict[str, tuple[Callable[[dict[str, Entry]], object], str]] = {
    "huge shape": (lambda h: h["ids"].update(shape=[2**61]), "no-container"),
    "negative shape": (lambda h: h["ids"].update(shape=[-3]), "no-container"),
    "huge extent": (lambda h: h["ids"].update(data_offsets=[0, 2**62]), "no-container"),
    "overlap": (
        lambda h: h["ids"].update(data_offsets=h["states"]["data_offsets"]),
        "no-container",
    ),
    "dtype": (lambda h: h["ids"].update(dtype="I128"), "dtype"),
    "no entry": (lambda h: h.update(ids=[1]), "no-container"),  # type: ignore[call-overload]
    "hole": (lambda h: h.pop("ids"), "no-container"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_no_extent_is_believed(path: Path, what: str) -> None:
    change, kind = CHANGES[what]
    whole = path.read_bytes()
    length = int.from_bytes(whole[:8], "little")
    header = json.loads(whole[8 : 8 + length])
    change(header)
    told = json.dumps(header).encode()
    content = len(told).to_bytes(8, "little") + told + whole[8 + length :]
    assert fault(path, content) == kind


def test_a_header_longer_than_any_is_not_read(path: Path) -> None:
    assert fault(path, (2**63).to_bytes(8, "little") + bytes(100)) == "no-container"
    assert fault(path, (50).to_bytes(8, "little") + b"{" * 50) == "no-container"


@pytest.mark.parametrize("shape", [[0] * 100, [2**61, 0], [2**40, 2**40, 0]])
def test_a_shape_that_no_array_has_is_none(path: Path, shape: list[int]) -> None:
    told = {"none": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}
    header = json.dumps(told).encode()
    assert fault(path, len(header).to_bytes(8, "little") + header) == "no-container"
