"""Whether every stored chunk is what the manifest says."""

from collections.abc import Container, Iterator
from pathlib import Path

from hsstore.integrity.checks.manifests import chunk_range
from hsstore.integrity.chunk_reader import BadChunk
from hsstore.integrity.content.shard_look import ShardLook
from hsstore.integrity.plain_file import Trouble, plain_status, translated
from hsstore.integrity.subject import ShardCase
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.model.manifest import Chunk, Manifest


def check(case: ShardCase, only: Container[int] | None = None) -> Iterator[Finding]:
    """Verify every chunk of ``case.manifest`` that the file is long enough to hold.

    ``only`` leaves out those of all but these samples (global indexes). At level thorough what is
    right is looked at in the same reading (``case.look``).
    """
    manifest, name = case.manifest, keys.shard_file(case.shard)
    if manifest is None or case.file_bytes is None:
        return
    owners = chunk_owners(case, manifest)
    within = [
        c
        for c in manifest.chunks
        if c.offset + c.length <= case.file_bytes and (only is None or owners[c.chunk] in only)
    ]
    by_hash = {c.xxh3_64: c.chunk for c in manifest.chunks}
    if case.subject.at_least("thorough"):
        case.look = ShardLook.of(manifest, case.subject.store.identity)
    try:
        for bad in _verified(case, case.subject.root / name, within):
            sample = owners[bad.chunk.chunk]
            if bad.stable:
                case.lose([sample], [bad.chunk])
            yield _finding(case, bad, sample, by_hash)
    except Trouble as trouble:
        case.lose(s for s in owners.values() if only is None or s in only)
        kind = f"data-{'unreadable' if trouble.state == 'unreadable' else trouble.state}"
        yield case.finding(kind.replace("damaged", "invalid"), trouble.detail, path=name)


def chunk_owners(case: ShardCase, manifest: Manifest) -> dict[int, int]:
    """The sample (global index) that each chunk belongs to."""
    return {
        chunk: stored.sample for stored in manifest.samples for chunk in chunk_range(case, stored)
    }


def lost_by_truncation(case: ShardCase, manifest: Manifest) -> list[int]:
    """The samples whose chunks lie past the end of the file; they are lost."""
    size, owners, cut = case.file_bytes or 0, chunk_owners(case, manifest), set()
    for chunk in manifest.chunks:
        if chunk.offset + chunk.length > size:
            case.lose([owners[chunk.chunk]], [chunk])
            cut.add(owners[chunk.chunk])
    return sorted(cut)


def _verified(case: ShardCase, path: Path, chunks: list[Chunk]) -> Iterator[BadChunk]:
    subject = case.subject
    plain_status(subject.filesystem, subject.root, keys.shard_file(case.shard))
    with translated():
        fd = subject.filesystem.open(path)
    try:
        # What was read lately is right in memory, whatever the disk has become.
        subject.filesystem.forget_cached(fd)
        if case.look is None:
            yield from subject.chunks.verify(fd, path, chunks)
        else:
            samples = case.look.groups(chunks)
            yield from subject.chunks.verify_samples(fd, path, samples, case.look)
    finally:
        subject.filesystem.close(fd)
    case.bytes_checked += sum(chunk.length for chunk in chunks)


def _finding(case: ShardCase, bad: BadChunk, sample: int, by_hash: dict[str, int]) -> Finding:
    kind = "chunk-damaged" if bad.stable else "chunk-unstable"
    chunk = bad.chunk
    end = chunk.offset + chunk.length
    if bad.error is not None:
        kind, detail, evidence = "data-unreadable", bad.error, None
    else:
        detail = f"chunk {chunk.chunk} is not what was stored"
        evidence = _evidence(bad, by_hash)
    return case.finding(
        kind,
        detail,
        samples=[sample],
        path=keys.shard_file(case.shard),
        chunk=chunk.chunk,
        byte_range=(chunk.offset, end),
        evidence=evidence,
        source=bad.stable,
    )


def _evidence(bad: BadChunk, by_hash: dict[str, int]) -> str:
    if bad.zeros:
        return "all zeros"
    digests = f"xxh3_64 {bad.found}, expected {bad.chunk.xxh3_64}"
    twin = by_hash.get(bad.found or "")
    return digests if twin in (None, bad.chunk.chunk) else f"{digests}: the bytes of chunk {twin}"
