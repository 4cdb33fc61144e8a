"""How far the Zarr arrays follow the plan, and writing what they lack.

A growth is decided by its plan; the arrays come after it, the metadata of the group last. So the
group tells which plan all arrays have reached, and everything of later plans follows from their
token files. Readers of hsstore need none of it: they go by the plan.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from hsstore.errors import InvalidDocument
from hsstore.model import commands, keys
from hsstore.model.progress import Progress
from hsstore.storage.array_files import replace_chunk
from hsstore.storage.store import Store
from hsstore.storage.token_file import token_digest
from hsstore.storage.zarr_arrays import (
    TABLE_CHUNK,
    ArrayChunk,
    metadata_documents,
    shard_chunks,
    table_chunks,
)

# Arrays whose chunks lie in one folder; each chunk of sample_digest has its own.
_CHUNKED = (keys.INPUT_IDS, keys.LOSS_MASK, keys.SAMPLE_START, keys.SAMPLE_LENGTH)


class Reach(NamedTuple):
    """The first so many shards and samples of a store."""

    shards: int
    samples: int


def planned(store: Store) -> Reach:
    """All of a store."""
    return Reach(store.plan.shards, store.plan.samples)


def reached(store: Store) -> Reach | None:
    """How far the arrays go: as the newest plan, an earlier one, or (None) as no plan says.

    Raises OSError, and StoreError where it takes a sample table that nothing proves.
    """
    try:
        raw = store.filesystem.read(store.root / keys.zarr_metadata())
    except FileNotFoundError:
        return None
    for reach in _reaches(store):
        if raw == metadata(store, reach)[keys.zarr_metadata()]:
            return reach
    return None


def metadata(store: Store, reach: Reach) -> dict[str, bytes]:
    """Every zarr.json by key, the group's last, of arrays that go that far."""
    plan = dataclasses.replace(store.plan, shards=reach.shards, samples=reach.samples)
    return metadata_documents(store.identity, plan)


def _reaches(store: Store) -> Iterator[Reach]:
    """What the newest plan describes, then what each one before it did."""
    yield planned(store)
    for _, shards in reversed(list(store.plan.token_files.spans())[1:]):
        yield Reach(shards.start, store.samples.shard_samples(shards.start).start)


def catch_up(store: Store, progress: Progress, verify: Callable[[], None]) -> bool:
    """Write what the arrays lack of the plan; whether that was anything.

    For whoever may grow the store: ``verify`` is asked before each step whether that still holds.
    Raises InvalidDocument where the arrays are as no plan says, and OSError; what was written by
    then is right, and the next call goes on.
    """
    # Whoever published the plan may have been killed before this.
    store.filesystem.sync_folder(store.root / keys.PLAN)
    before = reached(store)
    if before is None:
        raise InvalidDocument(
            "states.zarr is described as none of the store's plans says",
            place=str(store.root / keys.zarr_metadata()),
            remedy=f"run: {commands.hsstore('fsck', store.root)}",
        )
    if before == planned(store):
        return False
    _remove_temporaries(store, before)
    progress.start(store.plan.shards - before.shards, 0, "shards")
    for chunk in _missing(store, before, progress):
        verify()
        replace_chunk(store.filesystem, store.root, chunk)
    for key, document in metadata(store, planned(store)).items():
        verify()
        store.filesystem.replace(store.root / key, document)
    return True


def _remove_temporaries(store: Store, before: Reach) -> None:
    """Remove what a killed process left of files that it was about to put in place."""
    filesystem, root = store.filesystem, store.root
    written = [*metadata(store, before), *(keys.array_chunk(a, 0) for a in _CHUNKED)]
    chunks = range(before.samples // TABLE_CHUNK, -(-store.plan.samples // TABLE_CHUNK))
    written += [keys.array_chunk(keys.SAMPLE_DIGEST, chunk) for chunk in chunks]
    for folder in sorted({(root / key).parent for key in written}):
        if filesystem.exists(folder):
            for name in filesystem.names(folder):
                if name.startswith("."):
                    filesystem.unlink(folder / name)


def _missing(store: Store, before: Reach, progress: Progress) -> Iterator[ArrayChunk]:
    """The chunks of later shards, then those of the sample arrays that they change."""
    first_chunk = before.samples // TABLE_CHUNK
    first = first_chunk * TABLE_CHUNK
    table = store.samples
    digests: list[bytes] = []
    begin = min(table.extent(first).shard, before.shards)
    for shard in range(begin, store.plan.shards):
        tokens = store.tokens(shard)
        skipped = max(first - tokens.first_sample, 0)
        digests += [token_digest(ids) for _, ids, _ in tokens.samples()][skipped:]
        if shard >= before.shards:
            yield from shard_chunks(shard, tokens, store.identity.geometry)
            progress.advance(1)
    yield from table_chunks(
        table.start[first:],
        table.length[first:],
        np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 16),
        first_chunk=first_chunk,
    )
