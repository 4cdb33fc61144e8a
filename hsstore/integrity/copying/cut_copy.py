"""Making a new store of a part of another, or with another codec."""

from functools import cached_property

from hsstore.integrity.copying import cut as cuts
from hsstore.integrity.copying.cut import Cut, Cutter
from hsstore.integrity.copying.cut_waivers import carry_waivers
from hsstore.integrity.copying.place import Place
from hsstore.integrity.copying.run import Run
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import Marker
from hsstore.storage.claim import Claim


class CutCopy(Run):
    """A run that makes, or completes, a new store."""

    def __init__(self, place: Place, cut: Cut) -> None:
        super().__init__(place, same_store=False)
        self._cut = cut

    def first_bytes(self) -> int:
        """What its shards take where they are not compressed."""
        return sum(self._cut.shard_bytes())

    def build(self) -> None:
        """Make it from the token files of the source."""
        cuts.build_cut(self._cut, self.place.target, self.place.filesystem, self.place.progress)

    def refuse_another(self) -> None:
        """StoreExists unless it is one of the same samples and layers, from the same parent."""
        cuts.refuse_another(self._cut, self.place.opened())

    def prepare(self) -> None:
        """What it has besides shards was made with it; calibrations are the parent's own."""

    def refuse_full(self, needed: int) -> None:
        """OutOfSpace where it does not fit: how far states compress shows only once they are.

        So of a compressed store one shard must fit before the first, and each when it is its turn.
        """
        compressed = self._cut.codec != "none"
        super().refuse_full(min(needed, max(self._cut.shard_bytes())) if compressed else needed)

    @cached_property
    def _cutter(self) -> Cutter:
        return Cutter(self._cut, self.subject, self.store, self.meter, self.place.stop)

    def lacking(self) -> dict[int, int]:
        """Shards that are not there, and of which the source has all samples."""
        there = self.store.committed()
        self.result.before = len(there)
        sizes = enumerate(self._cut.shard_bytes())
        return {k: size for k, size in sizes if k not in there and self._is_at_source(k)}

    def _is_at_source(self, shard: int) -> bool:
        parents = self.parents(shard)
        lacking = [parent for parent in parents if parent not in self.at_source]
        if lacking:
            self.result.missing.append(shard)
        if 0 < len(lacking) < len(parents):
            self.leave_out(f"shard {shard}: shard {lacking[0]} of the source is not committed")
        return not lacking

    def payload_bytes(self, shard: int) -> int:
        """The bytes of the states in a shard."""
        samples = self.store.samples.shard_samples(shard)
        rows = int(self.store.samples.length[samples].sum())
        return rows * self.store.identity.geometry.row_bytes

    def parents(self, shard: int) -> list[int]:
        """The shards that hold its samples."""
        return self._cutter.parents(shard)

    def known(self, shard: int) -> Marker | None:  # noqa: ARG002 - settled only when it is made
        """None: each copy is one of its own."""
        return None

    def copy(self, claim: Claim, found: ShardVersion | None) -> bool:
        """Fill it."""
        if found is not None:
            return False
        self._cutter.copy(claim.shard, claim)
        return True

    def finish(self) -> None:
        """What is waived there is waived here."""
        carry_waivers(self._cut, self.store)
