"""The same store at another place."""

import contextlib

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.integrity.copying import twin
from hsstore.integrity.copying.place import Place
from hsstore.integrity.copying.plain import copy_version
from hsstore.integrity.copying.room import BESIDE_BYTES, allocated, staged_bytes
from hsstore.integrity.copying.run import Run
from hsstore.integrity.copying.version import Damaged, Version, versions
from hsstore.model import keys
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import Marker
from hsstore.storage.claim import Claim


class PlainCopy(Run):
    """A run that makes, or completes, a replica."""

    def __init__(self, place: Place) -> None:
        super().__init__(place, same_store=True)

    def first_bytes(self) -> int:
        """What the committed shards of the source take."""
        return sum(map(self._size, self.at_source))

    def build(self) -> None:
        """Make the same store, without its shards."""
        twin.build_twin(self.place, self.leave_out)

    def refuse_another(self) -> None:
        """StoreExists unless it is the same store, of the same plans as far as both go."""
        twin.refuse_another(self.place)

    def prepare(self) -> None:
        """Follow growths, and add documents that came since."""
        self._tell_unfinished()
        self.store = twin.grow(self.place.source, self.store, self.place.progress)
        twin.add_documents(self.subject, self.store, self.leave_out)
        for name in twin.lacking(self.store):
            self.leave_out(name)

    def _tell_unfinished(self) -> None:
        """Say what at the source is work under way, which a copy does not have."""
        source, notes = self.place.source, self.result.notes
        intents = [s for s in range(source.plan.shards) if self.listing.of(s)[1]]
        if intents:
            notes.append(
                "replacements that are decided and not finished at the source (shard "
                f"{intents[0]}, {len(intents)} in all): each such shard is copied as it is in "
                "place now; finish them there, then copy again"
            )
        with contextlib.suppress(OSError):
            if staged_bytes(source):
                notes.append(
                    "samples journalled at the source, in stage/, are not copied: finish there "
                    "first, then copy again"
                )

    # -- which shards ------------------------------------------------------------------------------

    def lacking(self) -> dict[int, int]:
        """Shards that are not at the copy, or there in an older generation."""
        sizes, there = {}, self.store.committed()
        for shard in range(self.place.source.plan.shards):
            if shard not in self.at_source and not self._is_in_place(shard):
                self.result.missing.append(shard)
            elif shard not in there or self._is_older(there[shard]):
                sizes[shard] = self._size(shard)
            elif self._is_same(there[shard]):
                self.result.before += 1
            else:
                self.result.differing.append(shard)
        return sizes

    def _is_in_place(self, shard: int) -> bool:
        return self.subject.filesystem.exists(self.subject.root / keys.shard_file(shard))

    def _size(self, shard: int) -> int:
        path = self.subject.root / keys.shard_file(shard)
        return allocated(self.subject.filesystem, path) + BESIDE_BYTES

    def _is_older(self, there: tuple[ShardVersion, bool]) -> bool:
        version, _ = there
        ours = self.at_source.get(version.shard)
        return ours is not None and version < ours[0]

    def _is_same(self, there: tuple[ShardVersion, bool]) -> bool:
        """Whether the copy has a shard as the source has it, as far as marker and size tell."""
        version, absent = there
        path = self.store.root / keys.shard_file(version.shard)
        try:
            theirs = self.store.read_marker(version, absent=absent)
            size = self.store.filesystem.status(path).st_size
        except (InvalidDocument, UnsupportedFormat, FileNotFoundError):
            return False
        return size == theirs.data_bytes and theirs in self._markers(version.shard)

    def _markers(self, shard: int) -> list[Marker]:
        """What the source has of a shard, by its marker or by an intent."""
        if not self.listing.of(shard)[1]:
            version, absent = self.at_source[shard]
            with contextlib.suppress(InvalidDocument, UnsupportedFormat, OSError):
                return [self.place.source.read_marker(version, absent=absent)]
        return [version.marker for version in self._versions(shard)]

    # -- one shard ---------------------------------------------------------------------------------

    def payload_bytes(self, shard: int) -> int:
        """The size of the shard file, by its marker."""
        if shard not in self.at_source:
            return 0
        return max((marker.data_bytes for marker in self._markers(shard)), default=0)

    def parents(self, shard: int) -> list[int]:
        """The same shard."""
        return [shard]

    def known(self, shard: int) -> Marker | None:
        """The marker of the source."""
        found = self._versions(shard)
        return found[0].marker if found else None

    def copy(self, claim: Claim, found: ShardVersion | None) -> bool:
        """Copy the generation that is in place."""
        wanted = self._versions(claim.shard)
        if not wanted:
            raise Damaged("no marker and manifest that are whole say what it holds")
        newer = [v for v in wanted if found is None or v.marker.version > found]
        for version in newer:
            try:
                copy_version(
                    self.subject, version, self.store, claim,
                    replaces=found, meter=self.meter, stop=self.place.stop,
                )  # fmt: skip
            except Damaged:
                if version is newer[-1]:
                    raise
            else:
                return True
        return False

    def finish(self) -> None:
        """All documents were there before the shards."""

    def _versions(self, shard: int) -> list[Version]:
        return versions(self.subject, shard, self.listing)
