"""manifest/: what one generation of a shard holds, down to every chunk's hash."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hsstore.model.document import (
    FORMAT,
    Document,
    Problem,
    array,
    hexadecimal,
    integer,
    optional,
    record,
    text,
)
from hsstore.model.document import validate as validate_document
from hsstore.model.keys import ShardVersion
from hsstore.model.source import Origin, attempt_lines

KIND = "manifest"


@dataclass(frozen=True, slots=True)
class Chunk:
    """One stored chunk: its index in the shard, where its bytes lie, and their xxh3_64."""

    chunk: int
    offset: int
    length: int
    xxh3_64: str


@dataclass(frozen=True, slots=True)
class Statistics:
    """Per-layer figures over up to 64 evenly spaced rows of a sample, float64 each.

    ``median_norm`` is the median Euclidean norm of those rows, ``max_abs`` their largest
    magnitude. Documents hold no floats, so each figure is written as the 16 hex digits of its
    big-endian bits.
    """

    rows: int
    median_norm: tuple[float, ...]
    max_abs: tuple[float, ...]

    def to_document(self) -> dict[str, Any]:
        """The ``statistics`` member of a sample."""
        return {
            "rows": self.rows,
            "median_norm": [float_bits(x) for x in self.median_norm],
            "max_abs": [float_bits(x) for x in self.max_abs],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Statistics":
        """The inverse of ``to_document``, for a validated document."""
        return cls(
            document["rows"],
            tuple(map(bits_float, document["median_norm"])),
            tuple(map(bits_float, document["max_abs"])),
        )


@dataclass(frozen=True, slots=True)
class StoredSample:
    """One sample of a shard: where its rows are and what they hold.

    ``content`` is the xxh3_128 of its decoded little-endian rows without padding; ``origin``
    indexes the manifest's origins; ``previous`` is the content digest that a re-extraction
    replaced.
    """

    sample: int
    key: str
    first_row: int
    rows: int
    content: str
    statistics: Statistics
    origin: int
    previous: str | None = None

    def to_document(self) -> dict[str, Any]:
        """One item of ``samples``."""
        return {
            "sample": self.sample,
            "key": self.key,
            "first_row": self.first_row,
            "rows": self.rows,
            "content": self.content,
            "statistics": self.statistics.to_document(),
            "origin": self.origin,
            "previous": self.previous,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "StoredSample":
        """The inverse of ``to_document``, for a validated document."""
        return cls(**{**document, "statistics": Statistics.from_document(document["statistics"])})


@dataclass(frozen=True, slots=True)
class AbsentSample:
    """A sample that its shard was committed without, and why.

    ``attempts`` has a line for each attempt, in their order; empty means that there was one.
    """

    sample: int
    key: str
    first_row: int
    rows: int
    reason: str
    detail: str
    attempts: tuple[str, ...] = ()

    def to_document(self) -> dict[str, Any]:
        """One item of ``absent``."""
        members = {name: getattr(self, name) for name in self.__slots__}
        return {**members, "attempts": list(self.attempts)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "AbsentSample":
        """The inverse of ``to_document``, for a validated document."""
        return cls(**{**document, "attempts": tuple(document["attempts"])})

    def tried(self) -> tuple[str, ...]:
        """A line for each attempt, however many there were."""
        return attempt_lines(self.reason, self.detail, self.attempts)


@dataclass(frozen=True, slots=True)
class Manifest:
    """Everything about one generation of a shard.

    ``data_bytes`` is the size of the shard file, ``index_xxh3_64`` the hash of its stored index.
    """

    store: str
    version: ShardVersion
    writer: str
    data_bytes: int
    index_xxh3_64: str
    chunks: tuple[Chunk, ...]
    samples: tuple[StoredSample, ...]
    absent: tuple[AbsentSample, ...]
    origins: tuple[Origin, ...]

    def to_document(self) -> Document:
        """The document without its seal."""
        return {
            "format": FORMAT,
            "kind": KIND,
            "store": self.store,
            "shard": self.version.shard,
            "generation": self.version.generation,
            "writer": self.writer,
            "data_bytes": self.data_bytes,
            "index_xxh3_64": self.index_xxh3_64,
            "chunks": [[c.chunk, c.offset, c.length, c.xxh3_64] for c in self.chunks],
            "samples": [s.to_document() for s in self.samples],
            "absent": [a.to_document() for a in self.absent],
            "origins": [o.to_document() for o in self.origins],
        }

    @classmethod
    def from_document(cls, document: Document, *, place: str | None = None) -> "Manifest":
        """The manifest in an unsealed document; InvalidDocument naming all its problems."""
        validate_document(document, FIELDS, place=place)
        return cls(
            store=document["store"],
            version=ShardVersion(document["shard"], document["generation"]),
            writer=document["writer"],
            data_bytes=document["data_bytes"],
            index_xxh3_64=document["index_xxh3_64"],
            chunks=tuple(Chunk(*chunk) for chunk in document["chunks"]),
            samples=tuple(map(StoredSample.from_document, document["samples"])),
            absent=tuple(map(AbsentSample.from_document, document["absent"])),
            origins=tuple(map(Origin.from_document, document["origins"])),
        )


def float_bits(value: float) -> str:
    """A float64 as the 16 hex digits of its big-endian bits."""
    return struct.pack(">d", value).hex()


def bits_float(digits: str) -> float:
    """The inverse of ``float_bits``."""
    value: float = struct.unpack(">d", bytes.fromhex(digits))[0]
    return value


def chunk_fields(value: object, path: str) -> list[Any]:
    """Check one item of ``chunks``: [chunk, offset, length, xxh3_64]."""
    if not isinstance(value, list):
        return array(integer())(value, path)
    names = {
        "chunk": integer(),
        "offset": integer(),
        "length": integer(1),
        "xxh3_64": hexadecimal(16),
    }
    if len(value) > len(names):
        return [Problem(path, "length", f"{len(value)} items, not {len(names)}")]
    return record(names)(dict(zip(names, value, strict=False)), path)


STATISTICS_FIELDS = record(
    {
        "rows": integer(1),
        "median_norm": array(hexadecimal(16)),
        "max_abs": array(hexadecimal(16)),
    }
)
SAMPLE_MEMBERS: dict[str, Any] = {
    "sample": integer(),
    "key": text(),
    "first_row": integer(),
    "rows": integer(1),
    "content": hexadecimal(32),
    "statistics": STATISTICS_FIELDS,
    "origin": integer(),
    "previous": optional(hexadecimal(32)),
}
ABSENT_MEMBERS: dict[str, Any] = {
    "sample": integer(),
    "key": text(),
    "first_row": integer(),
    "rows": integer(1),
    "reason": text(),
    "detail": text(),
    "attempts": array(text()),
}
FIELDS: dict[str, Any] = {
    "store": hexadecimal(32),
    "shard": integer(),
    "generation": integer(1),
    "writer": hexadecimal(16),
    "data_bytes": integer(1),
    "index_xxh3_64": hexadecimal(16),
    "chunks": array(chunk_fields),
    "samples": array(record(SAMPLE_MEMBERS)),
    "absent": array(record(ABSENT_MEMBERS)),
    "origins": array(Origin.fields()),
}
