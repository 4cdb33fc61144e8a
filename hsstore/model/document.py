"""Sealed documents: canonical JSON that proves its own integrity.

A document is one JSON object: keys sorted, no insignificant white space, UTF-8, integers and
strings only (no floats, so that every writer produces the same bytes), one trailing newline. Its
member ``seal`` holds the xxh3_128 of the whole file, computed with the seal's own 32 digits
written as zeros. A torn, zeroed or edited file shows without any other file at hand.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import xxhash

from hsstore.errors import InvalidDocument, UnsupportedFormat

FORMAT = 1
UNSEALED = "0" * 32
LARGEST_INTEGER = 2**63 - 1

Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a document: the member's path, a stable kind and the words."""

    path: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.path or 'document'}: {self.detail}"


Check = Callable[[object, str], list[Problem]]


def canonical(document: Mapping[str, Any]) -> bytes:
    """The one byte sequence of a document; ValueError for floats, which have no canonical form."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    json.loads(text, parse_float=_refuse_number, parse_constant=_refuse_number)
    return text.encode() + b"\n"


def seal(document: Mapping[str, Any]) -> bytes:
    """The bytes of a document with its seal filled in; ValueError for one that cannot be sealed."""
    unsealed = canonical({**document, "seal": UNSEALED})
    if unsealed.count(_member(UNSEALED)) != 1:
        raise ValueError("a member of the document looks like its seal")
    return unsealed.replace(_member(UNSEALED), _member(seal_digits(document)))


def seal_digits(document: Mapping[str, Any]) -> str:
    """The seal alone, 32 hex digits, of a document."""
    return xxhash.xxh3_128_hexdigest(canonical({**document, "seal": UNSEALED}))


def unseal(raw: bytes, *kinds: str, place: str | None = None) -> Document:
    """The document in ``raw``, proven whole and of one of the kinds asked for.

    Raises InvalidDocument when it is not, UnsupportedFormat when a newer hsstore wrote it.
    """
    document = _parse(raw, place)
    version = document.get("format")
    if type(version) is int and version > FORMAT:
        raise UnsupportedFormat(
            f"format {version} is newer than format {FORMAT}, the newest this hsstore reads",
            place=place,
            remedy="upgrade hsstore",
        )
    digits = document.get("seal")
    member = _member(str(digits))
    if raw.count(member) != 1:
        raise InvalidDocument("the document has no seal", place=place)
    if xxhash.xxh3_128_hexdigest(raw.replace(member, _member(UNSEALED))) != digits:
        raise InvalidDocument("the seal does not match: torn or edited", place=place)
    if version != FORMAT or document.get("kind") not in kinds:
        raise InvalidDocument(
            f"expected a format {FORMAT} {' or '.join(kinds)} document, "
            f"found format {version!r}, kind {document.get('kind')!r}",
            place=place,
        )
    return document


def validate(document: Document, fields: Mapping[str, Check], *, place: str | None = None) -> None:
    """Raise InvalidDocument naming ALL problems of a document's members."""
    envelope = {"format": integer(FORMAT), "kind": text(), "seal": hexadecimal(32)}
    problems = record({**envelope, **fields})(document, "")
    if problems:
        raise InvalidDocument("; ".join(map(str, problems)), place=place)


def record(fields: Mapping[str, Check]) -> Check:
    """An object with exactly these members."""

    def check(value: object, path: str) -> list[Problem]:
        if not isinstance(value, dict):
            return [Problem(path, "type", "not an object")]
        prefix = f"{path}." if path else ""
        problems = [
            Problem(f"{prefix}{name}", "unknown-member", "unknown member")
            for name in sorted(value.keys() - fields.keys())
        ]
        for name, check_member in fields.items():
            if name in value:
                problems += check_member(value[name], f"{prefix}{name}")
            else:
                problems.append(Problem(f"{prefix}{name}", "missing-member", "missing"))
        return problems

    return check


def array(check_item: Check) -> Check:
    """An array whose items all pass one check."""

    def check(value: object, path: str) -> list[Problem]:
        if not isinstance(value, list):
            return [Problem(path, "type", "not an array")]
        return [p for n, item in enumerate(value) for p in check_item(item, f"{path}[{n}]")]

    return check


def mapping(check_value: Check) -> Check:
    """An object with any member names, whose values all pass one check."""

    def check(value: object, path: str) -> list[Problem]:
        if not isinstance(value, dict):
            return [Problem(path, "type", "not an object")]
        return [p for name, item in value.items() for p in check_value(item, f"{path}.{name}")]

    return check


def integer(minimum: int = 0) -> Check:
    """An integer (not a boolean) of at least ``minimum``, and within 63 bits."""

    def check(value: object, path: str) -> list[Problem]:
        if type(value) is not int:
            return [Problem(path, "type", "not an integer")]
        if value < minimum:
            return [Problem(path, "range", f"{value} is below {minimum}")]
        if value > LARGEST_INTEGER:
            return [Problem(path, "range", "above 2^63 - 1")]
        return []

    return check


def text() -> Check:
    """Any string."""
    return lambda value, path: (
        [] if isinstance(value, str) else [Problem(path, "type", "not a string")]
    )


def hexadecimal(digits: int) -> Check:
    """A string of exactly that many lower-case hexadecimal digits."""
    pattern = re.compile(f"[0-9a-f]{{{digits}}}")
    return lambda value, path: (
        []
        if isinstance(value, str) and pattern.fullmatch(value)
        else [Problem(path, "digest", f"not {digits} hexadecimal digits")]
    )


def one_of(*choices: object) -> Check:
    """One of the listed values."""
    return lambda value, path: (
        []
        if any(value == c and type(value) is type(c) for c in choices)
        else [Problem(path, "choice", f"{value!r} is none of {list(choices)}")]
    )


def optional(check: Check) -> Check:
    """null, or what another check accepts."""
    return lambda value, path: [] if value is None else check(value, path)


def timestamp(seconds: float | None = None) -> str:
    """Now, or a time in seconds, as documents tell it to people: RFC 3339, UTC, whole seconds."""
    time = datetime.now(UTC) if seconds is None else datetime.fromtimestamp(seconds, UTC)
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _member(digits: str) -> bytes:
    return f'"seal":"{digits}"'.encode(errors="replace")


def _parse(raw: bytes, place: str | None) -> Document:
    try:
        document = json.loads(raw, parse_float=_refuse_number, parse_constant=_refuse_number)
    except (ValueError, RecursionError) as error:
        raise InvalidDocument(f"not a JSON document: {error}", place=place) from None
    if not isinstance(document, dict):
        raise InvalidDocument("not a JSON object", place=place)
    return document


def _refuse_number(digits: str) -> float:
    raise ValueError(f"{digits} is not an integer; documents hold no floats")
