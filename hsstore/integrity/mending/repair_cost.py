"""What mending shards reads, writes and needs, before anything is written."""

from collections.abc import Iterable
from pathlib import Path

from hsstore.errors import OutOfSpace
from hsstore.integrity.plain_file import names_in
from hsstore.integrity.subject import ShardCase
from hsstore.model import keys
from hsstore.storage.space import STATUS_BLOCK_BYTES, available
from hsstore.storage.writer import SYNC_BYTES

# What claim, journal, manifest, intent, marker and note of a shard take at most, beside what grows
# with its chunks and samples: a few blocks each.
DOCUMENT_BYTES = 128 << 10
CHUNK_DOCUMENT_BYTES = 512
SAMPLE_DOCUMENT_BYTES = 8192


def staged_bytes(case: ShardCase) -> int:
    """An upper bound of what the next generation of a shard and its quarantine take."""
    samples = case.subject.samples(case.shard)
    geometry = case.subject.store.identity.geometry
    chunks = sum(geometry.chunks(n) for n in _lengths(case, samples))
    return chunks * geometry.chunk_bytes + geometry.index_bytes + put_aside_bytes(case)


def put_aside_bytes(case: ShardCase) -> int:
    """The damaged or false bytes that go to quarantine."""
    return sum(chunk.length for chunks in case.lost.values() for chunk in chunks)


def copied_bytes(case: ShardCase) -> int:
    """What is read of the shard file: to take over what is whole, and to put the rest aside."""
    if case.manifest is None:
        return 0
    return sum(chunk.length for chunk in case.manifest.chunks)


def payload_bytes(case: ShardCase, samples: Iterable[int]) -> int:
    """The states of some samples, without padding."""
    return sum(_lengths(case, samples)) * case.subject.store.identity.geometry.row_bytes


def tokens_of(case: ShardCase, samples: Iterable[int]) -> int:
    """The tokens of some samples, as far as anything tells where they lie."""
    return sum(_lengths(case, samples))


def _lengths(case: ShardCase, samples: Iterable[int]) -> list[int]:
    table = case.subject.table
    return [int(table.length[sample]) for sample in samples] if table else []


def refuse_full_disk(root: Path, cases: Iterable[ShardCase]) -> None:
    """OutOfSpace unless these shards can be replaced, one after another, in what is available.

    What a replaced file gives back counts for the shards after it; what was staged already, by an
    interrupted repair, is not needed again.
    """
    grown, most, worst = 0, 0, None
    for case in cases:
        needed = grown + _needed_bytes(case)
        if worst is None or needed > most:
            most, worst = needed, case.shard
        grown += staged_bytes(case) - _given_back_bytes(case)
    space = available(root)
    if worst is not None and most > space.available_bytes:
        raise OutOfSpace(
            f"shard {worst}: its next generation takes up to {most} bytes, with what is put aside "
            f"and what the shards before it leave; {space.available_bytes} are available",
            place=str(root),
            remedy="free space, then run the same command again",
        )


def _needed_bytes(case: ShardCase) -> int:
    geometry = case.subject.store.identity.geometry
    samples = len(case.subject.samples(case.shard))
    documents = DOCUMENT_BYTES + samples * SAMPLE_DOCUMENT_BYTES
    documents += geometry.chunks_per_shard * CHUNK_DOCUMENT_BYTES
    staged = staged_bytes(case)
    # Of what is staged already not all need be usable.
    return max(staged - _staged_already_bytes(case), min(staged, SYNC_BYTES)) + documents


def _staged_already_bytes(case: ShardCase) -> int:
    subject = case.subject
    names = [
        name
        for name in names_in(subject.filesystem, subject.root, keys.STAGE)
        if (found := keys.read_stage(name)) and found[0] == case.shard
    ]
    paths = (f"{keys.STAGE}/{name}/{keys.STAGED_DATA}" for name in names)
    return max((_allocated_bytes(case, path) for path in paths), default=0)


def _given_back_bytes(case: ShardCase) -> int:
    """What the file in place gives back: nothing where it is kept in quarantine."""
    if case.manifest is None:
        return 0
    return _allocated_bytes(case, keys.shard_file(case.shard))


def _allocated_bytes(case: ShardCase, name: str) -> int:
    try:
        status = case.subject.filesystem.status(case.subject.root / name)
    except OSError:
        return 0
    return status.st_blocks * STATUS_BLOCK_BYTES
