"""The two ways in which a reply's states reach this process: in its body, or through a spool."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from hsstore.capture.layer_ids import UnknownLayerIds, engine_ids
from hsstore.capture.spool_format import ITEMSIZE
from hsstore.errors import IdentityMismatch, SourceUnavailable
from hsstore.extraction.sglang.facts import Facts
from hsstore.extraction.sglang.outcome import AttemptFailed
from hsstore.extraction.sglang.reply import (
    Expected,
    Rows,
    checked_meta,
    json_states,
    refuse_non_finite,
)
from hsstore.extraction.sglang.spool import Hello, Spool, rows_like
from hsstore.extraction.sglang.transport import Transport
from hsstore.extraction.sglang.verify import SERVER_FLAGS
from hsstore.model.identity import StoreIdentity

# What a JSON reply takes in memory, its text and its numbers as Python objects, a value.
JSON_VALUE_BYTES = 44
JSON_BYTES = 1 << 30
SPOOL_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Reply:
    """The body of a reply with status 200 and what it must be.

    ``boot`` is the spool boot id of the launch that was asked; None while it is not known.
    """

    body: bytes
    expected: Expected
    boot: str | None = None


class Carrier(Protocol):
    """How states come; what is said of files is nothing for JSON."""

    transport: Transport

    def request(self) -> Mapping[str, Any]:
        """The members of a request that ask for states."""
        ...

    def states(self, reply: Reply, into: NDArray[Any] | None = None) -> NDArray[Any]:
        """The states [tokens, layers, hidden] of a reply, perhaps in ``into``; AttemptEnded."""
        ...

    def refuse_unready(self, facts: Facts, place: str) -> None:
        """Raise IdentityMismatch where it can be seen without a request that none would come."""
        ...

    def boot_of(self, reply: Reply, facts: Facts, place: str) -> str | None:
        """The boot id of the launch that answered; IdentityMismatch if it is not fit."""
        ...

    def recorded(self, boot: str | None) -> Mapping[str, str]:
        """What an origin keeps of the transport."""
        ...

    def most_tokens(self, boots: Iterable[str | None]) -> int:
        """How many tokens may be on their way, or kept, at once."""
        ...

    def forget(self, rid: str) -> None:
        """Remove what is kept for a request."""
        ...

    def clear(self, run: str) -> int:
        """Remove what is left of a client's run; how many files that were."""
        ...

    def close(self) -> None:
        """Let go of what is held."""
        ...


class JsonCarrier:
    """States as numbers in the body."""

    transport: Transport = "json"

    def __init__(self, identity: StoreIdentity) -> None:
        self._rows = Rows.of(identity)

    def request(self) -> Mapping[str, Any]:
        """The server is asked for them."""
        return {"return_hidden_states": True}

    def states(self, reply: Reply, into: NDArray[Any] | None = None) -> NDArray[Any]:  # noqa: ARG002
        """Parsed from the body, in an array of their own."""
        return json_states(reply.body, reply.expected, self._rows)

    def refuse_unready(self, facts: Facts, place: str) -> None:
        """Its facts say it all."""

    def boot_of(self, reply: Reply, facts: Facts, place: str) -> str | None:  # noqa: ARG002
        """Replies name no boot."""
        return None

    def recorded(self, boot: str | None) -> Mapping[str, str]:  # noqa: ARG002
        """The transport alone."""
        return {"transport": self.transport}

    def most_tokens(self, boots: Iterable[str | None]) -> int:  # noqa: ARG002
        """As many as fit into JSON_BYTES of memory once parsed."""
        return JSON_BYTES // (JSON_VALUE_BYTES * self._rows.layers * self._rows.hidden_size)

    def forget(self, rid: str) -> None:
        """Nothing is kept."""

    def clear(self, run: str) -> int:  # noqa: ARG002 - the protocol's signature
        """Nothing is left."""
        return 0

    def close(self) -> None:
        """Nothing is held."""


class SpoolCarrier:
    """States as raw segments in a spool folder that the server's plugin writes."""

    transport: Transport = "spool"

    def __init__(self, identity: StoreIdentity, spool: Spool) -> None:
        self._capture = identity.capture
        self._num_layers = identity.model.num_layers
        self._rows = Rows.of(identity)
        self._spool = spool
        self._hellos: dict[str, list[Hello]] = {}

    def request(self) -> Mapping[str, Any]:
        """The rid is enough."""
        return {}

    def states(self, reply: Reply, into: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read from the request's file, whole and once, into ``into`` or an array of their own."""
        states, _ = self._read(reply, into)
        refuse_non_finite(states)
        return states

    def _read(self, reply: Reply, into: NDArray[Any] | None) -> tuple[NDArray[Any], str]:
        checked_meta(reply.body, reply.expected)
        if into is None:
            rows = self._rows
            into = rows_like(reply.expected.tokens, rows.layers, rows.hidden_size, rows.dtype)
        boot = self._spool.states(reply.expected.rid, into, self._rows.dtype, reply.boot)
        return into, boot

    def refuse_unready(self, facts: Facts, place: str) -> None:
        """Refuse a server of which no hello in the folder could be."""
        found = [
            hello
            for hello in self._spool.hellos()
            if hello.release == facts.release and hello.model_path in (None, facts.model_path)
        ]
        if not found and self._spool.unreadable:
            raise SourceUnavailable(
                f"a hello in {self._spool.path} cannot be read",
                place=place,
                remedy="client and server must run as one user",
            )
        if not found:
            raise IdentityMismatch(
                f"no server of SGLang {facts.release} with the model {facts.model_path} has left "
                f"its hello in {self._spool.path}",
                place=place,
                remedy=f"{SERVER_FLAGS}, with this folder as HSSTORE_SPOOL",
            )
        if all(hello.refused for hello in found):
            raise IdentityMismatch(
                f"its plugin captures nothing: {found[0].refused}", place=place, remedy=SERVER_FLAGS
            )
        if not any(self._fits(hello) for hello in found):
            raise self._misfit(next(h for h in found if not h.refused), place)

    def boot_of(self, reply: Reply, facts: Facts, place: str) -> str | None:
        """Read from the first answer of a launch; every hello of that boot must fit the store."""
        try:
            _, boot = self._read(reply, None)
        except AttemptFailed as failed:
            if failed.kind == "torn-spool":
                raise SourceUnavailable(
                    f"the server wrote no states into {self._spool.path}: {failed.detail}",
                    place=place,
                    remedy=f"{SERVER_FLAGS}, with this folder as HSSTORE_SPOOL",
                ) from None
            raise
        hellos = [hello for hello in self._spool.hellos() if hello.boot == boot]
        for hello in hellos:
            if hello.refused or not self._fits(hello) or hello.release != facts.release:
                raise self._misfit(hello, place)
            self._refuse_other_ids(hello, facts, place)
        if not hellos or {hello.rank for hello in hellos} != set(range(hellos[0].ranks)):
            raise IdentityMismatch(
                f"a hello of its boot {boot} is missing in {self._spool.path}",
                place=place,
                remedy="launch the server anew",
            )
        self._hellos[boot] = hellos
        return boot

    def recorded(self, boot: str | None) -> Mapping[str, str]:
        """The transport and the plugin's version."""
        hellos = self._hellos.get(boot or "", [])
        plugin = {"plugin": hellos[0].plugin} if hellos else {}
        return {"transport": self.transport, **plugin}

    def most_tokens(self, boots: Iterable[str | None]) -> int:
        """As many as fit into the smallest spool: one rank may have to write them all."""
        hellos = [hello for boot in boots for hello in self._hellos.get(boot or "", [])]
        bounds = [hello.spool_bytes // hello.ranks for hello in hellos if hello.spool_bytes]
        row_bytes = self._rows.layers * self._rows.hidden_size * ITEMSIZE[self._rows.dtype]
        return int(min(bounds, default=1 << 62) * SPOOL_SHARE) // row_bytes

    def forget(self, rid: str) -> None:
        """Remove the request's file."""
        self._spool.remove(rid)

    def clear(self, run: str) -> int:
        """Remove the run's files."""
        return self._spool.remove_run(run)

    def close(self) -> None:
        """Let go of the folder."""
        self._spool.close()

    def _fits(self, hello: Hello) -> bool:
        wanted = (self._capture.layers, self._capture.dtype, self._rows.hidden_size, "post")
        return wanted == (hello.layers, hello.dtype, hello.hidden_size, hello.norm)

    def _refuse_other_ids(self, hello: Hello, facts: Facts, place: str) -> None:
        """The ids that the plugin gave to SGLang must be those that are known here."""
        numbered = [layer for layer in self._capture.layers if isinstance(layer, int)]
        if not numbered:
            return
        try:
            wanted = engine_ids(next(iter(facts.architectures), ""), numbered, self._num_layers)
        except UnknownLayerIds as error:
            raise IdentityMismatch(str(error), place=place, remedy=SERVER_FLAGS) from None
        if tuple(sorted(hello.engine_layers)) != wanted:
            raise IdentityMismatch(
                f"its plugin asks SGLang for the layer ids {hello.engine_layers}, not {wanted}",
                place=place,
                remedy=f"{SERVER_FLAGS}, with this version of hsstore",
            )

    def _misfit(self, hello: Hello, place: str) -> IdentityMismatch:
        if hello.refused:
            return IdentityMismatch(
                f"its plugin captures nothing: {hello.refused}", place=place, remedy=SERVER_FLAGS
            )
        listed = ",".join(map(str, hello.layers))
        return IdentityMismatch(
            f"SGLang {hello.release} with hsstore {hello.plugin} writes layers {listed} of "
            f"{hello.hidden_size} values in {hello.dtype}, norm {hello.norm}, and the store needs "
            f"{self._capture.layers_text()} of {self._rows.hidden_size} in {self._capture.dtype}",
            place=place,
            remedy=SERVER_FLAGS,
        )
