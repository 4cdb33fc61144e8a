"""waiver/: that somebody accepted, by name, to go without a sample that its shard lacks."""

from dataclasses import dataclass
from typing import Any

from hsstore.model.document import FORMAT, Document, hexadecimal, integer, text
from hsstore.model.document import validate as validate_document

KIND = "waiver"


@dataclass(frozen=True, slots=True)
class Waiver:
    """The acceptance of one absent sample: its number, shard and key, why, and when (UTC)."""

    store: str
    sample: int
    shard: int
    key: str
    reason: str
    when: str

    def to_document(self) -> Document:
        """The document without its seal."""
        members = {name: getattr(self, name) for name in self.__slots__}
        return {"format": FORMAT, "kind": KIND, **members}

    @classmethod
    def from_document(cls, document: Document, *, place: str | None = None) -> "Waiver":
        """The waiver in an unsealed document; InvalidDocument naming all its problems."""
        validate_document(document, FIELDS, place=place)
        return cls(**{name: document[name] for name in cls.__slots__})


FIELDS: dict[str, Any] = {
    "store": hexadecimal(32),
    "sample": integer(),
    "shard": integer(),
    "key": text(),
    "reason": text(),
    "when": text(),
}
