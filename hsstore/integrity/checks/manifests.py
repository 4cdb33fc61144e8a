"""Whether the manifest is the one that the marker names, and describes this shard."""

from collections.abc import Iterator

import xxhash

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.integrity.plain_file import Trouble, read_plain
from hsstore.integrity.subject import ShardCase
from hsstore.model import keys
from hsstore.model.document import unseal
from hsstore.model.finding import Finding
from hsstore.model.geometry import Extent
from hsstore.model.manifest import KIND, AbsentSample, Manifest, StoredSample
from hsstore.model.marker import Marker
from hsstore.model.source import differences, expected_match
from hsstore.model.waiver import Waiver
from hsstore.storage.shard_file import MISSING, encode_index
from hsstore.storage.waivers import waived


def check(case: ShardCase) -> Iterator[Finding]:
    """Find the manifest (``case.manifest``), and the samples that it says are not there."""
    marker = case.marker
    if marker is None:
        return
    try:
        case.manifest = read(case, marker)
    except Trouble as trouble:
        samples = case.subject.samples(case.shard)
        case.lose(samples)
        kind = "invalid" if trouble.state == "damaged" else trouble.state
        yield case.finding(
            f"manifest-{kind}",
            trouble.detail,
            samples=samples,
            path=marker.manifest_name,
            source=True,
        )
        return
    yield from _absent(case, case.manifest)
    yield from _contradicting(case, case.manifest)
    case.subject.note_origins(case.shard, case.manifest.origins)


def inconsistencies(case: ShardCase, manifest: Manifest) -> Iterator[str]:
    """What a manifest says that cannot be true of its shard."""
    store = case.subject.store
    here = (store.identity.uuid, case.shard)
    if (manifest.store, manifest.version.shard) != here:
        yield "it belongs to another store or shard"
    listed: list[StoredSample | AbsentSample] = [*manifest.samples, *manifest.absent]
    if case.subject.table and not _as_planned(case, listed):
        yield "its samples are not those that the plan puts here"
    if any(s.origin >= len(manifest.origins) for s in manifest.samples):
        yield "a sample's origin is not listed"
    if not _chunks_fit(case, manifest):
        yield "its chunks are not those of its samples"


def is_whole(case: ShardCase, marker: Marker) -> bool:
    """Whether the manifest that a marker names is there and bears the marker out."""
    try:
        read(case, marker)
    except Trouble:
        return False
    return True


def read(case: ShardCase, marker: Marker) -> Manifest:
    """The manifest that a marker or intent names, if it can be true; else Trouble."""
    subject = case.subject
    raw = read_plain(subject.filesystem, subject.root, marker.manifest_name)
    if xxhash.xxh3_128_hexdigest(raw) != marker.manifest_xxh3_128:
        raise Trouble("damaged", "its hash is not the one that the marker names")
    try:
        manifest = Manifest.from_document(unseal(raw, KIND))
    except (InvalidDocument, UnsupportedFormat) as error:
        raise Trouble("damaged", error.message) from None
    problems = [*inconsistencies(case, manifest), *_contradicts_marker(manifest, marker)]
    if problems:
        raise Trouble("damaged", "; ".join(problems))
    return manifest


def _contradicts_marker(manifest: Manifest, marker: Marker) -> Iterator[str]:
    said = (marker.version, marker.writer, marker.data_bytes, marker.index_xxh3_64)
    if (manifest.version, manifest.writer, manifest.data_bytes, manifest.index_xxh3_64) != said:
        yield "it describes another shard file than the marker"
    counts = (marker.samples, marker.absent, marker.tokens)
    tokens = sum(sample.rows for sample in manifest.samples)
    if (len(manifest.samples), len(manifest.absent), tokens) != counts:
        yield "it counts other samples than the marker"


def _as_planned(case: ShardCase, listed: list[StoredSample | AbsentSample]) -> bool:
    table, samples = case.subject.table, case.subject.samples(case.shard)
    if table is None or sorted(entry.sample for entry in listed) != list(samples):
        return False
    extents = [table.extent(entry.sample) for entry in listed]
    placed = all(
        (entry.first_row, entry.rows) == (extent.first_row, extent.rows)
        for entry, extent in zip(listed, extents, strict=True)
    )
    tokens = case.subject.tokens(case.shard)
    named = tokens is None or all(
        entry.key == tokens.keys[entry.sample - tokens.first_sample] for entry in listed
    )
    return placed and named


def _chunks_fit(case: ShardCase, manifest: Manifest) -> bool:
    identity = case.subject.store.identity
    geometry = identity.geometry
    count = geometry.chunks_per_shard
    wanted: list[int] = []
    for sample in manifest.samples:
        numbers = chunk_range(case, sample)
        wanted += range(numbers.start, min(numbers.stop, count + 1))
    chunks = sorted(manifest.chunks, key=lambda c: c.offset)
    if sorted(wanted) != sorted(c.chunk for c in chunks) or any(n >= count for n in wanted):
        return False
    end = 0
    for chunk in chunks:
        plain = identity.codec != "none" or chunk.length == geometry.chunk_bytes
        if chunk.offset < end or not plain:
            return False
        end = chunk.offset + chunk.length
    if end + geometry.index_bytes != manifest.data_bytes or end >= MISSING:
        return False
    return xxhash.xxh3_64_hexdigest(encode_index(chunks, geometry)) == manifest.index_xxh3_64


def chunk_range(case: ShardCase, sample: StoredSample) -> range:
    """The chunks of the shard that hold a sample, by what the manifest says of it."""
    extent = Extent(sample.sample, case.shard, sample.first_row, sample.rows)
    return extent.chunk_range(case.subject.store.identity.geometry)


def _absent(case: ShardCase, manifest: Manifest) -> Iterator[Finding]:
    accepted = waived(case.subject.waivers, manifest.absent)
    for sample in manifest.absent:
        if sample.sample in accepted:
            yield _waived(case, manifest, sample, accepted[sample.sample])
            continue
        case.lose([sample.sample])
        yield case.finding(
            "sample-absent",
            f"{sample.reason}: {sample.detail}",
            samples=[sample.sample],
            path=manifest_name(manifest),
            source=True,
        )


def _waived(case: ShardCase, manifest: Manifest, sample: AbsentSample, waiver: Waiver) -> Finding:
    return case.finding(
        "sample-waived",
        f"waived on {waiver.when}: {waiver.reason}",
        samples=[sample.sample],
        path=keys.waiver(sample.sample),
        evidence=f"absent by {manifest_name(manifest)}: {sample.reason}: {sample.detail}",
    )


def _contradicting(case: ShardCase, manifest: Manifest) -> Iterator[Finding]:
    identity = case.subject.store.identity
    expected = expected_match(identity.model, identity.capture)
    for number, origin in enumerate(manifest.origins):
        found = differences(expected, origin.match)
        samples = [s.sample for s in manifest.samples if s.origin == number]
        if found and samples:
            case.lose(samples)
            path = manifest_name(manifest)
            detail = "; ".join(found)
            yield case.finding(
                "origin-contradicts", detail, samples=samples, path=path, source=True
            )


def manifest_name(manifest: Manifest) -> str:
    """Where a manifest is, relative to the store."""
    return keys.manifest(manifest.version, manifest.writer)
