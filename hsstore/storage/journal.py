"""The journal of a staged shard: what is already safe in the staged file.

One sealed document a line. ``journal`` lines open the file and name the origin of what follows;
``sample`` and ``failure`` lines each settle one sample. A sample counts once its line is durable,
and its line is written only after its bytes are. A torn last line ends the journal.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.model.document import (
    FORMAT,
    Document,
    array,
    hexadecimal,
    integer,
    seal,
    unseal,
    validate,
)
from hsstore.model.manifest import (
    ABSENT_MEMBERS,
    SAMPLE_MEMBERS,
    AbsentSample,
    Chunk,
    StoredSample,
    chunk_fields,
)
from hsstore.model.source import Origin

HEADER, SAMPLE, FAILURE = "journal", "sample", "failure"


@dataclass(slots=True)
class Journal:
    """The settled part of a journal: ``end`` is where its valid bytes stop.

    ``writers`` are those that its header lines name.
    """

    store: str | None = None
    shard: int | None = None
    generation: int | None = None
    writers: set[str] = field(default_factory=set)
    origins: list[Origin] = field(default_factory=list)
    samples: dict[int, StoredSample] = field(default_factory=dict)
    chunks: dict[int, tuple[Chunk, ...]] = field(default_factory=dict)
    failures: dict[int, AbsentSample] = field(default_factory=dict)
    end: int = 0

    def settled(self) -> set[int]:
        """The global indexes of samples that need no more work."""
        return self.samples.keys() | self.failures.keys()

    def origin(self, origin: Origin) -> int | None:
        """The index of an origin that this journal already names."""
        return self.origins.index(origin) if origin in self.origins else None

    def forget(self, sample: int) -> None:
        """Drop a sample whose staged bytes proved wrong."""
        self.samples.pop(sample, None)
        self.chunks.pop(sample, None)
        self.failures.pop(sample, None)


def header_line(store: str, shard: int, generation: int, writer: str, origin: Origin) -> bytes:
    """The line that opens a journal, or adds an origin to it."""
    members = {"store": store, "shard": shard, "generation": generation, "writer": writer}
    return _line(HEADER, {**members, "origin": origin.to_document()})


def sample_line(sample: StoredSample, chunks: tuple[Chunk, ...]) -> bytes:
    """The line of a sample whose bytes are durable."""
    listed = [[c.chunk, c.offset, c.length, c.xxh3_64] for c in chunks]
    return _line(SAMPLE, {**sample.to_document(), "chunks": listed})


def failure_line(failure: AbsentSample) -> bytes:
    """The line of a sample that cannot be had."""
    return _line(FAILURE, failure.to_document())


def read_journal(raw: bytes) -> Journal:
    """Everything up to the first torn or foreign line."""
    journal = Journal()
    for line, document in _documents(raw):
        try:
            _apply(journal, document)
        except InvalidDocument:
            break
        journal.end += len(line)
    return journal


def _documents(raw: bytes) -> Iterator[tuple[bytes, Document]]:
    for line in raw.splitlines(keepends=True):
        try:
            document = unseal(line, *FIELDS)
            validate(document, FIELDS[document["kind"]])
        except (InvalidDocument, UnsupportedFormat):
            # hsstore.json speaks for the whole store: a newer line in it is a damaged one.
            return
        yield line, document


def _apply(journal: Journal, document: Document) -> None:
    own = {k: v for k, v in document.items() if k not in ("format", "kind", "seal")}
    if document["kind"] == HEADER:
        place = (own["store"], own["shard"], own["generation"])
        if journal.origins and place != (journal.store, journal.shard, journal.generation):
            raise InvalidDocument("a journal line of another shard")
        journal.store, journal.shard, journal.generation = place
        journal.writers.add(own["writer"])
        journal.origins.append(Origin.from_document(own["origin"]))
    elif document["kind"] == FAILURE:
        journal.forget(own["sample"])
        journal.failures[own["sample"]] = AbsentSample.from_document(own)
    else:
        chunks = tuple(Chunk(*chunk) for chunk in own.pop("chunks"))
        sample = StoredSample.from_document(own)
        if sample.origin >= len(journal.origins):
            raise InvalidDocument("a journal line of an unnamed origin")
        journal.forget(sample.sample)
        journal.samples[sample.sample] = sample
        journal.chunks[sample.sample] = chunks


def _line(kind: str, members: Mapping[str, Any]) -> bytes:
    return seal({"format": FORMAT, "kind": kind, **members})


FIELDS: dict[str, dict[str, Any]] = {
    HEADER: {
        "store": hexadecimal(32),
        "shard": integer(),
        "generation": integer(1),
        "writer": hexadecimal(16),
        "origin": Origin.fields(),
    },
    SAMPLE: {**SAMPLE_MEMBERS, "chunks": array(chunk_fields)},
    FAILURE: ABSENT_MEMBERS,
}
