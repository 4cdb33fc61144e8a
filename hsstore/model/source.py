"""The seam between extraction and what computes hidden states."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from hsstore.model.capture import Capture, ModelIdentity
from hsstore.model.document import Check, mapping, optional, record, text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Origin:
    """Where states come from.

    ``match`` is what must be equal for all states of a store (a None says that the source cannot
    tell): ``config``, ``weights``, ``quantisation``, ``revision``, ``tokenizer``, ``dtype``,
    ``layers``. ``recorded`` is kept for the reader and may differ from shard to shard: ``engine``,
    ``engine_version``, ``device`` and the like.
    """

    match: Mapping[str, str | None]
    recorded: Mapping[str, str] = field(default_factory=dict)

    def to_document(self) -> dict[str, Any]:
        """One item of a manifest's ``origins``."""
        return {"match": dict(self.match), "recorded": dict(self.recorded)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Origin":
        """The inverse of ``to_document``, for a validated document."""
        return cls(document["match"], document["recorded"])

    @staticmethod
    def fields() -> Check:
        """What ``to_document`` must look like."""
        return record({"match": mapping(optional(text())), "recorded": mapping(text())})


def expected_match(model: ModelIdentity, capture: Capture) -> dict[str, str | None]:
    """The ``match`` part that a store's identity demands of every origin."""
    return {
        "config": model.config_digest,
        "weights": model.weights_digest,
        "quantisation": model.quantisation or "none",
        "revision": model.revision,
        "tokenizer": model.tokenizer_digest,
        "dtype": capture.dtype,
        "layers": capture.layers_text(),
    }


def differences(expected: Mapping[str, str | None], found: Mapping[str, str | None]) -> list[str]:
    """What two ``match`` parts contradict each other in, one phrase a difference.

    A None on either side is unknown and contradicts nothing.
    """
    return [
        f"{name} is {found[name]!r}, not {expected[name]!r}"
        for name in sorted(expected.keys() & found.keys())
        if None not in (expected[name], found[name]) and expected[name] != found[name]
    ]


@dataclass(frozen=True, slots=True)
class Request:
    """One sample to compute: its global index, its key and its int32 token ids [tokens]."""

    sample: int
    key: str
    input_ids: "NDArray[np.int32]"


@dataclass(frozen=True, slots=True)
class Extracted:
    """The states of one sample: a C-contiguous array [tokens, layers, hidden].

    bfloat16 travels as uint16 bits, float16 and float32 as themselves. The source may reuse the
    memory once the next answer is asked for. ``origin`` is where this one comes from, where that
    is not the source's ``origin()`` (one of several servers, or a restarted one).
    """

    sample: int
    states: "NDArray[Any]"
    origin: Origin | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A sample that the source could not compute, for good: a stable kind and the words.

    ``attempts`` has a line for each attempt, in their order; empty means that there was one.
    """

    sample: int
    kind: str
    detail: str
    attempts: tuple[str, ...] = ()

    def tried(self) -> tuple[str, ...]:
        """A line for each attempt, however many there were."""
        return attempt_lines(self.kind, self.detail, self.attempts)


def attempt_lines(kind: str, detail: str, attempts: tuple[str, ...]) -> tuple[str, ...]:
    """A line for each attempt; an only attempt is told by its kind and words."""
    return attempts or (f"{kind}: {detail}",)


@dataclass(frozen=True, slots=True)
class Waiting:
    """No answer yet: a moment to sync, to show progress or to stop.

    A source that can wait long gives one at least every second then. ``detail`` says what for.
    With ``outage`` nothing is on its way: the source waits for a server to come back. ``news`` is
    what a user should know at once, beside whatever is waited for.
    """

    detail: str
    outage: bool = False
    news: bool = False


class HiddenStateSource(Protocol):
    """Computes hidden states: an embedded model, or a client of a server.

    A source verifies itself when it is made (model, layers, norm, dtype) and raises SourceError
    then; afterwards every request is answered exactly once, in any order, with Extracted or
    Failed. It pulls requests as it can work on them, so a slow consumer slows it down, and only
    from the thread that asks for answers. An outage
    of the whole source raises SourceUnavailable instead of failing sample after sample. Where it
    has to wait it may yield Waiting; a consumer then journals what it holds back.
    """

    def origin(self) -> Origin:
        """Where the states come from."""
        ...

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed | Waiting]:
        """The answers to ``requests``."""
        ...

    def settled(self, samples: Iterable[int]) -> None:
        """These samples are journalled: what the source kept for them may go."""
        ...

    def close(self) -> None:
        """Release what the source holds."""
        ...
