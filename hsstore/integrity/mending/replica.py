"""Taking verified samples from another store of the same model and capture.

As a rule that is a copy of the same store. It may as well have another codec, other chunks and
shards, or other samples: then a sample is found by its tokens. Nothing is used unverified.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.errors import IdentityMismatch, InvalidDocument, StoreError
from hsstore.integrity.mending.sample_rows import read_rows
from hsstore.integrity.mending.token_index import TokenIndex
from hsstore.model.identity import StoreIdentity
from hsstore.model.manifest import Manifest, StoredSample
from hsstore.model.marker import Marker
from hsstore.model.source import Origin, differences, expected_match
from hsstore.storage.roll_forward import valid_manifests
from hsstore.storage.store import Store, read_plan
from hsstore.storage.token_file import ShardTokens, token_digest
from hsstore.storage.writer import ShardWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

Shard = tuple[Manifest | None, dict[int, StoredSample]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sample to be had: its number and shard in the store that lacks it.

    ``content`` is the digest that its states had, None where that is not known any more.
    ``superseded`` says that these are false, and that what replaced them is wanted.
    """

    sample: int
    shard: int
    content: str | None
    superseded: bool = False

    def fits(self, found: StoredSample) -> bool:
        """Whether a stored sample, by its manifest, is what is wanted."""
        if self.superseded:
            return self.content is not None and found.previous == self.content
        return self.content in (None, found.content)


@dataclass(frozen=True, slots=True)
class Copy:
    """A sample as another store's manifest has it; its bytes are not verified yet."""

    manifest: Manifest
    stored: StoredSample

    @property
    def origin(self) -> Origin:
        """Where its states come from."""
        return self.manifest.origins[self.stored.origin]


class Replica:
    """Another store, as something to repair from. A damaged one gives what is whole of it.

    A copy from before the store grew will do: it lacks the shards that were added since.
    """

    def __init__(self, store: Store, path: str | Path) -> None:
        """Raise IdentityMismatch where the store at ``path`` is of another model or capture."""
        self.store = Store.open(path, to_check=True)
        _refuse_other(store.identity, self.store.identity, self.store.root)
        self._committed = self.store.committed()
        self._index: TokenIndex | None = None
        self._shard_held: tuple[int, Shard] = -1, (None, {})
        self._own_held: tuple[int, ShardTokens | None] = -1, None
        self.follow(store)

    def follow(self, store: Store) -> None:
        """Go on for the same store once its tokens or plan were mended."""
        self._target = store
        self._target_held: tuple[int, ShardTokens | None] = -1, None
        self._numbered_alike = _numbered_alike(store, self.store)

    def find(self, wanted: Wanted) -> Copy | None:
        """The first copy of a sample that fits by documents and tokens alone, None for none."""
        for number, shard in self._candidates(wanted):
            manifest, samples = self._shard(shard)
            stored = samples.get(number)
            if manifest and stored and wanted.fits(stored) and self._is_the_same(wanted, stored):
                copy = Copy(manifest, stored)
                if not differences(_match(self._target.identity), copy.origin.match):
                    return copy
        return None

    def manifest_of(self, marker: Marker) -> bytes | None:
        """The very manifest that a marker names, if the replica still has it."""
        path = self.store.root / marker.manifest_name
        try:
            raw = self.store.filesystem.read(path)
            self.store.manifest(marker)
        except (OSError, StoreError):
            return None
        return raw

    def give(self, writer: ShardWriter, wanted: Wanted, copy: Copy, key: str) -> bool:
        """Stage a sample from the replica's bytes; False where those are damaged too."""
        states: NDArray[Any] | None = read_rows(self.store, copy.manifest, copy.stored)
        if states is None:
            return False
        extent = self._target.samples.extent(wanted.sample)
        content, before = copy.stored.content, copy.stored.previous
        writer.add(
            extent, key, np.ascontiguousarray(states), copy.origin,
            previous=before if wanted.content == content else wanted.content,
        )  # fmt: skip
        return True

    # -- which of its samples ------------------------------------------------------------------

    def _candidates(self, wanted: Wanted) -> Iterator[tuple[int, int]]:
        """The numbers that a sample may have here, each with its shard."""
        if self._numbered_alike:
            yield wanted.sample, wanted.shard
            return
        tokens = self._target_tokens(wanted.shard)
        if tokens is None:
            return
        _, ids, _ = tokens.sample(wanted.sample - tokens.first_sample)
        self._index = self._index or TokenIndex(self.store)
        for number in self._index.find(token_digest(ids)):
            try:
                yield number, self.store.samples.extent(number).shard
            except (StoreError, OSError):
                return

    def _is_the_same(self, wanted: Wanted, stored: StoredSample) -> bool:
        """Whether a sample found by the digest of its tokens is proven to be the one wanted.

        An equal content digest proves it; else key and tokens must be equal, whole on both sides.
        """
        if self._numbered_alike or (wanted.content == stored.content and not wanted.superseded):
            return True
        ours = self._target_tokens(wanted.shard)
        theirs = self._own_tokens(self.store.samples.extent(stored.sample).shard)
        if ours is None or theirs is None:
            return False
        key, ids, _ = ours.sample(wanted.sample - ours.first_sample)
        their_key, their_ids, _ = theirs.sample(stored.sample - theirs.first_sample)
        return key == their_key and np.array_equal(ids, their_ids)

    def _target_tokens(self, shard: int) -> ShardTokens | None:
        if self._target_held[0] != shard:
            self._target_held = shard, _whole_tokens(self._target, shard)
        return self._target_held[1]

    def _own_tokens(self, shard: int) -> ShardTokens | None:
        if self._own_held[0] != shard:
            self._own_held = shard, _whole_tokens(self.store, shard)
        return self._own_held[1]

    def _shard(self, shard: int) -> Shard:
        """The manifest of a shard and its stored samples by index; the latest shard's is kept."""
        if self._shard_held[0] != shard:
            manifest = self._manifest(shard)
            samples = {s.sample: s for s in manifest.samples} if manifest else {}
            self._shard_held = shard, (manifest, samples)
        return self._shard_held[1]

    def _manifest(self, shard: int) -> Manifest | None:
        """What the marker names, else the newest that is whole: bytes are verified in any case."""
        try:
            if shard in self._committed:
                version, absent = self._committed[shard]
                return self.store.manifest(self.store.read_marker(version, absent=absent))
        except (OSError, StoreError):
            pass
        try:
            found = valid_manifests(self.store, shard)
        except OSError:
            return None
        return found[0][0] if found else None


def _whole_tokens(store: Store, shard: int) -> ShardTokens | None:
    try:
        return store.tokens(shard)
    except (StoreError, OSError, LookupError):
        return None


def _match(identity: StoreIdentity) -> dict[str, str | None]:
    return expected_match(identity.model, identity.capture)


def _refuse_other(ours: StoreIdentity, theirs: StoreIdentity, place: Path) -> None:
    """IdentityMismatch unless states of one store can stand in the other."""
    found = differences(_match(ours), _match(theirs))
    names = ("model_type", "num_layers", "hidden_size", "vocab_size")
    for name in names:
        one, other = getattr(ours.model, name), getattr(theirs.model, name)
        found += [f"{name} is {other!r}, not {one!r}"] if one != other else []
    if found:
        raise IdentityMismatch(
            f"the replica holds something else than the store: {'; '.join(found)}",
            place=str(place),
            remedy="give a store of the same model, layers and dtype",
        )


def _numbered_alike(store: Store, other: Store) -> bool:
    """Whether a sample has the same number and shard in both, as in a copy, also an earlier one."""
    ours, theirs = store.plan, other.plan
    shapes = [(s.identity.chunk_rows, s.identity.shard_rows) for s in (store, other)]
    if shapes[0] != shapes[1]:
        return False
    same = (ours.dataset, ours.sample_table) == (theirs.dataset, theirs.sample_table)
    return same or _has_grown_from(store, other) or _has_grown_from(other, store)


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
