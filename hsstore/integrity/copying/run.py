"""One run of a copy: the destination, then shard by shard what it lacks, each under its claim."""

import contextlib
from abc import ABC, abstractmethod

from hsstore.errors import ClaimedByAnother, StoreExists
from hsstore.integrity.copying.meter import Meter
from hsstore.integrity.copying.place import Place
from hsstore.integrity.copying.result import CopyResult
from hsstore.integrity.copying.room import staged_bytes
from hsstore.integrity.copying.version import Damaged, go_on
from hsstore.integrity.examine import Listing, examine
from hsstore.model import keys
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import Marker
from hsstore.storage.claim import Claim, claimed
from hsstore.storage.leftovers import clear_leftovers
from hsstore.storage.roll_forward import roll_forward
from hsstore.storage.stage import take_over
from hsstore.storage.store import Store


class Run(ABC):
    """What is the same for a copy of all of a store and for a new store cut from it.

    ``at_source`` is what was committed at the source when it was listed, ``listing`` its markers
    and intents, ``store`` the destination once it is there.
    """

    store: Store

    def __init__(self, place: Place, *, same_store: bool) -> None:
        self.place = place
        self.subject = place.subject
        self.listing = Listing(place.subject)
        self.at_source = place.source.committed()
        self.meter = Meter(place.progress)
        self.result = CopyResult(place.source.root, place.target, "", same_store, 0)
        self._told: set[tuple[str, str | None, int | None]] = set()

    @abstractmethod
    def first_bytes(self) -> int:
        """What all shards together take, before there is a destination to look at."""

    @abstractmethod
    def build(self) -> None:
        """Make the destination. Raises StoreExists where another was faster."""

    @abstractmethod
    def refuse_another(self) -> None:
        """StoreExists unless the store that is there is one to go on with."""

    @abstractmethod
    def prepare(self) -> None:
        """Bring what is at the destination up to the source, but for its shards."""

    @abstractmethod
    def lacking(self) -> dict[int, int]:
        """The shards to copy, each with the bytes on disk that it may take."""

    @abstractmethod
    def payload_bytes(self, shard: int) -> int:
        """The bytes of a shard that are to be copied, for whoever watches."""

    @abstractmethod
    def parents(self, shard: int) -> list[int]:
        """The shards of the source that a shard is copied from."""

    @abstractmethod
    def known(self, shard: int) -> Marker | None:
        """The marker that a shard is to have, where that is settled."""

    @abstractmethod
    def copy(self, claim: Claim, found: ShardVersion | None) -> bool:
        """Copy a claimed shard, of which ``found`` is committed; False where nothing is to be done.

        Raises Damaged.
        """

    @abstractmethod
    def finish(self) -> None:
        """Bring what follows the shards."""

    def run(self) -> CopyResult:
        """Do it. Raises as copy_store."""
        self.store = self._made()
        self.prepare()
        clear_leftovers(self.store, self.place.progress)
        self.result.uuid = self.store.identity.uuid
        self.result.shards = self.store.plan.shards
        self._copy_all(self._sized(self.lacking()))
        self.finish()
        self.result.bytes_copied = self.meter.bytes_copied
        return self.result

    def _made(self) -> Store:
        """The destination, made if need be; another copy may be making it at this moment."""
        if self._is_free():
            self.refuse_full(self.first_bytes())
            with contextlib.suppress(StoreExists):
                self.build()
        self.refuse_another()
        return self.place.opened()

    def _is_free(self) -> bool:
        """Whether there is nothing at the destination; StoreExists where it is no store."""
        target, filesystem = self.place.target, self.place.filesystem
        if filesystem.exists(target) and (not target.is_dir() or filesystem.names(target)):
            # Asked for last: a store appears there at once.
            if filesystem.exists(target / keys.IDENTITY):
                return False
            raise StoreExists(
                "something other than a store is there",
                place=str(target),
                remedy="choose another path; nothing was written",
            )
        return True

    def refuse_full(self, needed: int) -> None:
        """OutOfSpace where all of it together does not fit."""
        self.place.room.require(needed, "what is to be copied")

    def _sized(self, lacking: dict[int, int]) -> dict[int, int]:
        """What each shard takes beside what is staged of it."""
        staged = staged_bytes(self.store)
        return {shard: max(size - staged.get(shard, 0), 0) for shard, size in lacking.items()}

    def _copy_all(self, needed: dict[int, int]) -> None:
        self.refuse_full(sum(needed.values()))
        payload = {shard: self.payload_bytes(shard) for shard in needed}
        self.place.progress.start(sum(payload.values()), 0, "B")
        for shard, size in needed.items():
            go_on(self.place.stop)
            self.place.room.require(size, f"shard {shard}")
            self.meter.begin(payload[shard])
            self._copy_if_whole(shard)
            self.meter.end()

    def _copy_if_whole(self, shard: int) -> None:
        try:
            try:
                self._copy_one(shard)
            except Damaged:
                # Replaced meanwhile, or read wrong once: the second look is by a new listing.
                self.listing = self.listing.now()
                self._copy_one(shard)
        except ClaimedByAnother as error:
            self.result.held.append(shard)
            self.place.progress.note(str(error))
        except Damaged as damaged:
            self._leave_out(shard, damaged)

    def _copy_one(self, shard: int) -> None:
        store = self.store
        with claimed(store.filesystem, store.root, store.identity.uuid, shard) as claim:
            committed = take_over(store, claim)
            found = committed[0] if committed else None
            forward = None if found else roll_forward(store, claim, known=self.known(shard))
            try:
                copied = self.copy(claim, found or (forward.version if forward else None))
            except Damaged:
                store.filesystem.remove_folder(store.root / keys.stage(shard, claim.writer))
                raise
        if copied or forward:
            self.result.replaced += found is not None
            self.result.copied += found is None
            self.place.progress.event("shard-committed", {"shard": shard})

    def _leave_out(self, shard: int, damaged: Damaged) -> None:
        """Say in the words of a check what is wrong with what the shard is copied from."""
        cases = (examine(self.subject, parent, self.listing) for parent in self.parents(shard))
        found = [f for case in cases for f in case.findings]
        errors = [f for f in found if f.severity == "error" and f.kind != "sample-absent"]
        new = [f for f in errors if (f.kind, f.path, f.chunk) not in self._told]
        self._told |= {(f.kind, f.path, f.chunk) for f in new}
        self.result.findings += new
        self.result.damaged.append(shard)
        self.place.progress.note(f"shard {shard} is left out: {damaged}")

    def leave_out(self, name: str) -> None:
        """A document of the source is not whole, or not there."""
        if name not in self.result.left_out:
            self.result.left_out.append(name)
