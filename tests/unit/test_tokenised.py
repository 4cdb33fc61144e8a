import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsstore.errors import MalformedInput
from hsstore.storage.tokenised import TokenisedSample, count_samples, read_samples

GOOD = b'{"input_ids": [1, 2]}\n'


def write(folder: Path, content: bytes) -> Path:
    path = folder / "data.jsonl"
    path.write_bytes(content)
    return path


def read(folder: Path, content: bytes, vocab_size: int | None = None) -> list[TokenisedSample]:
    return list(read_samples(write(folder, content), vocab_size=vocab_size))


def test_every_member_is_read(tmp_path: Path) -> None:
    line = b'{"id": "x", "input_ids": [5, 6, 7], "loss_mask": [0, true, 1], "text": "more"}'
    (sample,) = read(tmp_path, line)
    assert sample.key == "x"
    assert sample.input_ids.tolist() == [5, 6, 7]
    assert sample.loss_mask.tolist() == [0, 1, 1]
    assert [a.dtype.name for a in (sample.input_ids, sample.loss_mask)] == ["int32", "uint8"]


def test_defaults_are_the_sample_number_and_a_mask_of_ones(tmp_path: Path) -> None:
    lines = b'{"input_ids": [1]}\n{"id": 17, "input_ids": [2, 2]}\n{"input_ids": [3]}\n'
    samples = read(tmp_path, lines)
    assert [sample.key for sample in samples] == ["0", "17", "2"]
    assert [sample.loss_mask.tolist() for sample in samples] == [[1], [1, 1], [1]]


@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2**31 - 1), st.booleans()), min_size=1), min_size=1),
    st.booleans(),
)
def test_what_json_wrote_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[list[tuple[int, bool]]],
    newline: bool,  # noqa: FBT001 - drawn by Hypothesis
) -> None:
    lines = [
        json.dumps({"input_ids": [i for i, _ in sample], "loss_mask": [m for _, m in sample]})
        for sample in drawn
    ]
    path = write(tmp_path_factory.mktemp("drawn"), "\n".join(lines).encode() + b"\n" * newline)
    back = [
        list(zip(s.input_ids.tolist(), s.loss_mask.tolist(), strict=True))
        for s in read_samples(path)
    ]
    assert back == drawn
    key_bytes = [len(str(n)) for n in range(len(drawn))]
    assert count_samples(path) == ([len(sample) for sample in drawn], key_bytes)


def test_counting_tells_the_bytes_of_every_key(tmp_path: Path) -> None:
    lines = (
        '{"id": "\u00fc9", "input_ids": [1]}\n{"id": 1234, "input_ids": [1]}\n{"input_ids": [1]}\n'
    )
    path = write(tmp_path, lines.encode())
    assert count_samples(path)[1] == [len(s.key.encode()) for s in read_samples(path)] == [3, 4, 1]


SEEN_BY_BOTH = [
    (b"{", "not JSON"),
    (b'{"input_ids": [1], "id": "\xff"}', "not JSON"),
    (b'{"input_ids": [1], "id": "\\ud800"}', "not JSON"),
    (b"[1, 2]", "is a list, not an object"),
    (b"null", "is null, not an object"),
    (b"   ", "a blank line"),
    (b"{}", "input_ids is missing"),
    (b'{"input_ids": null}', "input_ids is null, not a list"),
    (b'{"input_ids": 7}', "input_ids is an integer, not a list"),
    (b'{"input_ids": []}', "an empty sample"),
    (b'{"input_ids": [1, 2], "loss_mask": [1]}', "loss_mask has 1 entries for 2 tokens"),
    (b'{"input_ids": [1], "loss_mask": 1}', "loss_mask is an integer, not a list"),
]
SEEN_BY_READING = [
    (b'{"input_ids": [1, true]}', r"input_ids\[1\] is a boolean"),
    (b'{"input_ids": [1.0]}', r"input_ids\[0\] is a float"),
    (b'{"input_ids": ["1"]}', r"input_ids\[0\] is a string"),
    (b'{"input_ids": [[1]]}', r"input_ids\[0\] is a list"),
    (b'{"input_ids": [3, -1]}', r"input_ids\[1\] is -1, outside what int32 holds"),
    (b'{"input_ids": [2147483648]}', r"is 2147483648, outside"),
    (b'{"input_ids": [9223372036854775808]}', "is 9223372036854775808, outside"),
    (b'{"input_ids": [99999999999999999999]}', "is a float"),
    (b'{"input_ids": [1], "loss_mask": [2]}', r"loss_mask\[0\] is 2, not 0 or 1"),
    (b'{"input_ids": [1], "loss_mask": [1.0]}', r"loss_mask\[0\] is 1.0, not 0 or 1"),
    (b'{"input_ids": [1], "loss_mask": [null]}', r"loss_mask\[0\] is None, not 0 or 1"),
    (b'{"input_ids": [1, 2], "attention_mask": [1, 0]}', "a padded sample"),
    (b'{"input_ids": [1, 2], "attention_mask": [1]}', "attention_mask has 1 entries"),
    (b'{"input_ids": [1], "id": 1.5}', "id is a float"),
    (b'{"input_ids": [1], "id": true}', "id is a boolean"),
    (b'{"input_ids": [1], "id": null}', "id is null"),
    (b'{"input_ids": [1], "id": ""}', "id has 0 bytes"),
    (b'{"input_ids": [1], "id": "' + b"k" * 4097 + b'"}', "id has 4097 bytes"),
    (b'{"input_ids": [1], "id": 0}', "id '0' is taken by line 1"),
]


@pytest.mark.parametrize(("line", "words"), SEEN_BY_BOTH + SEEN_BY_READING)
def test_a_bad_line_is_refused_with_its_place(tmp_path: Path, line: bytes, words: str) -> None:
    with pytest.raises(MalformedInput, match=words) as refused:
        read(tmp_path, GOOD + line + b"\n" + GOOD)
    assert refused.value.place == f"{tmp_path / 'data.jsonl'}:2"
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(("line", "words"), SEEN_BY_BOTH)
def test_counting_refuses_what_it_sees(tmp_path: Path, line: bytes, words: str) -> None:
    with pytest.raises(MalformedInput, match=words) as refused:
        count_samples(write(tmp_path, GOOD + line + b"\n" + GOOD))
    assert refused.value.place == f"{tmp_path / 'data.jsonl'}:2"


def test_an_attention_mask_of_ones_is_no_padding(tmp_path: Path) -> None:
    assert len(read(tmp_path, b'{"input_ids": [1, 2], "attention_mask": [1, true]}')) == 1


def test_ids_are_held_against_the_vocabulary(tmp_path: Path) -> None:
    assert len(read(tmp_path, b'{"input_ids": [9]}', vocab_size=10)) == 1
    with pytest.raises(MalformedInput, match=r"is 10, outside the model's vocabulary \(0 to 9\)"):
        read(tmp_path, b'{"input_ids": [9, 10]}', vocab_size=10)


@pytest.mark.parametrize(
    "lines",
    [
        b'{"id": "a", "input_ids": [1]}\n{"input_ids": [1]}\n{"id": "a", "input_ids": [1]}',
        b'{"id": 2, "input_ids": [1]}\n{"input_ids": [1]}\n{"input_ids": [1]}',
    ],
)
def test_a_repeated_id_names_both_lines(tmp_path: Path, lines: bytes) -> None:
    with pytest.raises(MalformedInput, match=r"data.jsonl:3: id .* is taken by line 1"):
        read(tmp_path, lines)


@pytest.mark.parametrize("content", [b"", b"\n", GOOD + b"\n", b"\n" + GOOD])
def test_no_samples_and_blank_lines_are_refused(tmp_path: Path, content: bytes) -> None:
    path = write(tmp_path, content)
    for reading in (lambda: list(read_samples(path)), lambda: count_samples(path)):
        with pytest.raises(MalformedInput, match=r"the dataset is empty|a blank line"):
            reading()


def test_a_trailing_newline_and_carriage_returns_are_fine(tmp_path: Path) -> None:
    assert len(read(tmp_path, GOOD * 2)) == 2
    assert len(read(tmp_path, GOOD.replace(b"\n", b"\r\n") + GOOD.strip())) == 2


def test_what_cannot_be_read_twice_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path(os.devnull)):
        with pytest.raises(MalformedInput, match="not a regular file"):
            count_samples(path)
    for path in (tmp_path / "none", write(tmp_path, GOOD) / "below"):
        with pytest.raises(MalformedInput, match="no such dataset"):
            count_samples(path)
