"""Where a planted damage is, and so what fsck must say of it, down to samples and bytes."""

import errno
from collections.abc import Iterable
from dataclasses import dataclass

import xxhash

from hsstore.model import keys
from hsstore.model.finding import LEVELS, Finding, Level
from hsstore.model.manifest import Chunk, Manifest
from hsstore.model.marker import Marker
from hsstore.storage.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """A finding that must be there from ``level`` on, with exactly these members."""

    kind: str
    level: Level
    path: str | None = None
    shard: int | None = None
    samples: tuple[str, ...] | None = None
    chunk: int | None = None
    byte_range: tuple[int, int] | None = None

    def is_named_by(self, finding: Finding) -> bool:
        """Whether a finding says all of this."""
        said = (finding.kind, finding.path, finding.shard, finding.samples, finding.chunk,
                finding.byte_range)  # fmt: skip
        return said == (
            self.kind, self.path, self.shard, self.samples, self.chunk, self.byte_range
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Planted:
    """What was done to a store.

    ``places`` must be named; other findings may only be about the paths and shards of those, and
    of their samples about those that a place names.
    """

    places: tuple[Place, ...]

    @property
    def level(self) -> Level | None:
        """The lowest level that promises to find it; None where none does."""
        levels = [LEVELS.index(place.level) for place in self.places]
        return LEVELS[min(levels)] if levels else None

    def promised(self, level: Level) -> list[Place]:
        """What a run at ``level`` must name."""
        return [p for p in self.places if LEVELS.index(p.level) <= LEVELS.index(level)]

    def missed(self, level: Level, findings: Iterable[Finding]) -> list[Place]:
        """What a run at ``level`` should have named, and did not, or not exactly."""
        found = list(findings)
        promised = self.promised(level)
        return [place for place in promised if not any(map(place.is_named_by, found))]

    def false(self, level: Level, findings: Iterable[Finding]) -> list[Finding]:
        """What a run at ``level`` says of bystanders."""
        promised = self.promised(level)
        shards = {place.shard for place in promised} - {None}
        paths = {place.path for place in promised}
        samples = {sample for place in promised for sample in place.samples or ()}
        return [
            finding
            for finding in findings
            if not any(place.is_named_by(finding) for place in promised)
            and not (
                finding.shard in shards and set(finding.samples or ()) <= samples
                if finding.shard is not None
                else finding.path in paths
            )
        ]


def keys_of(store: Store, shard: int) -> tuple[str, ...]:
    """The keys of all samples of a shard."""
    return store.tokens(shard).keys


def in_shard_file(store: Store, marker: Marker, manifest: Manifest | None) -> tuple[Place, ...]:
    """What is wrong with a plain shard file, by what its documents are or were.

    OSError for what is no file, such as a pipe.
    """
    path = store.root / keys.shard_file(marker.version.shard)
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no file to look at", str(path))
    raw = path.read_bytes()
    whole = _of_the_whole(store, marker, manifest, raw)
    return (*whole, *_of_chunks(store, manifest, raw)) if manifest else whole


def _of_the_whole(
    store: Store, marker: Marker, manifest: Manifest | None, raw: bytes
) -> tuple[Place, ...]:
    shard, size = marker.version.shard, marker.data_bytes
    name, every = keys.shard_file(shard), keys_of(store, shard)
    if len(raw) != size:
        cut = _cut_off(store, manifest, len(raw)) if manifest else set()
        samples = tuple(key for key in every if key in cut) or every
        span = (min(len(raw), size), max(len(raw), size))
        return (Place("data-size", "quick", name, shard, samples, byte_range=span),)
    start = size - store.identity.geometry.index_bytes
    if xxhash.xxh3_64_hexdigest(raw[start:]) == marker.index_xxh3_64:
        return ()
    return (Place("index-damaged", "manifest", name, shard, every, byte_range=(start, size)),)


def _cut_off(store: Store, manifest: Manifest, size: int) -> set[str]:
    return {_owner(store, manifest, chunk) for chunk in manifest.chunks if _end(chunk) > size}


def _of_chunks(store: Store, manifest: Manifest, raw: bytes) -> list[Place]:
    shard = manifest.version.shard
    return [
        Place(
            "chunk-damaged",
            "data",
            keys.shard_file(shard),
            shard,
            (_owner(store, manifest, chunk),),
            chunk.chunk,
            (chunk.offset, _end(chunk)),
        )
        for chunk in manifest.chunks
        if _end(chunk) <= len(raw)
        and xxhash.xxh3_64_hexdigest(raw[chunk.offset : _end(chunk)]) != chunk.xxh3_64
    ]


def _end(chunk: Chunk) -> int:
    return chunk.offset + chunk.length


def _owner(store: Store, manifest: Manifest, chunk: Chunk) -> str:
    """The key of the sample whose rows are in a chunk."""
    first = chunk.chunk * store.identity.chunk_rows
    return next(s.key for s in manifest.samples if s.first_row <= first < s.first_row + s.rows)
