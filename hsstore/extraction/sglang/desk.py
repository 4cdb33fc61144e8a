"""One queue of samples for several servers: who computes what next, and what becomes of trouble."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from hsstore.capture.settings import SPOOL_BYTES
from hsstore.errors import HsstoreError, IdentityMismatch, SourceUnavailable
from hsstore.extraction.sglang.carrier import Carrier, Reply
from hsstore.extraction.sglang.outcome import (
    AttemptEnded,
    AttemptFailed,
    Busy,
    Discarded,
    Lost,
    Rejected,
)
from hsstore.extraction.sglang.pace import Backoff
from hsstore.extraction.sglang.server import Server
from hsstore.extraction.sglang.verify import SERVER_FLAGS
from hsstore.model.source import Failed, Origin, Request, differences

SHORTEST_SECONDS = 0.01
# A server that breaks once says nothing about the sample.
LEAST_PARDONS = 2


@dataclass(frozen=True, slots=True)
class Ready:
    """A reply for the consumer's thread to read, which then says how that ended.

    ``verdict`` takes None once the states were read, else why they were not; from any thread.
    """

    job: "Job"
    reply: Reply
    origin: Origin
    verdict: Callable[[AttemptEnded | None], None]


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A sample that could not be had."""

    job: "Job"
    failed: Failed


@dataclass(frozen=True, slots=True)
class Told:
    """Something that a user should know at once."""

    detail: str


Answer = Ready | GivenUp | Told
Answers = SimpleQueue[Answer]


@dataclass(eq=False, slots=True)
class Job:
    """A sample on its way. A suspect may be what killed a server, and is tried alone."""

    request: Request
    answers: Answers
    attempts: list[str] = field(default_factory=list)
    last: AttemptEnded | None = None
    suspect: bool = False
    pardons: int = 0
    task: asyncio.Task[None] | None = None
    timer: asyncio.TimerHandle | None = None


@dataclass(eq=False, slots=True)
class Lane:
    """A server and what it is doing. ``alone`` while it computes a suspect."""

    server: Server
    backoff: Backoff
    jobs: set[Job] = field(default_factory=set)
    alone: bool = False
    down_since: float | None = None
    busy_since: float | None = None
    busy: str = ""
    pause: asyncio.TimerHandle | None = None
    recovery: asyncio.Task[None] | None = None
    judging: asyncio.Task[None] | None = None

    @property
    def takes(self) -> bool:
        """Whether it may be given a request now."""
        return (
            self.server.trust is not None
            and self.pause is None
            and not self.alone
            and len(self.jobs) < self.server.pace.limit
        )

    @property
    def trouble(self) -> str:
        """Why it takes nothing; empty where it does."""
        if self.server.trust is None:
            return str(self.server.refused or self.server.detail)
        return f"has no room: {self.busy}" if self.busy_since is not None else ""

    @property
    def idle_since(self) -> float | None:
        """Since when it has been down, or without room."""
        return self.busy_since if self.down_since is None else self.down_since


class Desk:
    """Gives samples to servers, in one event loop.

    A sample is given up after ``max_attempts`` attempts that failed, and only while a short prompt
    still works. ``max_wait_seconds`` is how long all servers may be down. ``fatal`` is why nothing
    will be answered any more.
    """

    def __init__(
        self,
        servers: Iterable[Server],
        carrier: Carrier,
        draw: Callable[[], float],
        *,
        max_attempts: int,
        max_wait_seconds: float,
    ) -> None:
        self.lanes = [Lane(server, Backoff(draw)) for server in servers]
        self.fatal: BaseException | None = None
        self._carrier = carrier
        self._draw = draw
        self._max_attempts = max_attempts
        self._max_wait_seconds = max_wait_seconds
        trusted = [lane.server.trust for lane in self.lanes if lane.server.trust is not None]
        self._match = trusted[0].origin.match
        self._waiting: deque[Job] = deque()
        self._suspects: deque[Job] = deque()
        self._condemned: list[Job] = []
        self._jobs: set[Job] = set()
        self._loop = asyncio.get_running_loop()

    def submit(self, job: Job) -> None:
        """Take a sample on."""
        self._jobs.add(job)
        self._waiting.append(job)
        self._refuse_too_long(job)
        self._pump()

    async def abandon(self) -> None:
        """Drop all samples, and have the servers compute them no further."""
        self._waiting.clear()
        self._suspects.clear()
        self._condemned.clear()
        tasks = [job.task for job in self._jobs if job.task is not None]
        for job in self._jobs:
            if job.timer is not None:
                job.timer.cancel()
        self._jobs.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for lane in self.lanes:  # a task that never began has not left its lane
            lane.jobs.clear()
            lane.alone = False
            lane.busy_since = None
        await asyncio.gather(*(lane.server.abort_all() for lane in self.lanes))

    def outage(self) -> str | None:
        """What is waited for where no server can be asked; None while one can. From any thread."""
        if any(lane.server.trust is not None for lane in self.lanes):
            return None
        return self._trouble()

    def busy(self) -> str | None:
        """What servers have no room for now; None where all have. From any thread."""
        if all(lane.busy_since is None for lane in self.lanes):
            return None
        return self._trouble()

    def untaken(self, tokens: int) -> SourceUnavailable | None:
        """The error where no server that is left can take so long a prompt. From any thread."""
        left = [lane.server for lane in self.lanes if lane.server.refused is None]
        if not left or any(server.takes(tokens) for server in left):
            return None
        room = max(server.most_tokens for server in left)
        return SourceUnavailable(
            f"no server takes a sample of {tokens} tokens as it was launched, {room} at most",
            remedy=f"{SERVER_FLAGS}, with a larger spool ({SPOOL_BYTES}) or context, then run the "
            "same command to go on",
        )

    def _trouble(self) -> str:
        return "; ".join(
            f"{lane.server.url} {trouble}" for lane in self.lanes if (trouble := lane.trouble)
        )

    def _refuse_too_long(self, job: Job) -> None:
        """Set ``fatal`` for a sample that would wait forever."""
        self.fatal = self.fatal or self.untaken(len(job.request.input_ids))

    # -- who computes what ---------------------------------------------------------------------

    def _pump(self) -> None:
        """Give servers what they can take, one each in turn."""
        for lane in self.lanes:
            if self._condemned and lane.server.trust is not None and lane.judging is None:
                lane.judging = self._spawn(self._judge(lane))
        given = True
        while given:
            given = False
            for lane in self.lanes:
                if lane.takes and (job := self._next_for(lane)) is not None:
                    self._start(lane, job)
                    given = True

    def _next_for(self, lane: Lane) -> Job | None:
        if self._suspects:
            if not lane.jobs and (job := _first(self._suspects, lane)) is not None:
                return job
            if lane.jobs and lane is self._emptying():
                return None  # it empties, so that suspects get their turn
        return _first(self._waiting, lane)

    def _emptying(self) -> Lane | None:
        """The first lane that can take the first suspect."""
        tokens = len(self._suspects[0].request.input_ids)
        able = (lane for lane in self.lanes if lane.server.trust and lane.server.takes(tokens))
        return next(able, None)

    def _start(self, lane: Lane, job: Job) -> None:
        lane.jobs.add(job)
        lane.alone = job.suspect
        job.task = self._spawn(self._run(lane, job))

    async def _run(self, lane: Lane, job: Job) -> None:
        began = self._loop.time()
        ended, answer = await self._attempt(lane, job)
        if answer is not None:
            self._pump()  # the server is free while the consumer reads
            ended = await self._deliver(job, *answer)
        seconds = self._loop.time() - began
        if ended is None:
            lane.server.pace.answered()
            lane.backoff.reset()
            lane.busy_since = None
            self._jobs.discard(job)
        else:
            self._handle(lane, job, ended, f"{lane.server.url}, {seconds:.1f} s")
        self._pump()

    async def _attempt(
        self, lane: Lane, job: Job
    ) -> tuple[AttemptEnded | None, tuple[Reply, Origin] | None]:
        try:
            answer = await lane.server.attempt(job.request.input_ids)
        except AttemptEnded as ended:
            return ended, None
        finally:
            lane.jobs.discard(job)
            lane.alone = False
        return None, answer

    async def _deliver(self, job: Job, reply: Reply, origin: Origin) -> AttemptEnded | None:
        read: asyncio.Future[AttemptEnded | None] = self._loop.create_future()

        def settle(ended: AttemptEnded | None) -> None:
            if not read.done():
                read.set_result(ended)

        def verdict(ended: AttemptEnded | None) -> None:
            self._loop.call_soon_threadsafe(settle, ended)

        job.answers.put(Ready(job, reply, origin, verdict))
        whole = False
        try:
            ended = await read
            whole = ended is None
        finally:
            if not whole:
                self._carrier.forget(reply.expected.rid)
        return ended

    # -- what becomes of trouble ---------------------------------------------------------------

    def _handle(self, lane: Lane, job: Job, ended: AttemptEnded, where: str) -> None:
        if job not in self._jobs:
            return
        job.last = ended
        match ended:
            case Busy():
                self._back_off(lane, job, ended.detail)
            case Discarded():
                if ended.doubt:
                    self._lose(lane, ended.detail)
                self._again(job)
            case Lost():
                counts = ended.sent and job.suspect
                job.suspect = job.suspect or ended.sent
                self._lose(lane, ended.detail)
                self._count(job, where) if counts else self._again(job)
            case Rejected():
                self._count(job, where, last=True)
            case AttemptFailed() if lane.server.trust is None:
                job.attempts.append(_line(ended, where))
                self._pardon(job)
            case AttemptFailed():
                if ended.kind == "timeout":
                    lane.server.pace.overloaded(len(lane.jobs))
                self._count(job, where)

    def _back_off(self, lane: Lane, job: Job, detail: str) -> None:
        lane.server.pace.overloaded(len(lane.jobs))
        self._note_busy(lane, detail)
        if lane.pause is None:
            lane.pause = self._loop.call_later(lane.backoff.next(), self._resume, lane)
        self._again(job)

    def _note_busy(self, lane: Lane, detail: str) -> None:
        lane.busy_since = lane.busy_since or self._loop.time()
        lane.busy = detail
        self._note_end()

    def _resume(self, lane: Lane) -> None:
        lane.pause = None
        self._pump()

    def _again(self, job: Job) -> None:
        (self._suspects if job.suspect else self._waiting).appendleft(job)

    def _count(self, job: Job, where: str, *, last: bool = False) -> None:
        """Note an attempt; give the sample another one, later, unless that was the last."""
        if job.last is None:
            return
        job.attempts.append(_line(job.last, where))
        if last or len(job.attempts) >= self._max_attempts:
            self._condemned.append(job)
            return
        delay = Backoff(self._draw, failures=len(job.attempts)).next()
        job.timer = self._loop.call_later(delay, self._retry, job)

    def _retry(self, job: Job) -> None:
        job.timer = None
        self._again(job)
        self._pump()

    async def _judge(self, lane: Lane) -> None:
        """Give up what has failed too often, if it was not the server that failed."""
        accused, self._condemned = self._condemned, []
        try:
            await lane.server.control()
        except Busy as busy:
            self._note_busy(lane, busy.detail)
            self._condemned += accused
            await asyncio.sleep(lane.backoff.next())
        except AttemptEnded as ended:
            self._lose(lane, f"fails a prompt that worked: {ended.detail}")
            accused, self._condemned = accused + self._condemned, []
            for job in self._jobs.difference(accused):
                job.attempts.clear()
            for job in accused:
                self._pardon(job)
        else:
            lane.busy_since = None
            for job in accused:
                self._give_up(job)
        lane.judging = None
        self._pump()

    def _pardon(self, job: Job) -> None:
        """Begin anew, alone: the server was broken; unless it may be what breaks it each time."""
        if job not in self._jobs:
            return
        job.pardons += 1
        if job.pardons >= max(self._max_attempts, LEAST_PARDONS):
            self._condemned.append(job)
            return
        job.attempts.clear()
        job.suspect = True
        self._suspects.append(job)

    def _give_up(self, job: Job) -> None:
        if job not in self._jobs or job.last is None:
            return
        self._jobs.discard(job)
        failed = Failed(job.request.sample, job.last.kind, job.last.detail, tuple(job.attempts))
        job.answers.put(GivenUp(job, failed))

    # -- outages -------------------------------------------------------------------------------

    def _lose(self, lane: Lane, detail: str) -> None:
        if lane.recovery is None and lane.server.refused is None:
            lane.server.lose(detail)
            lane.down_since = self._loop.time()
            lane.recovery = self._spawn(self._recover(lane))

    async def _recover(self, lane: Lane) -> None:
        server, backoff = lane.server, Backoff(self._draw)
        while lane.down_since is not None and server.refused is None:
            await asyncio.sleep(self._until_next_look(lane, backoff))
            try:
                await server.verify()
                self._refuse_disagreement(server)
                lane.down_since = None
            except AttemptEnded as ended:
                server.lose(ended.detail)
            except SourceUnavailable as error:
                server.lose(error.message)
            except HsstoreError as error:
                server.lose(error.message)
                server.refused = error
                self._tell(f"out for good: {error}")
            self._note_end()
        lane.recovery = None
        for job in self._jobs:
            self._refuse_too_long(job)
        self._pump()

    def _tell(self, detail: str) -> None:
        for answers in {id(job.answers): job.answers for job in self._jobs}.values():
            answers.put(Told(detail))

    def _until_next_look(self, lane: Lane, backoff: Backoff) -> float:
        down = self._loop.time() - (lane.down_since or 0.0)
        left = self._max_wait_seconds - down
        return max(min(backoff.next(), left) if left > 0 else backoff.next(), SHORTEST_SECONDS)

    def _refuse_disagreement(self, server: Server) -> None:
        found = server.trust.origin.match if server.trust else {}
        if different := differences(self._match, found):
            raise IdentityMismatch(
                f"not the model of this run: {'; '.join(different)}", place=server.url
            )

    def _note_end(self) -> None:
        """Set ``fatal`` where no server is left, or none for what is left for too long."""
        refused = [lane.server.refused for lane in self.lanes if lane.server.refused]
        if len(refused) == len(self.lanes):
            self.fatal = refused[0]
            return
        now, most = self._loop.time(), self._max_wait_seconds
        idle = {lane: now - lane.idle_since for lane in self.lanes if lane.idle_since is not None}
        left = [lane for lane in self.lanes if lane.server.refused is None]
        able = [lane for lane in left if idle.get(lane, 0.0) < most]
        over = [idle[lane] for lane in left if lane not in able]
        if not over or (able and (not self._jobs or self._is_any_for(able))):
            return
        self.fatal = SourceUnavailable(
            f"no server for {min(over):.0f} s: {self._trouble()}",
            remedy=f"start it again ({SERVER_FLAGS}), then run the same command to go on",
        )

    def _is_any_for(self, lanes: Iterable[Lane]) -> bool:
        """Whether one of the lanes can take one of the samples that are left."""
        lengths = {len(job.request.input_ids) for job in self._jobs}
        return any(lane.server.takes(length) for lane in lanes for length in lengths)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fatal = error


def _first(queue: deque[Job], lane: Lane) -> Job | None:
    """Take the first that the lane's server can take out of a queue."""
    for job in queue:
        if lane.server.takes(len(job.request.input_ids)):
            queue.remove(job)
            return job
    return None


def _line(ended: AttemptEnded, where: str) -> str:
    return f"{ended.kind}: {ended.detail} ({where})"
