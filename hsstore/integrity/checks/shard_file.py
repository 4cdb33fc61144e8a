"""Whether the shard file is there, as long as its marker says, with the index that it names."""

from collections.abc import Iterator

import xxhash

from hsstore.integrity.checks.chunks import lost_by_truncation
from hsstore.integrity.plain_file import Trouble, names_in, plain_status, translated
from hsstore.integrity.subject import ShardCase
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.model.marker import Marker


def check_size(case: ShardCase) -> Iterator[Finding]:
    """Check that the file is a plain one of the right size (``case.file_bytes``)."""
    marker, subject = case.marker, case.subject
    if marker is None:
        return
    name, samples = keys.shard_file(case.shard), subject.samples(case.shard)
    try:
        status = plain_status(subject.filesystem, subject.root, name, subject.folders)
    except Trouble as trouble:
        case.lose(samples)
        kind = "invalid" if trouble.state == "damaged" else trouble.state
        yield case.finding(f"data-{kind}", trouble.detail, samples=samples, path=name, source=True)
        return
    case.file_bytes = status.st_size
    if status.st_size != marker.data_bytes:
        yield _wrong_size(case, marker)


def check_index(case: ShardCase) -> Iterator[Finding]:
    """Check the index at the end of a file of the right size."""
    marker, subject = case.marker, case.subject
    if marker is None or case.file_bytes != marker.data_bytes:
        return
    name = keys.shard_file(case.shard)
    index = bytearray(subject.store.identity.geometry.index_bytes)
    start = max(marker.data_bytes - len(index), 0)
    try:
        with translated(), subject.filesystem.opened(subject.root / name) as fd:
            if subject.at_least("data"):
                subject.filesystem.forget_cached(fd)
            subject.filesystem.read_at(fd, index, start, subject.root / name)
    except Trouble as trouble:
        kind, detail, evidence = "data-unreadable", trouble.detail, None
    else:
        found = xxhash.xxh3_64_hexdigest(index)
        if found == marker.index_xxh3_64:
            return
        kind, detail = "index-damaged", "the samples can only be found through the manifest"
        evidence = "all zeros" if not any(index) else f"xxh3_64 {found}"
    case.index_whole = False
    yield case.finding(
        kind,
        detail,
        samples=subject.samples(case.shard),
        path=name,
        byte_range=(start, marker.data_bytes),
        evidence=evidence,
    )


def is_in_place(case: ShardCase, marker: Marker) -> bool:
    """Whether the shard file is, by size and index, the one that a marker or intent names."""
    return _is(case, keys.shard_file(case.shard), marker)


def is_staged(case: ShardCase, intent: Marker) -> bool:
    """Whether the file that an intent puts in place is in a staging folder of the shard."""
    subject = case.subject
    for name in names_in(subject.filesystem, subject.root, keys.STAGE):
        stage = keys.read_stage(name)
        data = f"{keys.STAGE}/{name}/{keys.STAGED_DATA}"
        if stage and stage[0] == case.shard and _is(case, data, intent):
            return True
    return False


def _is(case: ShardCase, name: str, marker: Marker) -> bool:
    subject = case.subject
    index = bytearray(subject.store.identity.geometry.index_bytes)
    start, path = marker.data_bytes - len(index), subject.root / name
    try:
        if plain_status(subject.filesystem, subject.root, name).st_size != marker.data_bytes:
            return False
        with translated(), subject.filesystem.opened(path) as fd:
            subject.filesystem.read_at(fd, index, max(start, 0), path)
    except Trouble as trouble:
        # What cannot be read is not gone.
        return trouble.state == "unreadable"
    return xxhash.xxh3_64_hexdigest(index) == marker.index_xxh3_64


def _wrong_size(case: ShardCase, marker: Marker) -> Finding:
    """Name the samples that a truncation cost; all of them where only the index is lost."""
    size, name = case.file_bytes or 0, keys.shard_file(case.shard)
    case.index_whole = False
    cut = lost_by_truncation(case, case.manifest) if case.manifest else []
    return case.finding(
        "data-size",
        f"the shard file has {size} bytes, not {marker.data_bytes}",
        samples=cut or case.subject.samples(case.shard),
        path=name,
        byte_range=(min(size, marker.data_bytes), max(size, marker.data_bytes)),
        source=bool(cut) or case.manifest is None,
    )
