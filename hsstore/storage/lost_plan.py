"""Traces of a plan that is gone: what a store holds beyond its newest whole plan.

A plan is durable before anything goes beyond it, so such traces mean that a plan was lost, and that
the store was larger. Token files alone mean nothing: a growth that was never decided leaves them.
"""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.model import keys
from hsstore.model.document import unseal
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import KIND
from hsstore.model.marker import COMMIT_KIND, INTENT_KIND
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.store import Store, newest_plan


def traces(store: Store) -> list[str]:
    """Names, relative to the store, that only a later plan explains; none of a sound store.

    Looks again where the store grew meanwhile. What cannot be read leaves no trace.
    """
    while True:
        found = sorted(set(_traces(store)))
        if not found:
            return []
        newest = newest_plan(store.filesystem, store.root, store.identity.uuid, or_older=True)
        if newest.generation <= store.plan.generation:
            return found
        store = Store(store.root, store.identity, newest, store.filesystem)


def refuse_lost_plan(store: Store) -> None:
    """InvalidDocument where the store was larger: what is there must not be taken for all."""
    found = traces(store)
    if found:
        raise InvalidDocument(
            f"the store was larger than its newest whole plan says: {found[0]} is beyond it",
            place=str(store.root / keys.PLAN),
            remedy="put back the newest plan from a copy of this very store",
        )


def _traces(store: Store) -> Iterator[str]:
    filesystem, root, plan = store.filesystem, store.root, store.plan
    for name in _names(filesystem, root / keys.PLAN):
        generation = keys.read_plan(name)
        if generation is not None and generation > plan.generation:
            yield f"{keys.PLAN}/{name}"
    for folder, proves in _PROVES.items():
        for name in _names(filesystem, root / folder):
            if proves(store, name):
                yield f"{folder}/{name}"
    for array in (keys.HIDDEN_STATES, keys.INPUT_IDS, keys.LOSS_MASK):
        if (_rows(store, keys.zarr_metadata(array)) or 0) > plan.shards * store.identity.shard_rows:
            yield keys.zarr_metadata(array)
    yield from _chunk_traces(store)


def _chunk_traces(store: Store) -> Iterator[str]:
    """Whole chunks of token ids and masks of shards that the plan does not have."""
    for array, itemsize in ((keys.INPUT_IDS, 4), (keys.LOSS_MASK, 1)):
        size = store.identity.shard_rows * itemsize
        for name in _names(store.filesystem, store.root / keys.ZARR / array / "c"):
            if name.isascii() and name.isdecimal() and int(name) >= store.plan.shards:
                key = keys.array_chunk(array, int(name))
                with contextlib.suppress(OSError):
                    if store.filesystem.status(store.root / key).st_size == size:
                        yield key


def _rows(store: Store, key: str) -> int | None:
    """How many rows the metadata of an array says it has; None where it says nothing."""
    try:
        shape = json.loads(store.filesystem.read(store.root / key))["shape"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return None
    first = shape[0] if isinstance(shape, list) and shape else None
    return first if isinstance(first, int) else None


def _names(filesystem: Filesystem, folder: Path) -> list[str]:
    try:
        return filesystem.names(folder)
    except OSError:
        return []


def _marker(store: Store, name: str) -> bool:
    """Whether a name in commit/ is of a later shard, and a true marker of this store."""
    found = keys.read_marker(name)
    return bool(found and _is_later(store, found[0])) and _is_ours(store, keys.COMMIT, name)


def _manifest(store: Store, name: str) -> bool:
    found = keys.read_manifest(name)
    return bool(found and _is_later(store, found[0])) and _is_ours(store, keys.MANIFEST, name)


def _intent(store: Store, name: str) -> bool:
    found = keys.read_intent(name)
    return bool(found and _is_later(store, found)) and _is_ours(store, keys.INTENT, name)


def _is_later(store: Store, version: ShardVersion) -> bool:
    return version.shard >= store.plan.shards


def _is_ours(store: Store, folder: str, name: str) -> bool:
    try:
        document = unseal(
            store.filesystem.read(store.root / folder / name), COMMIT_KIND, INTENT_KIND, KIND
        )
    except (OSError, InvalidDocument, UnsupportedFormat):
        return False
    return document.get("store") == store.identity.uuid


_PROVES = {keys.COMMIT: _marker, keys.MANIFEST: _manifest, keys.INTENT: _intent}
