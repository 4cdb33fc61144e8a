"""commit/ and intent/: the small documents that make a shard exist, and replace it."""

from dataclasses import dataclass
from typing import Any

from hsstore.model import keys
from hsstore.model.document import FORMAT, Document, hexadecimal, integer, text, timestamp
from hsstore.model.document import validate as validate_document
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import Manifest

COMMIT_KIND = "commit"
INTENT_KIND = "intent"


@dataclass(frozen=True, slots=True)
class Marker:
    """That a generation of a shard is committed: its manifest, its sizes and its counts."""

    store: str
    version: ShardVersion
    writer: str
    manifest_xxh3_128: str
    data_bytes: int
    index_xxh3_64: str
    samples: int
    absent: int
    tokens: int
    committed: str

    @classmethod
    def of(cls, manifest: Manifest, manifest_xxh3_128: str) -> "Marker":
        """The marker, made now, that follows from a manifest and the hash of its file."""
        return cls(
            store=manifest.store,
            version=manifest.version,
            writer=manifest.writer,
            manifest_xxh3_128=manifest_xxh3_128,
            data_bytes=manifest.data_bytes,
            index_xxh3_64=manifest.index_xxh3_64,
            samples=len(manifest.samples),
            absent=len(manifest.absent),
            tokens=sum(sample.rows for sample in manifest.samples),
            committed=timestamp(),
        )

    @property
    def manifest_name(self) -> str:
        """Where the manifest is, relative to the store."""
        return keys.manifest(self.version, self.writer)

    @property
    def name(self) -> str:
        """Where this marker is, relative to the store."""
        return keys.marker(self.version, absent=self.absent > 0)

    def to_document(self, kind: str = COMMIT_KIND) -> Document:
        """The document without its seal, as a commit marker or as an intent."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "version"}
        return {
            "format": FORMAT,
            "kind": kind,
            "shard": self.version.shard,
            "generation": self.version.generation,
            **own,
        }

    @classmethod
    def from_document(cls, document: Document, *, place: str | None = None) -> "Marker":
        """The marker in an unsealed document; InvalidDocument naming all its problems."""
        validate_document(document, FIELDS, place=place)
        own = {n: document[n] for n in cls.__slots__ if n != "version"}
        return cls(version=ShardVersion(document["shard"], document["generation"]), **own)


FIELDS: dict[str, Any] = {
    "store": hexadecimal(32),
    "shard": integer(),
    "generation": integer(1),
    "writer": hexadecimal(16),
    "manifest_xxh3_128": hexadecimal(32),
    "data_bytes": integer(1),
    "index_xxh3_64": hexadecimal(16),
    "samples": integer(),
    "absent": integer(),
    "tokens": integer(),
    "committed": text(),
}
