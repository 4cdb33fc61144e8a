"""From a source's answers to staged samples: each request answered once, each answer checked."""

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from numpy.typing import NDArray

from hsstore.errors import SourceError
from hsstore.model.capture import Capture
from hsstore.model.source import (
    Extracted,
    Failed,
    HiddenStateSource,
    Origin,
    Request,
    Waiting,
)
from hsstore.storage.provenance import Provenance
from hsstore.storage.store import Store
from hsstore.storage.writer import ShardWriter

# The bits of a positive infinity in each stored dtype; bfloat16 is stored as uint16.
INFINITY = {"<u2": 0x7F80, "<f2": 0x7C00, "<f4": 0x7F80_0000}
# Small enough for a core's cache, so that looking twice at a piece reads memory once.
PIECE_BYTES = 256 << 10


def answered(
    requests: Iterable[Request], source: HiddenStateSource
) -> Iterator[tuple[Request, Extracted | Failed] | Waiting]:
    """The source's answers, each beside what it answers; its Waiting as it comes.

    Raises SourceError where the source answers what was not asked, or leaves something unanswered.
    """
    pending: dict[int, Request] = {}
    asked_all = False

    def asked() -> Iterator[Request]:
        nonlocal asked_all
        for request in requests:
            pending[request.sample] = request
            yield request
        asked_all = True

    for answer in source.states(asked()):
        if isinstance(answer, Waiting):
            yield answer
        elif (request := pending.pop(answer.sample, None)) is None:
            raise SourceError(f"the source answered sample {answer.sample}, which was not asked")
        else:
            yield request, answer
    if pending:
        raise SourceError(f"the source left {len(pending)} samples unanswered")
    if not asked_all:
        raise SourceError("the source ended before it had asked for every sample")


class Stager:
    """Puts answers into writers, once they are fit to be stored.

    ``origin`` is where answers come from that do not say so themselves.
    """

    def __init__(self, store: Store, provenance: Provenance, origin: Origin) -> None:
        self._store = store
        self._provenance = provenance
        self._agreed = [origin]

    def stage(
        self,
        writer: ShardWriter,
        request: Request,
        answer: Extracted | Failed,
        *,
        previous: str | None = None,
        earlier: tuple[str, ...] = (),
    ) -> Extracted | Failed:
        """Stage one answer, and return what was staged.

        States that are not all finite fail their sample (``non-finite``), whatever the source.
        ``previous`` is the content digest that they replace, ``earlier`` the attempts before this
        one. Raises SourceError for another shape or dtype than the store's, IdentityMismatch for
        another origin.
        """
        extent = self._store.samples.extent(request.sample)
        origin = self._origin(answer)
        answer = _without_non_finite(answer, writer.capture)
        if isinstance(answer, Failed):
            if earlier:
                answer = dataclasses.replace(answer, attempts=earlier + answer.tried())
            writer.fail(extent, request.key, answer, origin)
            return answer
        try:
            writer.add(extent, request.key, answer.states, origin, previous=previous)
        except ValueError as error:
            raise SourceError(f"the source answered something else: {error}") from error
        return answer

    def _origin(self, answer: Extracted | Failed) -> Origin:
        own = answer.origin if isinstance(answer, Extracted) else None
        if own is None:
            return self._agreed[0]
        if own not in self._agreed:
            self._provenance.refuse_contradiction([own])
            self._agreed.append(own)
        return own


def _without_non_finite(answer: Extracted | Failed, capture: Capture) -> Extracted | Failed:
    """The answer, or a failure that names the first layer and row with a value not finite."""
    if isinstance(answer, Failed) or is_finite(answer.states):
        return answer
    for column, layer in enumerate(capture.layers):
        for row, values in enumerate(answer.states[:, column]):
            if not is_finite(values):
                return Failed(answer.sample, "non-finite", f"layer {layer}, row {row}")
    return answer


def is_finite(states: NDArray[Any]) -> bool:
    """Whether no value is infinite or NaN; bfloat16 comes as its uint16 bits.

    Decided on the bits as integers, at the speed of memory: above the infinity of either sign
    there is nothing else.
    """
    infinity = INFINITY.get(states.dtype.str)
    if infinity is None:
        return True  # no dtype of a store: the writer refuses it
    itemsize = states.dtype.itemsize
    unsigned = states.reshape(-1).view(f"<u{itemsize}")
    negative = infinity | 1 << (8 * itemsize - 1)
    step = PIECE_BYTES // itemsize
    for at in range(0, len(unsigned), step):
        piece = unsigned[at : at + step]
        if piece.max() >= negative or piece.view(f"<i{itemsize}").max() >= infinity:
            return False
    return True
