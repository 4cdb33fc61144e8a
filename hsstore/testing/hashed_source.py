"""Sources of hidden states that need no model."""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Failed, Origin, Request, expected_match
from hsstore.storage.codec import stored_dtype


class HashedSource:
    """States derived from the token ids: equal ids give equal bits, in every process.

    ``asked`` lists the samples whose states were computed, ``tokens`` counts their tokens;
    ``failing`` are the samples that fail.
    """

    def __init__(self, identity: StoreIdentity, *, failing: Iterable[int] = (),
                 match: dict[str, str | None] | None = None,
                 engine: str = "hashed") -> None:  # fmt: skip
        self.asked: list[int] = []
        self.tokens = 0
        self._identity = identity
        self._failing = frozenset(failing)
        self._match = match or {}
        self._engine = engine

    def origin(self) -> Origin:
        """The origin that the store demands, unless told otherwise."""
        match = expected_match(self._identity.model, self._identity.capture)
        return Origin({**match, **self._match}, {"engine": self._engine})

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed]:
        """One answer a request, in order."""
        for request in requests:
            self.asked.append(request.sample)
            self.tokens += len(request.input_ids)
            if request.sample in self._failing:
                yield Failed(request.sample, "refused", "this sample always fails")
            else:
                yield Extracted(request.sample, hashed_states(request.input_ids, self._identity))

    def close(self) -> None:
        """Nothing is held."""


def hashed_states(input_ids: NDArray[np.int32], identity: StoreIdentity) -> NDArray[Any]:
    """Finite states [tokens, layers, hidden] in the store's stored dtype."""
    geometry, dtype = identity.geometry, stored_dtype(identity.capture.dtype)
    shape = (len(input_ids), geometry.layers, geometry.hidden_size)
    seed = np.cumsum(input_ids, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    place = np.arange(shape[1] * shape[2], dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (seed[:, None] ^ place) >> np.uint64(40)
    values = (mixed.astype(np.float32) / np.float32(1 << 24) - np.float32(0.5)).reshape(shape)
    if dtype == np.uint16:
        return (values.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return values.astype(dtype)
