"""One shard between its claim and its commit."""

import contextlib
from collections.abc import Callable
from contextlib import ExitStack

from hsstore.model.footprint import companion_bytes
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import Marker
from hsstore.model.source import Origin, Request
from hsstore.storage.claim import Claim, claimed, naming_a_rival
from hsstore.storage.commit import commit
from hsstore.storage.provenance import Provenance, refuse_other_origin
from hsstore.storage.roll_forward import roll_forward
from hsstore.storage.stage import staging, take_over
from hsstore.storage.store import Store
from hsstore.storage.writer import ShardWriter


class OpenShard:
    """A claimed shard whose staging folder is open, until it is committed or closed."""

    def __init__(
        self, store: Store, claim: Claim, writer: ShardWriter, claim_held: ExitStack,
        staging_open: ExitStack,
    ) -> None:  # fmt: skip
        self.shard = claim.shard
        self.writer = writer
        self.samples = store.samples.shard_samples(claim.shard)
        self.unsettled = set(self.samples) - writer.journal.settled()
        self._own: set[int] = set()
        self._has_room = False
        self._store = store
        self._claim = claim
        self._claim_held = claim_held
        self._staging_open = staging_open

    def requests(self) -> list[Request]:
        """What is still to be computed, in dataset order. Raises InvalidDocument, OSError."""
        if not self.unsettled:
            return []
        tokens = self._store.tokens(self.shard)
        asked = []
        for sample in sorted(self.unsettled):
            key, ids, _ = tokens.sample(sample - tokens.first_sample)
            asked.append(Request(sample, key, ids))
        return asked

    def settle(self, sample: int) -> None:
        """Remember what this run staged."""
        self.unsettled.discard(sample)
        self._own.add(sample)

    def succeed(self, earlier: "OpenShard") -> None:
        """Count as this run's what it had staged when it had the same shard open ``earlier``."""
        self._own = earlier._own & self.writer.journal.settled()  # noqa: SLF001 - of its own kind

    @property
    def extracted(self) -> int:
        """Samples that this run stored."""
        return len(self.writer.journal.samples.keys() & self._own)

    @property
    def failed(self) -> int:
        """Samples that failed in this run."""
        return len(self.writer.journal.failures.keys() & self._own)

    @property
    def resumed(self) -> int:
        """Samples that earlier runs stored."""
        return len(self.writer.journal.samples.keys() - self._own)

    @property
    def absent_before(self) -> int:
        """Samples that failed in earlier runs."""
        return len(self.writer.journal.failures.keys() - self._own)

    @property
    def tokens(self) -> int:
        """Tokens of the samples that this run stored."""
        stored = self.writer.journal.samples
        return sum(stored[sample].rows for sample in stored.keys() & self._own)

    def tokens_settled(self) -> int:
        """Tokens of all samples that are stored or have failed."""
        extent = self._store.samples.extent
        return sum(extent(sample).rows for sample in self.samples if sample not in self.unsettled)

    def make_room(self, has: Callable[[int], bool]) -> bool:
        """Reserve the space for all that is unsettled, once ``has`` says that there is enough.

        Raises OSError where the filesystem refuses.
        """
        if not self._has_room:
            geometry, extent = self._store.identity.geometry, self._store.samples.extent
            lacking = [extent(sample) for sample in sorted(self.unsettled)]
            beside = companion_bytes([extent(sample) for sample in self.samples], geometry)
            if not has(sum(each.rows for each in lacking) * geometry.row_bytes + beside):
                return False
            self.writer.reserve(lacking)
            self._has_room = True
        return True

    def verify_claim(self) -> None:
        """ClaimedByAnother where another writer took over."""
        self._claim.verify()

    def commit(self, provenance: Provenance) -> Marker:
        """Finish and commit the shard, all of whose samples are settled, and let go of it.

        Raises ClaimedByAnother where another writer took over or came first.
        """
        with naming_a_rival(self._claim):
            staged = self.writer.finish(self.samples)
            self._staging_open.close()
            provenance.refuse_contradiction(self.writer.journal.origins)
            store = self._store
            commit(store.filesystem, store.root, staged, self._claim, store.identity)
        self._claim_held.close()
        return staged.marker

    def close(self) -> None:
        """Make what is staged durable and let go of the shard; twice does no harm.

        Where nothing was staged, its folder goes, and with it the space that was reserved.
        """
        try:
            self._staging_open.close()
            if not self.writer.journal.settled():
                # By its own name: what a takeover has renamed is no longer ours to remove.
                with contextlib.suppress(OSError):
                    self._store.filesystem.remove_folder(self.writer.folder)
        finally:
            self._claim_held.close()


def take(
    store: Store, shard: int, origin: Origin
) -> OpenShard | Marker | tuple[ShardVersion, bool]:
    """Claim a shard, and open it with what earlier writers journalled.

    A Marker where it was whole but for that marker, which is there now; where somebody else
    has committed it, that version and whether samples are absent in it. Raises ClaimedByAnother
    while a live writer holds it, and IdentityMismatch where what is journalled is of another
    origin.
    """
    with ExitStack() as claim_held:
        claim = claim_held.enter_context(
            claimed(store.filesystem, store.root, store.identity.uuid, shard)
        )
        with ExitStack() as staging_open:
            if (committed := take_over(store, claim)) is not None:
                return committed
            if (marker := roll_forward(store, claim)) is not None:
                return marker
            writer = staging_open.enter_context(staging(store, ShardVersion(shard, 1), claim))
            _refuse_other_origins(writer, origin)
            return OpenShard(store, claim, writer, claim_held.pop_all(), staging_open.pop_all())


def _refuse_other_origins(writer: ShardWriter, origin: Origin) -> None:
    for earlier in writer.journal.origins:
        refuse_other_origin(
            earlier,
            origin,
            str(writer.folder),
            remedy="use the model that began this shard, or remove that folder to give up "
            "what it holds",
        )
