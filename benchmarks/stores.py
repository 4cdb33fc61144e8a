"""Stores to measure on: one shard of equal samples, filled from states already in memory."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from measure import States

from hsstore.extraction.extractor import extract
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Request
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import empty_store

CHUNK_BYTES = 4 << 20


class MemorySource(SeededSource):
    """Answers every request with the same states, so that only writing them costs time."""

    def __init__(self, identity: StoreIdentity, states: States) -> None:
        super().__init__(identity)
        self._states = states

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted]:
        """The states that were given, whatever is asked."""
        for request in requests:
            yield Extracted(request.sample, self._states)


class DistinctSource(MemorySource):
    """The same states with other lowest bits for each sample, of up to 128 samples."""

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted]:
        """States whose norms and exponents are those that were given."""
        for request in requests:
            yield Extracted(request.sample, self._states ^ np.uint16(request.sample % 128))


def planned(root: Path, states: States, samples: int) -> Store:
    """A store for ``samples`` times ``states`` [tokens, layers, hidden], all in one shard."""
    tokens, layers, hidden = states.shape
    row_bytes = layers * hidden * states.itemsize
    chunk_rows = 1 << (max(CHUNK_BYTES // row_bytes, 1).bit_length() - 1)
    rows = -(-tokens // chunk_rows) * chunk_rows
    return empty_store(
        root,
        [tokens] * samples,
        layers=tuple(range(layers)),
        hidden_size=hidden,
        chunk_rows=chunk_rows,
        shard_rows=rows * samples,
    )


def fill(store: Store, states: States) -> None:
    """Extract everything that is missing."""
    extract(store, MemorySource(store.identity, states))


def fill_distinct(store: Store, states: States) -> None:
    """The same, and no two samples hold the same rows."""
    extract(store, DistinctSource(store.identity, states))
