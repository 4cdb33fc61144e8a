"""Sources of hidden states that need no model: the same tokens always get the same states."""

import random
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Failed, Origin, Request, Waiting, expected_match


def seeded_states(identity: StoreIdentity, input_ids: NDArray[np.int32]) -> NDArray[Any]:
    """States [tokens, layers, hidden] in the stored dtype, drawn from the token ids alone."""
    geometry = identity.geometry
    shape = (len(input_ids), geometry.layers, geometry.hidden_size)
    seed = xxhash.xxh3_64_intdigest(np.ascontiguousarray(input_ids, "<i4").data)
    values = np.random.default_rng(seed).standard_normal(shape, np.float32)
    if identity.capture.dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(identity.capture.dtype)


class SeededSource:
    """Answers with ``seeded_states``; ``failing`` names the keys that cannot be had, and why.

    ``match`` overrides what the store demands of an origin. ``asked`` lists the samples that were
    asked for, in order, and ``safe`` those that were said to be settled; ``tokens`` counts the
    tokens asked for.
    """

    def __init__(
        self,
        identity: StoreIdentity,
        failing: Mapping[str, str] | None = None,
        *,
        match: Mapping[str, str | None] | None = None,
        engine: str = "seeded",
    ) -> None:
        self.identity = identity
        self.failing = failing or {}
        self.asked: list[int] = []
        self.safe: list[int] = []
        self.tokens = 0
        self._match = match or {}
        self._engine = engine

    def origin(self) -> Origin:
        """An origin that agrees with the store in everything but ``match``."""
        match = expected_match(self.identity.model, self.identity.capture)
        return Origin({**match, **self._match}, {"engine": self._engine})

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed | Waiting]:
        """One answer a request, in their order."""
        for request in requests:
            self.note(request)
            yield self.answer(request)

    def note(self, request: Request) -> None:
        """Remember what was asked for."""
        self.asked.append(request.sample)
        self.tokens += len(request.input_ids)

    def answer(self, request: Request) -> Extracted | Failed:
        """The answer to one request."""
        if request.key in self.failing:
            return Failed(request.sample, "seeded", self.failing[request.key])
        return Extracted(request.sample, seeded_states(self.identity, request.input_ids))

    def settled(self, samples: Iterable[int]) -> None:
        """Remember which samples are safe, in the order told."""
        self.safe.extend(samples)

    def close(self) -> None:
        """Nothing is held."""


class ManyInFlight(SeededSource):
    """Has up to ``in_flight`` requests at once and answers them in an order drawn from ``seed``.

    ``before_answer`` is called with the number of answers given so far, ahead of each; what it
    raises, the source raises, and the Waiting that it returns is given first, as often as it does
    so. Requests for ``silent`` samples are held as long as there is another to answer.
    ``answered`` lists the samples in the order of their answers.
    """

    def __init__(
        self,
        identity: StoreIdentity,
        failing: Mapping[str, str] | None = None,
        *,
        in_flight: int = 4,
        seed: int = 0,
        silent: Collection[int] = (),
        before_answer: Callable[[int], Waiting | None] = lambda _: None,
    ) -> None:
        super().__init__(identity, failing)
        self.in_flight = in_flight
        self.silent = silent
        self.before_answer = before_answer
        self.answered: list[int] = []
        self._chance = random.Random(seed)  # noqa: S311 - no secret

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed | Waiting]:
        """Every answer once."""
        waiting, held = iter(requests), list[Request]()
        while True:
            while len(held) < self.in_flight and (request := next(waiting, None)) is not None:
                self.note(request)
                held.append(request)
            if not held:
                return
            while (moment := self.before_answer(len(self.answered))) is not None:
                yield moment
            chosen = self._chosen(held)
            held.remove(chosen)
            self.answered.append(chosen.sample)
            yield self.answer(chosen)

    def _chosen(self, held: list[Request]) -> Request:
        ready = [request for request in held if request.sample not in self.silent]
        return self._chance.choice(ready or held)
