"""Filling a store: every shard that is not committed yet, from one source."""

from collections.abc import Callable
from dataclasses import dataclass, field

from hsstore.errors import ClaimedByAnother
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import Marker
from hsstore.model.progress import Progress, Silent
from hsstore.model.source import (
    Extracted,
    HiddenStateSource,
    Origin,
)
from hsstore.storage.claim import Claim, claimed
from hsstore.storage.commit import commit_new
from hsstore.storage.fill import fill
from hsstore.storage.leftovers import clear_leftovers
from hsstore.storage.provenance import Provenance, refuse_other_origin
from hsstore.storage.roll_forward import roll_forward
from hsstore.storage.stage import staging, take_over
from hsstore.storage.store import Store
from hsstore.storage.writer import ShardWriter


@dataclass(slots=True)
class ExtractionSummary:
    """What an extraction did. Samples and tokens are those computed now, not those found staged."""

    shards_total: int
    shards_committed_before: int = 0
    shards_committed: int = 0
    samples_extracted: int = 0
    samples_resumed: int = 0
    samples_failed: int = 0
    tokens_extracted: int = 0
    shards_claimed_by_others: list[int] = field(default_factory=list)
    samples_absent: int = 0
    stopped: bool = False

    @property
    def complete(self) -> bool:
        """Whether every shard is committed."""
        return self.shards_committed_before + self.shards_committed == self.shards_total


def extract(
    store: Store,
    source: HiddenStateSource,
    *,
    shards: range | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> ExtractionSummary:
    """Compute and commit the missing shards of a store, or of a range of its shards.

    Resumes what earlier runs journalled. ``stop`` is asked between samples; once true, what is
    journalled stays and the summary says so. Raises IdentityMismatch where the source is another
    than the store's, SourceError, OSError; nothing that was journalled is lost then.
    """
    return _Extraction(store, source, progress or Silent(), stop).run(shards)


def already_filled(
    store: Store, shards: range | None = None, progress: Progress | None = None
) -> ExtractionSummary | None:
    """What ``extract`` would say of a store, or range, that lacks nothing; None where it does.

    No source is needed for that, and leftovers are cleared all the same.
    """
    wanted = shards if shards is not None else range(store.plan.shards)
    committed = store.committed()
    if any(shard not in committed for shard in wanted):
        return None
    clear_leftovers(store, progress or Silent())
    return ExtractionSummary(store.plan.shards, len(committed))


class _Extraction:
    def __init__(self, store: Store, source: HiddenStateSource, progress: Progress,
                 stop: Callable[[], bool]) -> None:  # fmt: skip
        self.store = store
        self.source = source
        self.progress = progress
        self.stop = stop
        self.origin: Origin = source.origin()
        self.provenance = Provenance(store)
        self.summary = ExtractionSummary(store.plan.shards)

    def run(self, shards: range | None) -> ExtractionSummary:
        self.provenance.refuse_contradiction([self.origin])
        clear_leftovers(self.store, self.progress)
        committed = self.store.committed()
        self.summary.shards_committed_before = len(committed)
        wanted = shards if shards is not None else range(self.store.plan.shards)
        table = self.store.samples
        done = sum(int(table.length[table.shard_samples(s)].sum()) for s in committed)
        self.progress.start(self.store.plan.tokens, done, "tok")
        for shard in wanted:
            if shard in committed:
                continue
            if self._stopping():
                break
            try:
                self._shard(shard)
            except ClaimedByAnother as error:
                self.summary.shards_claimed_by_others.append(shard)
                self.progress.note(str(error))
        return self.summary

    def _shard(self, shard: int) -> None:
        store = self.store
        with claimed(store.filesystem, store.root, store.identity.uuid, shard) as claim:
            try:
                marker = self._commit(shard, claim)
            except FileNotFoundError:
                # A rival that took over has renamed our staging folder: then say just that.
                claim.verify()
                raise
        if marker is not None:
            self.summary.shards_committed += 1
            self.summary.samples_absent += marker.absent

    def _commit(self, shard: int, claim: Claim) -> Marker | None:
        store = self.store
        if take_over(store, claim) is not None:
            self.summary.shards_committed_before += 1
            return None
        if (marker := roll_forward(store, shard)) is not None:
            self.progress.advance(marker.tokens)
            self.progress.note(f"shard {shard} was whole but unmarked: committed")
            return marker
        with staging(store, ShardVersion(shard, 1), claim) as writer:
            for earlier in writer.journal.origins:
                refuse_other_origin(
                    earlier,
                    self.origin,
                    str(writer.folder),
                    remedy="use the model that began this shard, or remove that folder to give up "
                    "what it holds",
                )
            self._fill(writer, shard)
            if self.summary.stopped:
                return None
            staged = writer.finish(store.samples.shard_samples(shard))
        self.provenance.refuse_contradiction(writer.journal.origins)
        commit_new(store.filesystem, store.root, staged, claim)
        return staged.marker

    def _fill(self, writer: ShardWriter, shard: int) -> None:
        samples = self.store.samples
        settled = writer.journal.settled()
        extents = {s: samples.extent(s) for s in samples.shard_samples(shard)}
        self.summary.samples_resumed += len(settled)
        self.progress.advance(sum(extents[s].rows for s in settled))
        todo = [extent for sample, extent in extents.items() if sample not in settled]
        if not todo:
            return
        tokens = self.store.tokens(shard)
        for extent, key, answer in fill(
            writer, tokens, todo, self.source, self.origin, stop=self._stopping
        ):
            if isinstance(answer, Extracted):
                self.summary.samples_extracted += 1
                self.summary.tokens_extracted += extent.rows
            else:
                self.summary.samples_failed += 1
                self.progress.note(f"sample {key!r} failed: {answer.kind}, {answer.detail}")
            self.progress.advance(extent.rows)

    def _stopping(self) -> bool:
        self.summary.stopped = self.summary.stopped or self.stop()
        return self.summary.stopped
