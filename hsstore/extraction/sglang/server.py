"""One server: asked only while it is trusted, and trusted only after it was verified."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.capture import spool_format
from hsstore.errors import HsstoreError, IdentityMismatch, SourceUnavailable
from hsstore.extraction.sglang.carrier import Carrier, Reply
from hsstore.extraction.sglang.facts import Facts
from hsstore.extraction.sglang.http import Connection
from hsstore.extraction.sglang.outcome import AttemptEnded, Discarded, Lost, Rejected
from hsstore.extraction.sglang.pace import Pace, most_in_flight
from hsstore.extraction.sglang.reply import Expected
from hsstore.extraction.sglang.transport import ENGINE, Ask
from hsstore.extraction.sglang.verify import SERVER_FLAGS, refuse_unfit, server_match
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Origin

Calibrate = Callable[[Ask, Facts], None]

CONTROL_TOKENS = 12
FACTS_SECONDS = 60.0
# What a known-good prompt shows of a server when its answer is one of these.
UNFIT = ("wrong-shape", "wrong-dtype", "wrong-reply", "non-finite", "not-captured", "rejected")


@dataclass(frozen=True, slots=True)
class Trust:
    """A launch of a server that was verified, and where its states come from."""

    facts: Facts
    boot: str | None
    origin: Origin


class Numbers:
    """Request ids of one client's run: no two are alike."""

    def __init__(self, run: str) -> None:
        self.run = run
        self._next = 0

    def rid(self) -> str:
        """A new one."""
        self._next += 1
        return spool_format.rid(self.run, self._next - 1)


@dataclass(frozen=True, slots=True)
class Terms:
    """What all servers of a source have in common.

    ``concurrency`` is how many requests each may be given at most (None: by its limits);
    ``calibrate`` proves layers and norm, in a thread of its own; ``facts_seconds`` is how old a
    spool server's word about itself may be.
    """

    identity: StoreIdentity
    carrier: Carrier
    numbers: Numbers
    draw: Callable[[], float]
    concurrency: int | None
    calibrate: Calibrate | None
    facts_seconds: float = FACTS_SECONDS


class Server:
    """One server, in the event loop of its source.

    ``trust`` is None while it is down, and from the moment anything about it is in doubt;
    ``refused`` is why it is out for good.
    """

    def __init__(self, connection: Connection, terms: Terms) -> None:
        self.connection = connection
        self.terms = terms
        self.url = connection.address.url
        self.trust: Trust | None = None
        self.refused: HsstoreError | None = None
        self.detail = "not verified yet"
        self.pace = Pace(1, 1)
        self.rids: set[str] = set()
        self._confirmed = 0
        self._confirmed_at = 0.0
        self._confirming = asyncio.Lock()
        self._last: Trust | None = None

    async def open(self) -> None:
        """Verify it for the first time; the HsstoreError that says why it cannot be used."""
        try:
            await self.verify()
        except AttemptEnded as ended:
            raise SourceUnavailable(
                f"the server {ended.detail}" if isinstance(ended, Lost) else ended.detail,
                place=self.url,
                remedy=f"{SERVER_FLAGS}, and wait until it is ready",
            ) from None

    async def verify(self) -> None:
        """Trust it if it is what the store needs: by its facts, by a known prompt, by calibration.

        Raises IdentityMismatch, SourceUnavailable or what calibration raises where it is not,
        AttemptEnded where that cannot be told now.
        """
        terms = self.terms
        facts = await self.connection.facts()
        refuse_unfit(facts, terms.identity, terms.carrier.transport, self.url)
        terms.carrier.refuse_unready(facts, self.url)
        boot = await self._control(facts)
        if terms.calibrate and not self._known(facts, boot):
            await asyncio.to_thread(terms.calibrate, self._asker(facts, boot), facts)
        mark, began = self.connection.opened, asyncio.get_running_loop().time()
        if await self.connection.facts() != facts:
            raise Lost("changed while it was being verified", sent=False)
        self._confirmed, self._confirmed_at = mark, began
        self._adopt(facts, boot)

    async def attempt(self, ids: NDArray[np.int32]) -> tuple[Reply, Origin]:
        """The reply to one prompt, of a launch that is trusted; else AttemptEnded."""
        trust = self.trust
        if trust is None:
            raise Lost(self.detail, sent=False)
        try:
            reply = await self._generate(ids, trust.facts, trust.boot)
        except Rejected:
            # Another launch may refuse what this one took.
            await self._confirm(trust, anyway=True)
            raise
        await self._confirm_whole(trust, reply)
        return reply, trust.origin

    async def _confirm_whole(self, trust: Trust, reply: Reply) -> None:
        try:
            await self._confirm(trust)
        except Discarded:
            self.terms.carrier.forget(reply.expected.rid)
            raise

    async def control(self) -> None:
        """Show that a short prompt that is known to be good still works; AttemptEnded if not."""
        trust = self.trust
        if trust is None:
            raise Lost(self.detail, sent=False)
        reply = await self._generate(self._prompt(trust.facts), trust.facts, trust.boot)
        try:
            self.terms.carrier.states(reply)
        finally:
            self.terms.carrier.forget(reply.expected.rid)

    def lose(self, detail: str) -> None:
        """Trust it no more until it is verified again."""
        self.trust = None
        self.detail = detail

    @property
    def boot(self) -> str | None:
        """The spool boot id of the launch that was verified last."""
        return self._last.boot if self._last else None

    @property
    def longest_prompt(self) -> int:
        """The most tokens that the launch that was verified last takes."""
        return self._last.facts.longest_prompt if self._last else 0

    def takes(self, tokens: int) -> bool:
        """Whether that launch, and its spool, can take a prompt of so many tokens."""
        return self.refused is None and tokens <= self.most_tokens

    @property
    def most_tokens(self) -> int:
        """The longest prompt that the launch takes and its spool has room for."""
        boot = self.boot
        if boot is None:
            return self.longest_prompt
        return min(self.longest_prompt, self.terms.carrier.most_tokens([boot]))

    async def abort_all(self) -> None:
        """Have it compute nothing further that it was asked."""
        await asyncio.gather(*(self.connection.abort(rid) for rid in self.rids))
        self.rids.clear()

    def _known(self, facts: Facts, boot: str | None) -> bool:
        """Whether this very launch was calibrated before."""
        last = self._last
        return last is not None and (last.facts, last.boot) == (facts, boot)

    def _adopt(self, facts: Facts, boot: str | None) -> None:
        if not self._known(facts, boot) or self._last is None:
            match = server_match(facts, self.terms.identity)
            self._last = Trust(facts, boot, Origin(match, self._recorded(facts, boot)))
            running, queued = facts.max_running_requests, facts.max_queued_requests
            most = most_in_flight(self.terms.concurrency, running, queued)
            self.pace = Pace(most, min(running or most, most))
        self.trust = self._last

    def _recorded(self, facts: Facts, boot: str | None) -> dict[str, str]:
        said = {
            "engine": ENGINE,
            "engine_version": facts.release,
            "dtype": facts.dtype,
            "attention": facts.attention_backend,
            "tp": str(facts.tp_size),
            "dp": str(facts.dp_size),
            "chunked_prefill": str(facts.chunked_prefill_size),
            "radix_cache": "on" if facts.radix_cache else "off",
            "device": facts.device,
            "kv_cache_dtype": facts.kv_cache_dtype,
            "weight_version": facts.weight_version,
            **self.terms.carrier.recorded(boot),
        }
        return {name: value for name, value in said.items() if value is not None}

    async def _control(self, facts: Facts) -> str | None:
        """The known prompt's answer must be whole: the boot id of the launch that gave it."""
        reply = await self._generate(self._prompt(facts), facts, None)
        carrier = self.terms.carrier
        try:
            boot = carrier.boot_of(reply, facts, self.url)
            carrier.states(reply)
        except AttemptEnded as ended:
            if ended.kind not in UNFIT:
                raise
            raise self._unfit(ended) from None
        finally:
            carrier.forget(reply.expected.rid)
        return boot

    def _unfit(self, ended: AttemptEnded) -> IdentityMismatch:
        return IdentityMismatch(
            f"it does not answer a short prompt as the store needs it: {ended.detail}",
            place=self.url,
            remedy=SERVER_FLAGS,
        )

    def _prompt(self, facts: Facts) -> NDArray[np.int32]:
        length = min(CONTROL_TOKENS, facts.longest_prompt)
        ids = np.arange(1, length + 1) * 7919 % self.terms.identity.model.vocab_size
        return ids.astype(np.int32)

    def _asker(self, facts: Facts, boot: str | None) -> Ask:
        """For a thread: one prompt, alone, as the states of a store."""
        loop = asyncio.get_running_loop()

        def ask(ids: NDArray[np.int32]) -> NDArray[Any]:
            carrier = self.terms.carrier
            asked = self._generate(ids, facts, boot)
            try:
                reply = asyncio.run_coroutine_threadsafe(asked, loop).result()
                try:
                    return carrier.states(reply)
                finally:
                    carrier.forget(reply.expected.rid)
            except AttemptEnded as ended:
                if ended.kind in UNFIT:
                    raise self._unfit(ended) from None
                raise SourceUnavailable(ended.detail, place=self.url) from None

        return ask

    async def _generate(self, ids: NDArray[np.int32], facts: Facts, boot: str | None) -> Reply:
        rid = self.terms.numbers.rid()
        self.rids.add(rid)
        try:
            body = await self.connection.generate(self._request(rid, ids))
        except AttemptEnded as ended:
            if ended.kind == "timeout":
                await self.connection.abort(rid)
            self.terms.carrier.forget(rid)
            self.rids.discard(rid)
            raise
        # A request that is cancelled stays in rids, to be aborted.
        self.rids.discard(rid)
        return Reply(body, Expected(rid, len(ids), facts.weight_version), boot)

    def _request(self, rid: str, ids: NDArray[np.int32]) -> dict[str, Any]:
        return {
            "input_ids": np.ascontiguousarray(ids, np.int32),
            "rid": rid,
            # Without one of its own, a prompt that begins like an earlier one lacks those rows.
            "extra_key": rid,
            "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
            **self.terms.carrier.request(),
        }

    async def _confirm(self, trust: Trust, *, anyway: bool = False) -> None:
        """Return once it is certain that what came over the connections so far is of a launch.

        A spool's files name their boot, so there the facts are only asked for again when the last
        ones are FACTS_SECONDS old: a launch may be given other weights while it runs. What came
        since the last ones is believed, and weights that are swapped in place, under the same path
        and without another version, are not noticed.
        """
        mark = self.connection.opened
        async with self._confirming:
            if self.trust is not trust:
                raise Discarded("of an earlier launch", doubt=False)
            if not anyway and not self._is_due(trust, mark):
                return
            now, began = self.connection.opened, asyncio.get_running_loop().time()
            try:
                facts = await self.connection.facts()
            except (AttemptEnded, HsstoreError) as error:
                self.lose(str(error))
                raise Discarded(str(error)) from None
            if facts != trust.facts:
                self.lose("another server process, or another model, answers there")
                raise Discarded(self.detail)
            self._confirmed, self._confirmed_at = now, began

    def _is_due(self, trust: Trust, mark: int) -> bool:
        if trust.boot is None:
            return mark > self._confirmed
        return asyncio.get_running_loop().time() - self._confirmed_at >= self.terms.facts_seconds
