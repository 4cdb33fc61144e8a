import io
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsstore.errors import InvalidDocument
from hsstore.storage.token_file import MEMBERS, ShardTokens, decode, encode, token_digest


def shard(*samples: tuple[str, list[int]], first_sample: int = 0) -> ShardTokens:
    ids = [token for _, tokens in samples for token in tokens]
    return ShardTokens(
        first_sample,
        tuple(key for key, _ in samples),
        np.array([len(tokens) for _, tokens in samples], np.int32),
        np.array(ids, np.int32),
        np.array([token % 2 for token in ids], np.uint8),
    )


SMALL = shard(("a", [1, 2, 3]), ("bß", [4]), first_sample=7)

samples = st.lists(
    st.tuples(
        st.text(st.characters(codec="utf-8"), min_size=1, max_size=9),
        st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=40),
    ),
    min_size=1,
    max_size=8,
)


@given(samples, st.integers(0, 2**40))
def test_decoding_gives_back_what_was_encoded(
    drawn: list[tuple[str, list[int]]], first_sample: int
) -> None:
    back = decode(encode(shard(*drawn, first_sample=first_sample)))
    assert back.first_sample == first_sample
    assert [(key, ids.tolist()) for key, ids, _ in back.samples()] == drawn
    assert all((mask == ids % 2).all() for _, ids, mask in back.samples())


@given(st.data())
def test_one_changed_byte_is_noticed(data: st.DataObject) -> None:
    raw = bytearray(encode(SMALL))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(InvalidDocument):
        decode(bytes(raw))


@given(st.binary(max_size=200))
def test_other_bytes_are_no_token_file(raw: bytes) -> None:
    with pytest.raises(InvalidDocument, match="here: not a token file"):
        decode(raw, "here")


@pytest.mark.parametrize("kept", [0, 10, 500, -1])
def test_a_torn_file_is_refused(kept: int) -> None:
    with pytest.raises(InvalidDocument):
        decode(encode(SMALL)[:kept])


def test_bytes_appended_are_refused() -> None:
    with pytest.raises(InvalidDocument):
        decode(encode(SMALL) + b"\0")


def test_equal_tokens_make_equal_bytes_dated_1980() -> None:
    raw = encode(SMALL)
    assert raw == encode(decode(raw))
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        assert [i.filename for i in archive.infolist()] == [f"{name}.npy" for name in MEMBERS]
        assert {i.date_time for i in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_numpy_opens_it_without_pickle() -> None:
    with np.load(io.BytesIO(encode(SMALL)), allow_pickle=False) as archive:
        assert archive["first_sample"].tolist() == [7]
        assert archive["sample_length"].tolist() == [3, 1]
        assert archive["key_end"].tolist() == [1, 4]
        assert archive["key_utf8"].tobytes() == "abß".encode()
        assert archive["input_ids"].tolist() == [1, 2, 3, 4]
        assert archive["loss_mask"].dtype == np.uint8


def _archive(members: dict[str, object], compression: int = zipfile.ZIP_STORED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, values in members.items():
            stream = io.BytesIO()
            np.lib.format.write_array(stream, np.asarray(values))
            archive.writestr(f"{name}.npy", stream.getvalue())
    return buffer.getvalue()


def _members() -> dict[str, object]:
    with np.load(io.BytesIO(encode(SMALL))) as archive:
        return dict(archive)


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("sample_length", np.array([3, 2], "<i4"), "do not add up"),
        ("sample_length", np.array([4, 0], "<i4"), "do not add up"),
        ("loss_mask", np.array([1, 1, 1, 2], "u1"), "other than 0 and 1"),
        ("key_end", np.array([3, 1], "<i8"), "out of order"),
        ("key_end", np.array([4], "<i8"), "another number of keys"),
        ("key_utf8", np.array([97, 98, 255, 255], "u1"), "utf-8"),
        ("input_ids", np.array([1, 2, 3, 4], "<i8"), "<i8, not <i4"),
        ("first_sample", np.array([1, 2], "<i8"), "too many values"),
        ("input_ids", np.array([[1, 2], [3, 4]], "<i4"), "header says"),
        ("input_ids", np.array([1, 2, 3, 4], ">i4"), ">i4, not <i4"),
    ],
)
def test_members_that_do_not_fit_are_refused(name: str, values: object, words: str) -> None:
    with pytest.raises(InvalidDocument, match=words):
        decode(_archive(_members() | {name: values}))


def test_a_missing_member_is_refused() -> None:
    members = _members()
    del members["loss_mask"]
    with pytest.raises(InvalidDocument, match="other members"):
        decode(_archive(members))


def test_a_compressed_archive_is_refused() -> None:
    with pytest.raises(InvalidDocument, match="compressed"):
        decode(_archive(_members(), compression=zipfile.ZIP_DEFLATED))


def test_an_archive_by_numpy_is_not_the_canonical_form() -> None:
    with pytest.raises(InvalidDocument, match="canonical"):
        decode(_archive(_members()))


def test_the_token_digest_is_over_little_endian_int32() -> None:
    ids = np.array([1, 256, 65536], np.int32)
    assert token_digest(ids) == token_digest(ids.astype(">i4"))
    assert token_digest(ids).hex() == token_digest(np.repeat(ids, 2)[::2]).hex()
    assert token_digest(ids) != token_digest(ids[::-1])
