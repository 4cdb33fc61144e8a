"""A source of hidden states that needs no model: the same tokens always get the same states."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Failed, Origin, Request, expected_match


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

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed]:
        """One answer a request, in their order."""
        for request in requests:
            self.asked.append(request.sample)
            self.tokens += len(request.input_ids)
            if request.key in self.failing:
                yield Failed(request.sample, "seeded", self.failing[request.key])
            else:
                states = seeded_states(self.identity, request.input_ids)
                yield Extracted(request.sample, states)

    def settled(self, samples: Iterable[int]) -> None:
        """Remember which samples are safe, in the order told."""
        self.safe.extend(samples)

    def close(self) -> None:
        """Nothing is held."""
