"""Taking verified samples from another copy of the same store."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.errors import IdentityMismatch, InvalidDocument, SampleUnavailable, StoreError
from hsstore.model.manifest import Manifest, StoredSample
from hsstore.model.marker import Marker
from hsstore.storage import digest
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store, read_plan
from hsstore.storage.writer import ShardWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray


GROWS = frozenset({"dataset", "sample table"})


class Replica:
    """A store of the same samples, states and plan; nothing of it is used unverified.

    A copy from before the store grew will do: it lacks the shards that were added since.
    """

    def __init__(self, store: Store, path: str | Path) -> None:
        """Raise IdentityMismatch where the store at ``path`` holds something else."""
        self.store = Store.open(path)
        self._target = store
        self._reader = Reader(self.store)
        self._committed = self.store.committed()
        self._held: tuple[int, Manifest | None, dict[int, StoredSample]] = -1, None, {}
        ours, theirs = _what(store), _what(self.store)
        if ours != theirs:
            differing = {name for name in ours if ours[name] != theirs[name]}
            if not (differing <= GROWS and _has_grown_from(store, self.store)):
                raise IdentityMismatch(
                    f"the replica differs from the store in {', '.join(sorted(differing))}",
                    place=str(self.store.root),
                    remedy="give a copy of the same store",
                )

    def sample(self, shard: int, sample: int, content: str | None) -> StoredSample | None:
        """What the replica's manifest says of a sample; None unless its content is the one wanted.

        ``content`` None takes any: what the store had is not known any more.
        """
        _, samples = self._shard(shard)
        found = samples.get(sample)
        return found if found and content in (None, found.content) else None

    def manifest_of(self, marker: Marker) -> bytes | None:
        """The very manifest that a marker names, if the replica still has it."""
        path = self.store.root / marker.manifest_name
        try:
            raw = self.store.filesystem.read(path)
            self.store.manifest(marker)
        except (OSError, StoreError):
            return None
        return raw

    def give(self, writer: ShardWriter, shard: int, wanted: StoredSample, key: str,
             previous: str | None) -> bool:  # fmt: skip
        """Stage a sample from the replica's bytes; False where those are damaged too."""
        manifest, _ = self._shard(shard)
        if manifest is None:
            return False
        try:
            states: NDArray[Any] = self._reader.read(wanted.sample, verify=True)
        except (SampleUnavailable, OSError):
            return False
        if digest.content_digest(states) != wanted.content:
            return False
        extent = self._target.samples.extent(wanted.sample)
        writer.add(
            extent, key, np.ascontiguousarray(states), manifest.origins[wanted.origin],
            previous=previous if previous != wanted.content else wanted.previous,
        )  # fmt: skip
        return True

    def _shard(self, shard: int) -> tuple[Manifest | None, dict[int, StoredSample]]:
        """The manifest of a shard and its stored samples by index; the latest shard's is kept."""
        if self._held[0] != shard:
            manifest = self._manifest(shard)
            samples = {s.sample: s for s in manifest.samples} if manifest else {}
            self._held = shard, manifest, samples
        return self._held[1:]

    def _manifest(self, shard: int) -> Manifest | None:
        if shard not in self._committed:
            return None
        version, absent = self._committed[shard]
        try:
            return self.store.manifest(self.store.read_marker(version, absent=absent))
        except (OSError, StoreError):
            return None


def _has_grown_from(store: Store, earlier: Store) -> bool:
    """Whether the plan of another copy is one that this very store had before it grew."""
    uuid, plan = store.identity.uuid, earlier.plan
    if (plan.store, plan.generation < store.plan.generation) != (uuid, True):
        return False
    try:
        ours = read_plan(store.filesystem, store.root, uuid, plan.generation)
    except (OSError, InvalidDocument):
        return False
    return ours.seal == plan.seal


def _what(store: Store) -> dict[str, object]:
    """What must be equal for two stores to hold the same states; the codec may differ."""
    identity, plan = store.identity, store.plan
    return {
        # Its name is that of the folder that it was in.
        "model": dataclasses.replace(identity.model, id=""),
        "capture": identity.capture,
        "chunk rows": identity.chunk_rows,
        "shard rows": identity.shard_rows,
        "dataset": plan.dataset,
        "sample table": plan.sample_table,
    }
