"""hsstore.json: what a store is, written once and never changed."""

from dataclasses import dataclass
from typing import Any

from hsstore.errors import InvalidDocument
from hsstore.model.capture import CODECS, Capture, ModelIdentity
from hsstore.model.document import FORMAT, Document, hexadecimal, integer, one_of, record, text
from hsstore.model.document import validate as validate_document
from hsstore.model.geometry import Geometry

KIND = "store"


@dataclass(frozen=True, slots=True)
class StoreIdentity:
    """The immutable identity of a store: uuid (32 hex digits), model, capture, geometry, codec."""

    uuid: str
    created: str
    model: ModelIdentity
    capture: Capture
    chunk_rows: int
    shard_rows: int
    codec: str

    @property
    def geometry(self) -> Geometry:
        """The shape of every shard."""
        return Geometry(
            chunk_rows=self.chunk_rows,
            shard_rows=self.shard_rows,
            layers=len(self.capture.layers),
            hidden_size=self.model.hidden_size,
            itemsize=self.capture.itemsize,
        )

    def to_document(self) -> Document:
        """The document without its seal."""
        return {
            "format": FORMAT,
            "kind": KIND,
            "uuid": self.uuid,
            "created": self.created,
            "model": self.model.to_document(),
            "capture": self.capture.to_document(),
            "geometry": {"chunk_rows": self.chunk_rows, "shard_rows": self.shard_rows},
            "codec": self.codec,
        }

    @classmethod
    def from_document(cls, document: Document, *, place: str | None = None) -> "StoreIdentity":
        """The identity in an unsealed document; InvalidDocument naming all its problems."""
        validate_document(document, FIELDS, place=place)
        identity = cls(
            uuid=document["uuid"],
            created=document["created"],
            model=ModelIdentity.from_document(document["model"]),
            capture=Capture.from_document(document["capture"]),
            chunk_rows=document["geometry"]["chunk_rows"],
            shard_rows=document["geometry"]["shard_rows"],
            codec=document["codec"],
        )
        problems = [*identity.geometry.problems(), *identity.capture.problems(identity.model)]
        if problems:
            raise InvalidDocument("; ".join(problems), place=place)
        return identity


FIELDS: dict[str, Any] = {
    "uuid": hexadecimal(32),
    "created": text(),
    "model": ModelIdentity.fields(),
    "capture": Capture.fields(),
    "geometry": record({"chunk_rows": integer(1), "shard_rows": integer(1)}),
    "codec": one_of(*CODECS),
}
