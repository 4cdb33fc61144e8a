"""Descriptions of tensors that were made to trip whoever reads them: refused, and at once."""

import io
import struct

import pytest
import torch

from hsstore.interop.foreign import Broken
from hsstore.interop.surveying.legacy import LegacyTorchFile
from hsstore.interop.torch_file import TorchFile
from hsstore.interop.torch_pickle import NotPlain, described

START = b"\x80\x02"
V2, V3 = (b"ctorch._utils\n_rebuild_tensor_v%d\n" % number for number in (2, 3))
SIZE = b"ctorch\nSize\n"
# A pair of pairs of pairs ..: 60 instructions, 2**60 leaves.
DOUBLED = b"K\x01" + b"q\x00h\x00\x86" * 60
NESTED = b")" + b"\x85" * 100_000
ONES = b"](" + b"K\x01" * 10_000 + b"eq\x00"


def text(word: str) -> bytes:
    return b"X" + struct.pack("<I", len(word)) + word.encode()


def storage(holder: bytes = b"ctorch\nFloatStorage\n", values: int = 4, more: bytes = b"") -> bytes:
    size = b"J" + struct.pack("<i", values)
    return b"(" + text("storage") + holder + text("0") + text("cpu") + size + more + b"tQ"


REFUSED = {
    "a tensor of no storage": V2 + b"(NK\x00))\x89NtR",
    "a storage of nested tuples": storage(NESTED),
    "a storage of doubled tuples": storage(DOUBLED),
    "a storage of many members": storage(more=b"N" * 10_000),
    "a dtype of nested tuples": V3 + b"(" + storage() + b"K\x00))\x89N" + NESTED + b"tR",
    "a dtype of doubled tuples": V3 + b"(" + storage() + b"K\x00))\x89N" + DOUBLED + b"tR",
    "a dtype that its storage is too short for": (
        V3 + b"(" + storage(b"ctorch\nUntypedStorage\n", 3) + b"K\x00K\x01\x85K\x01\x85\x89N"
        b"ctorch\nuint16\ntR"
    ),
    "a name with half a character": b"}X\x03\x00\x00\x00\xed\xa0\x80K\x01s",
    "a step beyond any array": (
        V2 + b"(" + storage() + b"K\x00K\x01\x85\x8a\x08" + struct.pack("<q", 2**60)
        + b"\x85\x89NtR"
    ),
    "a size of many numbers": ONES + SIZE + b"h\x00\x85R",
    "no values, of more rows than an array has": (
        V2 + b"(" + storage() + b"K\x00\x8a\x08" + struct.pack("<q", 2**61) + b"K\x00\x86"
        b"K\x01K\x01\x86\x89NtR"
    ),
}  # fmt: skip


@pytest.mark.parametrize("pickled", REFUSED.values(), ids=REFUSED)
def test_what_describes_no_tensor_is_refused(pickled: bytes) -> None:
    with pytest.raises(NotPlain):
        described(START + pickled + b".")


def test_values_that_torch_negates_as_it_reads_them_are_refused() -> None:
    turned = torch.tensor([1 + 2j]).conj().imag
    assert turned.is_neg()
    saved = io.BytesIO()
    torch.save({"states": turned}, saved)
    saved.seek(0)
    with pytest.raises(Broken) as caught:
        TorchFile(saved)
    assert caught.value.fault.kind == "pickle"


@pytest.mark.parametrize("value", [b"a\xff", {1, "a"}, torch.device("cpu")])
def test_plain_values_beside_tensors_are_no_fault(value: object) -> None:
    saved = io.BytesIO()
    torch.save({"states": torch.ones(2), "more": value}, saved)
    saved.seek(0)
    assert TorchFile(saved).array("states").tolist() == [1, 1]


def test_an_older_file_whose_storage_tells_another_length_is_broken() -> None:
    saved = io.BytesIO()
    torch.save({"a": torch.ones(300)}, saved, _use_new_zipfile_serialization=False)
    whole = bytearray(saved.getvalue())
    assert LegacyTorchFile(io.BytesIO(whole)).array("a").tolist() == [1] * 300
    at = len(whole) - 300 * 4 - 8
    assert whole[at : at + 8] == (300).to_bytes(8, "little")
    whole[at : at + 8] = bytes(8)
    with pytest.raises(Broken) as caught:
        LegacyTorchFile(io.BytesIO(whole))
    assert caught.value.fault.kind == "no-container"


def test_the_keys_of_an_older_file_are_names() -> None:
    saved = io.BytesIO()
    torch.save({"a": torch.ones(3)}, saved, _use_new_zipfile_serialization=False)
    whole = saved.getvalue()
    begin = whole.rindex(START + b"]")
    doubled = whole[:begin] + START + b"]" + DOUBLED + b"a." + whole[-3 * 4 - 8 :]
    with pytest.raises(Broken):
        LegacyTorchFile(io.BytesIO(doubled))


def test_strides_that_multiply_to_more_than_any_array_has_are_no_fault() -> None:
    # As of a model's layers, stacked: [5, 1, 8192, 4096] has 2**62.
    stacked = torch.arange(4.0).as_strided((1, 1, 1, 4), (2**25, 2**25, 2**12, 1))
    saved = io.BytesIO()
    torch.save({"states": stacked}, saved)
    found = TorchFile(saved).array("states")
    assert found.tolist() == [[[[0.0, 1.0, 2.0, 3.0]]]]
