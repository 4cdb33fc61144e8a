"""Whether the Zarr token and sample arrays say what the plan and the token files say."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hsstore.integrity.plain_file import Trouble, read_plain
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.storage.zarr_arrays import TABLE_CHUNK, ArrayChunk, shard_chunks, table_chunks


def check_shard(subject: Subject, shard: int) -> Iterator[Finding]:
    """Check one shard's chunks of input_ids and loss_mask against its token file."""
    tokens = subject.tokens(shard)
    if tokens is None:
        return
    lagging = shard >= subject.reached.shards
    for chunk in shard_chunks(shard, tokens, subject.store.identity.geometry):
        yield from _compare(subject, chunk, shard, lagging=lagging)


def check_tables(subject: Subject) -> Iterator[Finding]:
    """Check the sample arrays, as far as the token files read so far prove them."""
    for chunk, whole in expected_tables(subject):
        first = _number(chunk.key) * TABLE_CHUNK
        reached = max(subject.reached.samples - first, 0)
        if reached < TABLE_CHUNK and _is_of_another_plan(subject, chunk, first, reached):
            continue
        lagging = first >= subject.reached.samples
        known = (
            None if whole else _known_digests(subject)[first : first + min(reached, TABLE_CHUNK)]
        )
        yield from _compare(subject, chunk, None, known=known, lagging=lagging)


def _known_digests(subject: Subject) -> NDArray[np.bool_]:
    """Of which samples the digest is known: bool [samples]."""
    known = np.zeros(0 if subject.table is None else len(subject.table), np.bool_)
    for shard, found in subject.token_digests.items():
        samples = subject.samples(shard)
        if len(samples) == len(found):
            known[samples] = True
    return known


def _is_of_another_plan(subject: Subject, chunk: ArrayChunk, first: int, reached: int) -> bool:
    """Whether a chunk that a growth changes is right by the plan before it, or by one since.

    ``reached`` is how many entries it has while a growth is unfinished.
    """
    try:
        raw = read_plain(subject.filesystem, subject.root, chunk.key)
    except Trouble:
        return False
    if len(raw) != chunk.size:
        return False
    row_bytes = chunk.size // TABLE_CHUNK
    lags = raw == chunk.data[: reached * row_bytes].ljust(chunk.size, b"\0")
    if lags and reached < len(chunk.data) // row_bytes:
        return True
    ours = raw.startswith(chunk.data) and subject.store.plan.samples < first + TABLE_CHUNK
    grew = subject.newest().plan.generation > subject.store.plan.generation
    return ours and (grew or bool(subject.lost_plan))


def expected_tables(subject: Subject) -> Iterator[tuple[ArrayChunk, bool]]:
    """The chunks of the sample arrays, and whether every one of their values is known."""
    table = subject.table
    if table is None:
        return
    digests, known = np.zeros((len(table), 16), np.uint8), np.zeros(len(table), bool)
    for shard, found in subject.token_digests.items():
        samples = subject.samples(shard)
        if len(samples) == len(found):
            digests[samples], known[samples] = found, True
    for chunk in table_chunks(table.start, table.length, digests):
        first = _number(chunk.key) * TABLE_CHUNK
        covered = bool(known[first : first + TABLE_CHUNK].all())
        yield chunk, covered or not chunk.key.startswith(f"{keys.ZARR}/{keys.SAMPLE_DIGEST}/")


def _number(key: str) -> int:
    return int(key.split("/")[3])


def _compare(
    subject: Subject,
    chunk: ArrayChunk,
    shard: int | None,
    *,
    known: NDArray[np.bool_] | None = None,
    lagging: bool = False,
) -> Iterator[Finding]:
    """Compare a chunk file, or its ``known`` rows; one that is ``lagging`` need not be there."""
    try:
        raw = read_plain(subject.filesystem, subject.root, chunk.key)
    except Trouble as trouble:
        state, detail = str(trouble.state), trouble.detail
        if lagging and state == "missing":
            return
    else:
        state, detail = "damaged", _difference(raw, chunk, known)
    if detail:
        yield subject.finding(
            f"array-{state}",
            detail,
            shard=shard,
            samples=None if shard is None else subject.samples(shard),
            path=chunk.key,
            chunk=_number(chunk.key),
        )


def _difference(raw: bytes, chunk: ArrayChunk, known: NDArray[np.bool_] | None) -> str:
    """What is wrong with a chunk file, empty where nothing is."""
    if len(raw) != chunk.size:
        return f"it has {len(raw)} bytes, not {chunk.size}"
    expected = chunk.data.ljust(chunk.size, b"\0")
    differs = np.frombuffer(raw, np.uint8) != np.frombuffer(expected, np.uint8)
    if known is not None:
        compared = np.zeros(TABLE_CHUNK, np.bool_)
        compared[: len(known)] = known
        differs &= np.repeat(compared, chunk.size // TABLE_CHUNK)
    wrong = np.flatnonzero(differs)
    if not len(wrong):
        return ""
    if not any(raw):
        return "all zeros"
    return f"{len(wrong)} bytes differ from the token file, the first at {wrong[0]}"
