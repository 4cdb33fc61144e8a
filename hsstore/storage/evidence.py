"""What proves that a shard needs no other marker or manifest than those that it goes by."""

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from hsstore.errors import InvalidDocument, StoreError, UnsupportedFormat
from hsstore.model import keys
from hsstore.model.document import unseal
from hsstore.model.manifest import KIND, Chunk, Manifest
from hsstore.model.marker import Marker
from hsstore.storage.commit import is_file_of
from hsstore.storage.store import Store
from hsstore.storage.writer import verified_chunks


@dataclass(frozen=True, slots=True)
class Evidence:
    """The generation that a shard is proven to have, 0 for none."""

    store: Store
    shard: int
    marker: Marker | None = None
    manifest: Manifest | None = None

    @classmethod
    def of(cls, store: Store, shard: int, markers: Iterable[str]) -> Self | None:
        """The evidence of a shard without intents, given the names of its markers.

        Its newest marker, the manifest of that and the shard file must bear each other out; without
        a marker there must be no shard file, and the tokens must be whole, whose keys a manifest
        may prove. None where that does not hold, and everything may be wanted.
        """
        with contextlib.suppress(StoreError, OSError, LookupError, ValueError):
            if not (named := [*filter(None, map(keys.read_marker, markers))]):
                return cls._of_none(store, shard)
            newest = max(version for version, _ in named)
            (absent,) = (absent for version, absent in named if version == newest)
            return cls._of_marker(store, store.read_marker(newest, absent=absent))
        return None

    @classmethod
    def _of_none(cls, store: Store, shard: int) -> Self | None:
        if store.filesystem.exists(store.root / keys.shard_file(shard)):
            return None
        store.tokens(shard)
        return cls(store, shard)

    @classmethod
    def _of_marker(cls, store: Store, marker: Marker) -> Self | None:
        manifest = store.manifest(marker)
        shard = marker.version.shard
        path = store.root / keys.shard_file(shard)
        if not is_file_of(store.filesystem, path, marker, store.identity.geometry):
            return None
        return cls(store, shard, marker, manifest)

    @property
    def generation(self) -> int:
        """The committed generation, 0 where there is none."""
        return self.marker.version.generation if self.marker else 0

    def outdated(self, manifests: Iterable[str]) -> dict[str, int]:
        """Those of the shard's manifests that nothing names or ever will, with their generation."""
        named = self.marker.manifest_name.rpartition("/")[2] if self.marker else None
        found = {}
        for name in manifests:
            version = keys.read_manifest(name)
            if version is not None and name != named and self._is_outdated(name):
                found[name] = version[0].generation
        return found

    def _is_outdated(self, name: str) -> bool:
        """Whether a manifest certainly does not describe the file in place.

        A marker that was lost might have named it; then it is the only proof of what is there.
        """
        if self.manifest is None:
            return True
        path = self.store.root / keys.MANIFEST / name
        try:
            other = Manifest.from_document(unseal(self.store.filesystem.read(path), KIND))
        except InvalidDocument:
            return True
        except (UnsupportedFormat, OSError):
            return False
        theirs, ours = set(other.chunks), self.manifest
        if (other.data_bytes, other.index_xxh3_64) != (ours.data_bytes, ours.index_xxh3_64):
            return True
        disputed = [chunk for chunk in ours.chunks if chunk not in theirs]
        return not disputed or self._is_in_place(disputed[0])

    def _is_in_place(self, chunk: Chunk) -> bool:
        filesystem, path = self.store.filesystem, self.store.root / keys.shard_file(self.shard)
        try:
            with filesystem.opened(path) as fd:
                filesystem.forget_cached(fd)
                return verified_chunks(filesystem, fd, path, [chunk]) is not None
        except OSError:
            return False
