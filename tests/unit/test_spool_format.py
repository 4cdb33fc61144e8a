import struct

import pytest

from hsstore.capture.spool_format import (
    ERROR,
    HEADER,
    HELLO,
    RID,
    STATES,
    Segment,
    TornSegment,
    decode_header,
    encode_header,
    rid,
)

REQUEST = rid("0123456789abcdef", 7)
BOOT = "00112233445566778899aabbccddeeff"
SEGMENT = Segment(STATES, 1, 4, 7168, 256, 128, 7340032, BOOT, 0xFEDCBA9876543210)


def test_a_header_comes_back_as_it_was() -> None:
    assert decode_header(encode_header(SEGMENT, REQUEST), REQUEST) == SEGMENT


def test_the_layout_is_what_the_docstring_says() -> None:
    raw = encode_header(SEGMENT, REQUEST)
    assert len(raw) == HEADER.size
    assert raw[:8] == b"HSSPOOL\x01"
    assert struct.unpack_from("<HHIIQIQ", raw, 8) == (1, 1, 4, 7168, 256, 128, 7340032)
    assert raw[40:56] == bytes.fromhex(BOOT)


@pytest.mark.parametrize("at", range(HEADER.size))
def test_one_flipped_bit_anywhere_is_noticed(at: int) -> None:
    raw = bytearray(encode_header(SEGMENT, REQUEST))
    raw[at] ^= 1
    with pytest.raises(TornSegment):
        decode_header(bytes(raw), REQUEST)


@pytest.mark.parametrize("size", [0, 1, HEADER.size - 1, HEADER.size + 1])
def test_a_header_of_another_size_is_torn(size: int) -> None:
    raw = (encode_header(SEGMENT, REQUEST) * 2)[:size]
    with pytest.raises(TornSegment, match=f"{size} bytes"):
        decode_header(raw, REQUEST)


def test_a_segment_of_another_request_is_refused() -> None:
    raw = encode_header(Segment(ERROR, 0, 0, 0, 0, 0, 3, BOOT, 1), REQUEST)
    with pytest.raises(TornSegment, match="another request"):
        decode_header(raw, rid("0123456789abcdef", 8))


@pytest.mark.parametrize(
    "name",
    [
        "../../x", "hsstore-", "hsstore-0123456789abcdef-0000000", f"{REQUEST}0",
        "hsstore-0123456789ABCDEF-00000007",
        f"{REQUEST}\n", f"{REQUEST}/x", f" {REQUEST}", "hello.json", "",
    ],
)  # fmt: skip
def test_other_names_are_no_request_ids(name: str) -> None:
    assert RID.fullmatch(name) is None
    assert RID.fullmatch(REQUEST)


def test_hello_names_tell_boot_and_rank() -> None:
    found = HELLO.fullmatch(f"hello.{BOOT}.3.json")
    assert found
    assert found.groups() == (BOOT, "3")
    assert HELLO.fullmatch(f".hello.{BOOT}.3.json") is None
