"""Hidden states computed by SGLang servers."""

import asyncio
import queue
import random
import secrets
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from hsstore.errors import IdentityMismatch, MalformedInput, SourceUnavailable
from hsstore.extraction.sglang.address import parse_address
from hsstore.extraction.sglang.carrier import Carrier, JsonCarrier, SpoolCarrier
from hsstore.extraction.sglang.desk import Answers, Desk, GivenUp, Job, Ready, Told
from hsstore.extraction.sglang.http import Connection
from hsstore.extraction.sglang.outcome import AttemptEnded, Busy
from hsstore.extraction.sglang.server import FACTS_SECONDS, Calibrate, Numbers, Server, Terms
from hsstore.extraction.sglang.spool import Spool
from hsstore.extraction.sglang.transport import choose_transport, json_kind
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Failed, Origin, Request, Waiting, differences
from hsstore.storage.codec import stored_dtype

REQUEST_SECONDS = 600.0
MAX_WAIT_SECONDS = 600.0
MAX_ATTEMPTS = 3
WAITING_SECONDS = 1.0
# For how long files of what was given up may still come; none for the second time was the last.
LATE_SECONDS, QUIET_SECONDS, POLL_SECONDS = 10.0, 1.0, 0.1

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How a source treats its servers.

    ``concurrency`` is how many requests each server is given at most, ``batch_tokens`` how many
    tokens are asked for at once of all of them (None: by the servers' limits); ``max_attempts`` how
    often a sample may fail, ``max_wait_seconds`` how long all servers may be down, and
    ``request_seconds`` how long one request may take; ``facts_seconds`` is how old a spool
    server's word about itself may be. ``draw`` gives numbers in [0, 1).
    """

    concurrency: int | None = None
    batch_tokens: int | None = None
    max_attempts: int = MAX_ATTEMPTS
    max_wait_seconds: float = MAX_WAIT_SECONDS
    request_seconds: float = REQUEST_SECONDS
    draw: Callable[[], float] = random.random
    facts_seconds: float = FACTS_SECONDS


class SGLangSource:
    """A HiddenStateSource over one or more SGLang servers.

    ``urls`` name the servers; the environment variable HSSTORE_API_KEY holds their key. With
    ``spool`` the states come through that folder, else in the replies. Every server is verified
    before its first request, and again after each sign that it might be another: MalformedInput,
    IdentityMismatch or SourceUnavailable say what is wrong, and whatever ``calibrate`` raises. That
    is called with a function that has a server compute one prompt alone, and the server's facts.

    Weights that are swapped inside a running server are noticed where the server tells of it: by
    another weight version in a reply, or within ``facts_seconds`` by what it says of itself. What
    came in between is believed, and a swap under the same path and version is not noticed at all.
    """

    def __init__(
        self,
        urls: Sequence[str],
        identity: StoreIdentity,
        *,
        spool: Path | None = None,
        options: ClientOptions | None = None,
        calibrate: Calibrate | None = None,
    ) -> None:
        self._identity = identity
        self._options = options or ClientOptions()
        addresses = [parse_address(url) for url in dict.fromkeys(urls)]
        if not addresses:
            raise MalformedInput("no server is named", remedy="give --server URL")
        if choose_transport(identity.capture, spool=spool is not None) == "json":
            json_kind(identity.capture, identity.model.model_type)
        self._numbers = Numbers(secrets.token_hex(8))
        self._carrier: Carrier = (
            JsonCarrier(identity) if spool is None else SpoolCarrier(identity, Spool(spool))
        )
        terms = Terms(
            identity,
            self._carrier,
            self._numbers,
            self._options.draw,
            self._options.concurrency,
            calibrate,
            self._options.facts_seconds,
        )
        self._held: dict[int, tuple[str, int]] = {}  # sample: its rid and tokens, until settled
        self._held_tokens = 0
        self._buffer: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._closed = self._abandoned = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="hsstore-sglang", daemon=True)
        self._thread.start()
        self._servers: list[Server] = []
        try:
            self._desk = self._do(self._open(addresses, terms))
        except BaseException:
            self.close()
            raise
        self._origin = next(s.trust.origin for s in self._servers if s.trust)
        self._most_requests = 2 * sum(server.pace.most for server in self._servers)
        self._longest = max(server.longest_prompt for server in self._servers)
        self._wanted = self._wanted_tokens()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def origin(self) -> Origin:
        """The model's identity as far as the first server tells it, and how it computes."""
        return self._origin

    def foresee(self, lengths: Sequence[int]) -> str | None:
        """What will become of samples of so many tokens, by the servers as they are launched now.

        None where they take them all, else a line about those that will fail as ``too-long``.
        Raises SourceUnavailable where only the spool is too small for one.
        """
        taken = [tokens for tokens in lengths if tokens <= self._longest]
        if taken and (untaken := self._desk.untaken(max(taken))) is not None:
            raise untaken
        if len(taken) == len(lengths):
            return None
        return (
            f"{len(lengths) - len(taken)} samples have more than the {self._longest} tokens that "
            "the servers take (SGLang: a few less than the model's context), and will be absent"
        )

    def states(self, requests: Iterable[Request]) -> Generator[Extracted | Failed | Waiting]:
        """The answers in the order in which they come.

        An array may be overwritten once the next answer is asked for. A sample fails for good as
        ``token-out-of-range``, ``too-long`` or by what its last attempt ended with. Raises
        SourceUnavailable or IdentityMismatch once no server is left; one at a time may run.
        """
        if self._closed:
            raise SourceUnavailable("the source is closed")
        flow = _Flow(iter(requests))
        try:
            while not flow.done:
                yield from self._pull(flow)
                if not flow.jobs and flow.exhausted:
                    return
                yield from self._next(flow)
        finally:
            if flow.jobs and not self._closed:
                self._abandoned = True
                self._do(self._desk.abandon())

    def settled(self, samples: Iterable[int]) -> None:
        """Remove the spool files of samples that are journalled."""
        for sample in samples:
            if (held := self._held.pop(sample, None)) is not None:
                self._carrier.forget(held[0])
                self._held_tokens -= held[1]

    def close(self) -> None:
        """Have the servers compute nothing further, remove what is left, end the thread."""
        if self._closed:
            return
        self._closed = True
        self._abandoned = self._abandoned or any(server.rids for server in self._servers)
        self._do(self._shut())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._clear_spool()
        self._carrier.close()

    def _clear_spool(self) -> None:
        """Remove the run's files, those too that servers still write of what was given up."""
        self._carrier.clear(self._numbers.run)
        if not self._abandoned or self._carrier.transport != "spool":
            return
        end = time.monotonic() + LATE_SECONDS
        quiet = time.monotonic() + QUIET_SECONDS
        while time.monotonic() < min(quiet, end):
            time.sleep(POLL_SECONDS)
            if self._carrier.clear(self._numbers.run):
                quiet = time.monotonic() + QUIET_SECONDS

    # -- the consumer's thread -----------------------------------------------------------------

    def _pull(self, flow: "_Flow") -> Iterator[Failed]:
        """Hand requests over as the budget permits; answer those that no server may be sent."""
        while (request := flow.peek()) is not None and self._fits(flow, request):
            flow.taken()
            if (refused := self._refusal(request)) is not None:
                yield refused
                continue
            job = Job(request, flow.answers)
            flow.jobs.add(job)
            flow.tokens += len(request.input_ids)
            self._loop.call_soon_threadsafe(self._desk.submit, job)

    def _fits(self, flow: "_Flow", request: Request) -> bool:
        if not flow.jobs and not self._held:
            return True
        tokens = flow.tokens + self._held_tokens + len(request.input_ids)
        return len(flow.jobs) < self._most_requests and tokens <= self._most_tokens()

    def _most_tokens(self) -> int:
        """How many may be asked for or kept now; a server that came back may hold less."""
        return min(self._wanted, self._carrier.most_tokens(s.boot for s in self._servers))

    def _next(self, flow: "_Flow") -> Iterator[Extracted | Failed | Waiting]:
        """The next answer, or Waiting where there is none for a second."""
        # With nothing on its way, only the consumer can go on: it is told at once, then patiently.
        blocked = not flow.jobs
        seconds = 0.0 if blocked and not flow.told else WAITING_SECONDS
        try:
            answer = flow.answers.get(timeout=seconds)
        except queue.Empty:
            self._raise_fatal()
            flow.told = blocked
            yield self._waiting(flow)
            return
        flow.told = False
        if isinstance(answer, Told):
            yield Waiting(answer.detail, news=True)
        else:
            yield from self._read(flow, answer)

    def _read(
        self, flow: "_Flow", answer: Ready | GivenUp
    ) -> Iterator[Extracted | Failed | Waiting]:
        request = answer.job.request
        if isinstance(answer, GivenUp):
            flow.drop(answer.job)
            yield answer.failed
            return
        try:
            states = self._carrier.states(answer.reply, self._array(len(request.input_ids)))
        except AttemptEnded as ended:
            answer.verdict(ended)
            self._raise_fatal()
            if isinstance(ended, Busy):  # what is journalled at this word makes room
                yield Waiting(ended.detail)
            return
        answer.verdict(None)
        if self._carrier.transport == "spool":
            self._held[request.sample] = answer.reply.expected.rid, len(request.input_ids)
            self._held_tokens += len(request.input_ids)
        flow.drop(answer.job)
        other = None if answer.origin == self._origin else answer.origin
        yield Extracted(request.sample, states, other)

    def _array(self, tokens: int) -> NDArray[Any] | None:
        """The one array for what a spool holds, grown as needed: [tokens, layers, hidden]."""
        if self._carrier.transport != "spool":
            return None
        geometry = self._identity.geometry
        shape = (tokens, geometry.layers, geometry.hidden_size)
        size = tokens * geometry.row_bytes
        if len(self._buffer) < size:
            self._buffer = np.empty(0, np.uint8)  # free the old one first
            self._buffer = np.empty(size, np.uint8)
        return self._buffer[:size].view(stored_dtype(self._identity.capture.dtype)).reshape(shape)

    def _refusal(self, request: Request) -> Failed | None:
        ids, vocabulary = request.input_ids, self._identity.model.vocab_size
        if (untaken := self._desk.untaken(len(ids))) is not None:
            self._raise_fatal()
            if len(ids) <= self._longest:  # a larger spool, or the launch as it was, takes it
                raise untaken
            detail = f"{len(ids)} tokens, and the servers take {self._longest}"
            return Failed(request.sample, "too-long", detail)
        outside = (ids < 0) | (ids >= vocabulary)
        if outside.any():
            position = int(outside.argmax())
            detail = f"token {position} is {ids[position]}, outside 0..{vocabulary - 1}"
            return Failed(request.sample, "token-out-of-range", detail)
        return None

    def _waiting(self, flow: "_Flow") -> Waiting:
        if not flow.jobs:
            return Waiting(f"{len(self._held)} samples wait to be journalled")
        if (outage := self._desk.outage()) is not None:
            return Waiting(outage, outage=True)
        busy = self._desk.busy()
        told = f"{len(flow.jobs)} samples are on their way"
        return Waiting(f"{told}; {busy}" if busy else told)

    def _raise_fatal(self) -> None:
        if self._desk.fatal is not None:
            raise self._desk.fatal

    def _wanted_tokens(self) -> int:
        """How many tokens to ask for at once: as told, else what the servers hold at once."""
        limits = [server.trust.facts.max_total_tokens for server in self._servers if server.trust]
        return self._options.batch_tokens or sum(limit or DEFAULT_TOKENS for limit in limits)

    def _do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run something in the event loop, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    # -- the event loop's thread ---------------------------------------------------------------

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def _open(self, addresses: Sequence[Any], terms: Terms) -> Desk:
        """Verify one server after the other, each wholly, before any is given a sample."""
        for address in addresses:
            server = Server(Connection(address, self._options.request_seconds), terms)
            self._servers.append(server)
            await server.open()
        _refuse_disagreement(self._servers)
        return Desk(
            self._servers,
            self._carrier,
            self._options.draw,
            max_attempts=self._options.max_attempts,
            max_wait_seconds=self._options.max_wait_seconds,
        )

    async def _shut(self) -> None:
        me = asyncio.current_task()
        rest = [task for task in asyncio.all_tasks() if task is not me]
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for server in self._servers:
            await server.abort_all()
            await server.connection.close()


@dataclass(eq=False, slots=True)
class _Flow:
    """One call of ``states``: what was pulled and is not answered yet."""

    requests: Iterator[Request]
    answers: Answers = field(default_factory=queue.SimpleQueue)
    jobs: set[Job] = field(default_factory=set)
    tokens: int = 0
    exhausted: bool = False
    told: bool = False
    _peeked: Request | None = None

    @property
    def done(self) -> bool:
        return self.exhausted and not self.jobs

    def peek(self) -> Request | None:
        """The next request, pulled at most once; None after the last."""
        if self._peeked is None and not self.exhausted:
            self._peeked = next(self.requests, None)
            self.exhausted = self._peeked is None
        return self._peeked

    def taken(self) -> None:
        self._peeked = None

    def drop(self, job: Job) -> None:
        """It is answered."""
        if job in self.jobs:
            self.jobs.discard(job)
            self.tokens -= len(job.request.input_ids)


def _refuse_disagreement(servers: Sequence[Server]) -> None:
    first = servers[0].trust
    for server in servers[1:]:
        if first is None or server.trust is None:
            continue
        if different := differences(first.origin.match, server.trust.origin.match):
            raise IdentityMismatch(
                f"not the model of {servers[0].url}: {'; '.join(different)}", place=server.url
            )


DEFAULT_TOKENS = 16384
