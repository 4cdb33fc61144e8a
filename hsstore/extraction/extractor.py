"""Filling a store: every shard that is not committed yet, from one source."""

import contextlib
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cached_property

from hsstore.errors import ClaimedByAnother, HsstoreError, MalformedInput, SourceError
from hsstore.extraction.account import Account, ExtractionSummary, Ledger
from hsstore.extraction.open_shard import OpenShard, take
from hsstore.extraction.order import ORDERS, in_order
from hsstore.extraction.pace import Pace, Stopwatch
from hsstore.model.marker import Marker
from hsstore.model.progress import Progress, Silent
from hsstore.model.source import Extracted, Failed, HiddenStateSource, Request, Waiting
from hsstore.model.waits import Waits
from hsstore.storage.durability import Durability
from hsstore.storage.fill import Stager, answered
from hsstore.storage.leftovers import clear_leftovers
from hsstore.storage.lost_plan import refuse_lost_plan
from hsstore.storage.provenance import Provenance
from hsstore.storage.space import available
from hsstore.storage.store import Store
from hsstore.storage.writer import ShardWriter

__all__ = ["Account", "Extraction", "ExtractionSummary", "already_filled", "extract"]

# A claim that was lost is found at the commit anyway; this saves computing for another writer.
VERIFY_SECONDS = 10.0


def extract(
    store: Store,
    source: HiddenStateSource,
    *,
    shards: range | None = None,
    order: str = "dataset",
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> ExtractionSummary:
    """Compute and commit the missing shards of a store, or of a range of its shards.

    Resumes what earlier runs journalled. ``order`` is a name of ``hsstore.extraction.order``.
    ``stop`` is asked between samples; once true, nothing more is asked for, what is on its way is
    still staged, and the summary says so. Raises MalformedInput for an unknown order,
    IdentityMismatch where the source is another than the store's, SourceError, OSError; nothing
    that was journalled is lost then.
    """
    extraction = Extraction(store, source, shards=shards, order=order, progress=progress, stop=stop)
    extraction.run()
    return extraction.summary()


def already_filled(
    store: Store, shards: range | None = None, progress: Progress | None = None
) -> ExtractionSummary | None:
    """What ``extract`` would say of a store, or range, that lacks nothing; None where it does.

    No source is needed for that, and leftovers are cleared all the same.
    """
    refuse_lost_plan(store)
    ledger = Ledger(store, shards if shards is not None else range(store.plan.shards))
    if not ledger.finished:
        return None
    clear_leftovers(store, progress or Silent())
    return ledger.summary()


class Extraction:
    """One run over a range of shards. ``summary()`` may be asked for however the run ended.

    An unknown ``order`` raises MalformedInput.

    The source is asked for the samples of one shard after the other without a pause in between:
    answers may come in any order, and a shard is committed once all of its own are there.
    """

    def __init__(
        self,
        store: Store,
        source: HiddenStateSource,
        *,
        shards: range | None = None,
        order: str = "dataset",
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        if order not in ORDERS:
            raise MalformedInput(
                f"no order is called {order!r}", remedy=f"give one of: {', '.join(ORDERS)}"
            )
        self._store = store
        self._source = source
        self._wanted = shards if shards is not None else range(store.plan.shards)
        self._order = order
        self._progress = progress or Silent()
        self._stop = stop
        self._stopped = False
        self._open: dict[int, OpenShard] = {}
        self._failure: HsstoreError | OSError | None = None
        self._verified_at = time.monotonic()
        self._origin = source.origin()
        self._provenance = Provenance(store)
        self._stager = Stager(store, self._provenance, self._origin)
        self._durability = Durability(source)
        self._waits = Waits(self._progress)
        self._watch = Stopwatch()
        self._pace = Pace(self._watch, store.identity.geometry.row_bytes, 0)
        self._failed = 0

    def run(self) -> None:
        """Fill the range. Raises as ``extract`` does."""
        refuse_lost_plan(self._store)
        self._provenance.refuse_contradiction([self._origin])
        self._begin()
        try:
            with self._closing():
                self._fill()
        except SourceError as error:
            # What ended the requests came first, and may be why the source gave up.
            if self._failure is None:
                raise
            raise self._failure from error
        finally:
            self._waits.over()
        if self._failure:
            raise self._failure

    def summary(self) -> ExtractionSummary:
        """What was done so far, every sample of the range accounted for. Raises OSError."""
        summary = self._ledger.summary()
        summary.stopped = self._stopped and not self._ledger.finished
        summary.seconds = self._watch.clock() - self._watch.began
        summary.seconds_source = self._watch.seconds("source")
        summary.seconds_disk = self._watch.seconds("disk")
        return summary

    @cached_property
    def _ledger(self) -> Ledger:
        """Made when first needed: what clearing leftovers finishes is to be in it."""
        return Ledger(self._store, self._wanted)

    # -- asking --------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._progress.event(
            "begin",
            {
                "store": str(self._store.root),
                "uuid": self._store.identity.uuid,
                "shards": [self._wanted.start, self._wanted.stop - 1],
                "order": self._order,
                "source": self._origin.to_document(),
            },
        )
        clear_leftovers(self._store, self._progress)
        total = sum(map(self._tokens, self._wanted))
        done = sum(self._tokens(s) for s in self._wanted if s in self._ledger.committed_before)
        self._pace.tokens_left = total - done
        self._progress.start(total, done, "tok")

    def _requests(self) -> Iterator[Request]:
        """What is to be computed. An error ends the asking; what is on its way is still staged."""
        try:
            for shard, request in in_order(self._shards(), self._order):
                if self._stopping():
                    return
                if shard.shard in self._open:
                    yield request
        except (HsstoreError, OSError) as error:
            self._failure = error

    def _shards(self) -> Iterator[OpenShard]:
        """The shards that lack something, each claimed and opened when its turn comes."""
        for number in self._wanted:
            if number in self._ledger.committed_before:
                continue
            if self._stopping():
                return
            with self._watch.on("disk"):
                shard = self._take(number)
            if shard is not None:
                yield shard

    def _take(self, number: int) -> OpenShard | None:
        try:
            taken = take(self._store, number, self._origin)
        except ClaimedByAnother as error:
            self._pass_over(number, self._tokens(number), error)
            return None
        if isinstance(taken, OpenShard):
            return self._opened(taken)
        if isinstance(taken, Marker):
            self._ledger.rolled_forward(number, taken)
            self._progress.note(f"shard {number} was whole but unmarked: committed")
            self._tell_committed(taken)
        else:
            self._ledger.committed_by_another(number, taken)
        self._found(self._tokens(number))
        return None

    def _opened(self, shard: OpenShard) -> OpenShard | None:
        self._open[shard.shard] = shard
        self._ledger.opened(shard)
        extent = self._store.samples.extent
        self._found(sum(extent(s).rows for s in shard.writer.journal.settled()))
        if shard.unsettled:
            return shard
        with self._passing_over(shard):
            self._commit(shard)
        return None

    def _found(self, tokens: int) -> None:
        self._pace.tokens_left -= tokens
        self._progress.advance(tokens)

    def _stopping(self) -> bool:
        self._stopped = self._stopped or self._stop()
        return self._stopped

    # -- staging -------------------------------------------------------------------------------

    def _fill(self) -> None:
        for event in self._watch.timed(answered(self._requests(), self._source), "source"):
            if isinstance(event, Waiting):
                self._wait(event)
                if event.outage and self._stopping():
                    return
            else:
                self._waits.over()
                self._settle(*event)
            self._verify_claims()
            self._show_figures()

    def _wait(self, waiting: Waiting) -> None:
        self._waits.waiting(waiting)
        with self._watch.on("disk"):
            self._durability.sync(self._writers())

    def _settle(self, request: Request, answer: Extracted | Failed) -> None:
        shard = self._open.get(self._store.samples.extent(request.sample).shard)
        if shard is None:
            self._durability.drop([request.sample])
            return
        with self._watch.on("disk"), self._passing_over(shard):
            staged = self._stager.stage(shard.writer, request, answer)
            shard.settle(request, staged)
            self._count(request, staged)
            self._durability.staged(request.sample, self._writers())
            if not shard.unsettled:
                self._commit(shard)

    def _count(self, request: Request, staged: Extracted | Failed) -> None:
        tokens = len(request.input_ids)
        self._found(tokens)
        if isinstance(staged, Extracted):
            self._pace.tokens += tokens
            return
        self._failed += 1
        self._progress.note(f"sample {request.key!r} failed: {staged.kind}, {staged.detail}")
        self._progress.event(
            "sample-failed",
            {
                "sample": request.sample,
                "id": request.key,
                "reason": staged.kind,
                "detail": staged.detail,
                "attempts": list(staged.tried()),
            },
        )

    def _commit(self, shard: OpenShard) -> None:
        marker = shard.commit(self._provenance)
        del self._open[shard.shard]
        self._durability.tell([shard.writer])
        self._ledger.committed(shard)
        self._tell_committed(marker)

    def _tell_committed(self, marker: Marker) -> None:
        members = {name: getattr(marker, name) for name in ("samples", "absent", "tokens")}
        self._progress.event("shard-committed", {"shard": marker.version.shard, **members})

    # -- losing and letting go -----------------------------------------------------------------

    def _verify_claims(self) -> None:
        if time.monotonic() - self._verified_at < VERIFY_SECONDS:
            return
        self._verified_at = time.monotonic()
        for shard in list(self._open.values()):
            with self._watch.on("disk"), self._passing_over(shard):
                shard.verify_claim()

    @contextlib.contextmanager
    def _passing_over(self, shard: OpenShard) -> Iterator[None]:
        """Leave a shard to the writer that took it over."""
        try:
            yield
        except ClaimedByAnother as error:
            del self._open[shard.shard]
            extent = self._store.samples.extent
            self._pass_over(shard.shard, sum(extent(s).rows for s in shard.unsettled), error)
            # Its later answers are dropped; for what is staged, this is the same.
            self._durability.forget(shard.samples)
            with contextlib.suppress(OSError):
                shard.close()

    def _pass_over(self, number: int, tokens_left: int, error: ClaimedByAnother) -> None:
        self._ledger.held_by_another(number)
        self._pace.tokens_left -= tokens_left
        self._progress.note(str(error))
        self._progress.event("shard-held", {"shard": number, "detail": error.message})

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        """Let go of every open shard, whatever ends the block; its own error is the one to tell."""
        try:
            yield
        except BaseException:
            with contextlib.suppress(OSError):
                self._close_all()
            raise
        self._close_all()

    def _close_all(self) -> None:
        with self._watch.on("disk"), ExitStack() as stack:
            for shard in self._open.values():
                stack.callback(self._durability.tell, [shard.writer])
                stack.callback(shard.close)

    # -- showing -------------------------------------------------------------------------------

    def _show_figures(self) -> None:
        if self._pace.due():
            self._progress.event(
                "figures",
                {
                    **self._pace.figures(),
                    "free_bytes": self._free_bytes(),
                    "samples_failed": self._failed,
                    "shards_open": len(self._open),
                    "waiting": self._waits.detail,
                },
            )

    def _free_bytes(self) -> int | None:
        """None where the filesystem does not say, which is no reason to end a run."""
        try:
            return available(self._store.root).available_bytes
        except OSError:
            return None

    def _writers(self) -> list[ShardWriter]:
        return [shard.writer for shard in self._open.values()]

    def _tokens(self, shard: int) -> int:
        table = self._store.samples
        return int(table.length[table.shard_samples(shard)].sum())
