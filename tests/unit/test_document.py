import json

import pytest

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.model.document import (
    FORMAT,
    Document,
    array,
    canonical,
    hexadecimal,
    integer,
    mapping,
    one_of,
    optional,
    record,
    seal,
    text,
    unseal,
    validate,
)

DOCUMENT: Document = {"format": FORMAT, "kind": "note", "b": [1, 2], "a": {"ä": "ß\n"}}


def test_a_sealed_document_is_canonical() -> None:
    raw = seal(DOCUMENT)
    assert raw.startswith(
        b'{"a":{"\xc3\xa4":"\xc3\x9f\\n"},"b":[1,2],"format":1,"kind":"note","seal":"'
    )
    assert raw.endswith(b'"}\n')
    assert raw == seal(dict(reversed(DOCUMENT.items())))


def test_unsealing_gives_back_the_document() -> None:
    document = unseal(seal(DOCUMENT), "note")
    assert {k: v for k, v in document.items() if k != "seal"} == DOCUMENT


@pytest.mark.parametrize("value", [1.0, float("nan"), float("inf"), [0.5], {"x": 1e300}])
def test_floats_are_refused_in_writing(value: object) -> None:
    with pytest.raises(ValueError, match="floats"):
        canonical({"x": value})


@pytest.mark.parametrize("number", ["1.0", "1e3", "NaN", "Infinity"])
def test_floats_are_refused_in_reading(number: str) -> None:
    with pytest.raises(InvalidDocument, match="floats"):
        unseal(f'{{"x":{number}}}\n'.encode(), "note")


def test_a_member_that_looks_like_the_seal_is_refused() -> None:
    with pytest.raises(ValueError, match="looks like its seal"):
        seal({**DOCUMENT, "a": {"seal": "0" * 32}})


def test_another_seal_inside_is_no_trouble() -> None:
    inner = {**DOCUMENT, "a": {"seal": "1" * 32}}
    assert unseal(seal(inner), "note")["a"] == {"seal": "1" * 32}


@pytest.mark.parametrize(
    "raw",
    [b"", b"\0" * 200, b"[]\n", b"null", b"{", b'{"format":1}\n', b"\xff\xfe{}", b"[" * 100_000,
     b'{"seal":1}', b"9" * 5000],
)  # fmt: skip
def test_what_is_no_document_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidDocument, match="here: "):
        unseal(raw, "note", place="here")


def test_a_torn_document_is_refused() -> None:
    raw = seal(DOCUMENT)
    for end in range(len(raw)):
        with pytest.raises(InvalidDocument):
            unseal(raw[:end], "note")


def test_a_newer_format_is_named() -> None:
    with pytest.raises(UnsupportedFormat, match=r"format 2 is newer than format 1.*upgrade"):
        unseal(seal({**DOCUMENT, "format": 2}), "note")


@pytest.mark.parametrize("changed", [{"kind": "other"}, {"format": 0}, {"format": "1"}])
def test_another_kind_or_format_is_refused(changed: Document) -> None:
    with pytest.raises(InvalidDocument, match="expected a format 1 note document"):
        unseal(seal({**DOCUMENT, **changed}), "note")


def test_one_of_several_kinds_will_do() -> None:
    assert unseal(seal(DOCUMENT), "other", "note")["kind"] == "note"


FIELDS = {
    "n": integer(1),
    "name": text(),
    "digest": hexadecimal(4),
    "choice": one_of("a", 1),
    "maybe": optional(integer()),
    "list": array(integer()),
    "map": mapping(text()),
    "inner": record({"x": integer()}),
}
VALID: Document = {
    "format": 1,
    "kind": "k",
    "seal": "0" * 32,
    "n": 1,
    "name": "",
    "digest": "0aff",
    "choice": 1,
    "maybe": None,
    "list": [0],
    "map": {"any": "thing"},
    "inner": {"x": 0},
}


def test_a_valid_document_passes() -> None:
    validate(VALID, FIELDS)


@pytest.mark.parametrize(
    ("member", "value", "told"),
    [
        ("n", 0, "n: 0 is below 1"),
        ("n", True, "n: not an integer"),
        ("n", "1", "n: not an integer"),
        ("name", None, "name: not a string"),
        ("digest", "0AFF", "digest: not 4 hexadecimal digits"),
        ("digest", "0aff\n", "digest: not 4 hexadecimal digits"),
        ("digest", 1, "digest: not 4 hexadecimal digits"),
        ("choice", True, "choice: True is none of"),
        ("maybe", -1, "maybe: -1 is below 0"),
        ("list", {}, "list: not an array"),
        ("list", [0, "x"], r"list\[1\]: not an integer"),
        ("map", [], "map: not an object"),
        ("map", {"any": 1}, "map.any: not a string"),
        ("inner", [], "inner: not an object"),
        ("inner", {}, "inner.x: missing"),
        ("inner", {"x": 1, "y": 2}, "inner.y: unknown member"),
        ("more", 1, "more: unknown member"),
    ],
)
def test_each_problem_is_named(member: str, value: object, told: str) -> None:
    with pytest.raises(InvalidDocument, match=f"^{told}"):
        validate({**VALID, member: value}, FIELDS)


def test_all_problems_are_listed_at_once() -> None:
    document = {**VALID, "n": 0, "name": 1, "extra": 1, "list": ["x", "y"]}
    del document["digest"]
    with pytest.raises(InvalidDocument) as refused:
        validate(document, FIELDS, place="here")
    for told in ("n: ", "name: ", "extra: ", "list[0]: ", "list[1]: ", "digest: missing"):
        assert told in str(refused.value)


def test_documents_are_plain_json() -> None:
    assert json.loads(seal(DOCUMENT))["b"] == [1, 2]
