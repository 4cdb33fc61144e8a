"""Filling a store: every shard that is not committed yet, from one source."""

import contextlib
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from functools import cached_property

from hsstore.errors import ClaimedByAnother, HsstoreError, MalformedInput, SourceError
from hsstore.extraction.account import Account, ExtractionSummary, Ledger
from hsstore.extraction.open_shard import OpenShard, take
from hsstore.extraction.order import ORDERS, in_order
from hsstore.extraction.pace import Pace, Stopwatch
from hsstore.extraction.room import Room, SpacePolicy
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import Marker
from hsstore.model.progress import Progress, Silent
from hsstore.model.source import Extracted, Failed, HiddenStateSource, Request, Waiting
from hsstore.model.waits import Waits
from hsstore.storage import ballast
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
    space: SpacePolicy | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> ExtractionSummary:
    """Compute and commit the missing shards of a store, or of a range of its shards.

    Resumes what earlier runs journalled. ``order`` is a name of ``hsstore.extraction.order``.
    With ``space``, a disk that fills up is waited for; without, it raises what the disk says.
    ``stop`` is asked between samples; once true, nothing more is asked for, what is on its way is
    still staged, and the summary says so. Raises MalformedInput for an unknown order,
    IdentityMismatch where the source is another than the store's, SourceError, OutOfSpace, OSError;
    nothing that was journalled is lost then.
    """
    extraction = Extraction(
        store, source, shards=shards, order=order, space=space, progress=progress, stop=stop
    )
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
    # That of a run which was killed; it keeps its own as long as it lives.
    ballast.release(store.filesystem, store.root)
    return ledger.summary()


class Extraction:
    """One run over a range of shards. ``summary()`` may be asked for however the run ended.

    An unknown ``order`` raises MalformedInput.

    The source is asked for the samples of one shard after the other without a pause in between:
    answers may come in any order, and a shard is committed once all of its own are there. Where the
    disk has no room for more, nothing more is asked for; what is on its way is staged, and the
    asking begins again once there is room.
    """

    def __init__(
        self,
        store: Store,
        source: HiddenStateSource,
        *,
        shards: range | None = None,
        order: str = "dataset",
        space: SpacePolicy | None = None,
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
        self._todo: deque[int] = deque()
        self._open: dict[int, OpenShard] = {}
        self._let_go: dict[int, OpenShard] = {}
        self._room = Room(store, space, self._progress)
        self._short = False
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
        try:
            self._begin()
            with self._room.prepared(), self._closing():
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
        self._clear_leftovers()
        total = sum(map(self._tokens, self._wanted))
        done = sum(self._tokens(s) for s in self._wanted if s in self._ledger.committed_before)
        self._pace.tokens_left = total - done
        self._todo.extend(s for s in self._wanted if s not in self._ledger.committed_before)
        self._progress.start(total, done, "tok")

    def _clear_leftovers(self) -> None:
        """Tidy up, once there is room for the claims that it takes."""
        while True:
            try:
                clear_leftovers(self._store, self._progress)
            except OSError as error:
                if not self._room.may_wait_for(error):
                    raise
            else:
                return
            self._room.refused()
            self._wait_for_room()
            if self._stopping():
                return

    def _requests(self) -> Iterator[Request]:
        """What is to be computed, as long as there is room for it.

        An error ends the asking; what is on its way is still staged.
        """
        try:
            for shard, request in in_order(self._shards(), self._order):
                self._short = self._short or not self._room.has(0)
                if self._short or self._stopping():
                    return
                if shard.shard in self._open:
                    yield request
        except (HsstoreError, OSError) as error:
            self._failure = error

    def _shards(self) -> Iterator[OpenShard]:
        """The shards that lack something and fit: those that are open, then one after the other."""
        for shard in list(self._open.values()):
            if not self._fits(shard):
                return
            yield shard
        while self._todo and not self._stopping():
            number = self._todo.popleft()
            with self._setting_back(number), self._watch.on("disk"):
                self._take(number)
            opened = self._open.get(number)
            if self._short or (opened is not None and not self._fits(opened)):
                return
            if opened is not None:
                yield opened

    def _fits(self, shard: OpenShard) -> bool:
        if not self._room.waits:
            return True
        try:
            self._short = not shard.make_room(self._room.has)
        except OSError as error:
            if not self._room.may_wait_for(error):
                raise
            self._let_go_of_stuck()
            self._short = True
        return not self._short

    def _take(self, number: int) -> None:
        """Open a shard, unless another writer has it, or all that it lacked was its marker."""
        earlier = self._let_go.get(number)
        counted = earlier.tokens_settled() if earlier else 0
        try:
            taken = take(self._store, number, self._origin)
        except ClaimedByAnother as error:
            self._forget(number, ())
            self._pass_over(number, self._tokens(number) - counted, error)
            return
        self._found(-counted)
        if isinstance(taken, OpenShard):
            self._opened(taken)
            return
        if isinstance(taken, Marker):
            self._ledger.rolled_forward(number, taken)
            self._progress.note(f"shard {number} was whole but unmarked: committed")
            self._tell_committed(taken)
            self._room.moved()
        elif earlier is not None and self._is_own(taken, earlier):
            # What the disk refused came after the marker: this makes that durable, and tidies up.
            clear_leftovers(self._store, self._progress)
            self._ledger.committed(earlier)
            self._room.moved()
        else:
            self._ledger.committed_by_another(number, taken)
        self._found(self._tokens(number))
        self._forget(number, ())

    def _is_own(self, committed: tuple[ShardVersion, bool], earlier: OpenShard) -> bool:
        version, absent = committed
        marker = self._store.read_marker(version, absent=absent)
        return marker.writer == earlier.writer.writer

    def _opened(self, shard: OpenShard) -> None:
        earlier = self._let_go.get(shard.shard)
        if earlier is not None:
            shard.succeed(earlier)
        self._forget(shard.shard, shard.writer.journal.settled())
        self._open[shard.shard] = shard
        self._ledger.opened(shard)
        self._found(shard.tokens_settled())
        if not shard.unsettled:
            with self._passing_over(shard):
                self._commit(shard)

    def _found(self, tokens: int) -> None:
        self._pace.tokens_left -= tokens
        self._progress.advance(tokens)

    def _stopping(self) -> bool:
        self._stopped = self._stopped or self._stop()
        return self._stopped

    # -- staging -------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Ask and stage until nothing is left; where room was short, wait for it and ask again."""
        while True:
            self._ask()
            if self._failure or self._stopped or not (self._open or self._todo):
                return
            if self._short:
                self._short = False
                self._wait_for_room()

    def _ask(self) -> None:
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

    def _wait_for_room(self) -> None:
        with self._watch.on("disk"):
            self._journal_all()
            self._room.wait(self._stopping, self._tick)

    def _tick(self, detail: str) -> None:
        self._waits.waiting(Waiting(detail))
        self._verify_claims()
        self._show_figures()

    def _wait(self, waiting: Waiting) -> None:
        self._waits.waiting(waiting)
        with self._watch.on("disk"):
            self._journal_all()

    def _settle(self, request: Request, answer: Extracted | Failed) -> None:
        """Stage an answer; one that the disk has no room for is held until it has."""
        number = self._store.samples.extent(request.sample).shard
        while (shard := self._open.get(number)) and request.sample in shard.unsettled:
            try:
                self._stage(shard, request, answer)
            except OSError as error:
                if not self._room.may_wait_for(error):
                    raise
                self._regain()
            else:
                return
        # Another writer has the shard, or the sample was journalled before the disk refused more.
        self._durability.drop([request.sample])

    def _stage(self, shard: OpenShard, request: Request, answer: Extracted | Failed) -> None:
        with self._watch.on("disk"), self._passing_over(shard):
            staged = self._stager.stage(shard.writer, request, answer)
            shard.settle(request.sample)
            self._count(request, staged)
            self._durability.staged(request.sample, self._writers())
            if not shard.unsettled:
                self._commit(shard)
            if self._durability.advanced():
                self._room.moved()

    # -- a full disk ---------------------------------------------------------------------------

    def _regain(self) -> None:
        """Wait for room, and open again what the disk refused to go on with."""
        self._let_go_of_stuck()
        while self._let_go and not self._stopping():
            self._short = False
            self._wait_for_room()
            for number in list(self._let_go):
                self._todo.remove(number)
                with self._setting_back(number), self._watch.on("disk"):
                    self._take(number)
                if self._short:
                    break

    def _let_go_of_stuck(self) -> None:
        """Close the shards that were refused something; what is journalled stays theirs."""
        self._room.refused()
        stuck = [s for s in self._open.values() if s.writer.broken or not s.unsettled]
        for shard in stuck:
            self._let_go[shard.shard] = self._open.pop(shard.shard)
            self._todo.appendleft(shard.shard)
            with contextlib.suppress(OSError):
                shard.close()
            self._durability.tell([shard.writer])

    @contextlib.contextmanager
    def _setting_back(self, number: int) -> Iterator[None]:
        """Leave a shard that there was no room to open for later."""
        try:
            yield
        except (HsstoreError, OSError) as error:
            if number not in self._open:
                self._todo.appendleft(number)
            if not self._room.may_wait_for(error):
                raise
            self._let_go_of_stuck()
            self._short = True

    def _journal_all(self) -> None:
        try:
            self._durability.sync(self._writers())
        except OSError as error:
            if not self._room.may_wait_for(error):
                raise
            self._let_go_of_stuck()

    def _forget(self, number: int, kept: Collection[int]) -> None:
        """Of a shard that was let go, all but ``kept`` is computed again, or by others."""
        earlier = self._let_go.pop(number, None)
        if earlier is not None:
            self._durability.forget(set(earlier.samples).difference(kept))

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
        # At the end: it may find that the disk is out of order.
        self._room.moved()

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
