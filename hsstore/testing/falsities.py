"""States that are whole and false: put into a store under true seals, as a wrong engine would."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.model.keys import ShardVersion
from hsstore.storage.claim import claimed
from hsstore.storage.commit import commit_replacement
from hsstore.storage.reader import Reader
from hsstore.storage.stage import staging, take_over
from hsstore.storage.store import Store

States = NDArray[Any]
Falsity = Callable[[States], States]


def falsify(store: Store, sample: int, falsity: Falsity) -> int:
    """Commit the next generation of a sample's shard with other states of it; which generation.

    ``falsity`` is given the stored states [tokens, layers, hidden]. The other samples of the shard
    stay as they are, and every hash, seal and statistic is that of what is stored.
    """
    shard, reader = store.samples.extent(sample).shard, Reader(store)
    manifest = store.manifest(store.marker(shard))
    with claimed(store.filesystem, store.root, store.identity.uuid, shard) as claim:
        take_over(store, claim)
        committed, _ = store.committed()[shard]
        version = ShardVersion(shard, committed.generation + 1)
        with staging(store, version, claim) as writer:
            for stored in manifest.samples:
                states = reader.read(stored.sample)
                if stored.sample == sample:
                    states = np.ascontiguousarray(falsity(states))
                origin = manifest.origins[stored.origin]
                writer.add(store.samples.extent(stored.sample), stored.key, states, origin)
            staged = writer.finish(store.samples.shard_samples(shard))
        commit_replacement(
            store.filesystem, store.root, staged, claim, store.identity, replaces=committed
        )
    return version.generation


def on_values(change: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Falsity:
    """A falsity that works on float32 values, whatever the store's dtype."""

    def falsity(states: States) -> States:
        if states.dtype != np.uint16:
            return change(states.astype(np.float32)).astype(states.dtype)
        changed = change((states.astype(np.uint32) << 16).view(np.float32))
        return (changed.view(np.uint32) + 0x8000 >> 16).astype(np.uint16)

    return falsity


def swapped(one: int, other: int) -> Falsity:
    """Two layers (columns) in each other's place."""

    def falsity(states: States) -> States:
        order = np.arange(states.shape[1])
        order[[one, other]] = other, one
        return states[:, order]

    return falsity


def shifted(rows: int, first: int = 0) -> Falsity:
    """Rows from ``first`` on come that many too late; the last ones come round to the front."""

    def falsity(states: States) -> States:
        return np.concatenate([states[:first], np.roll(states[first:], rows, axis=0)])

    return falsity


def scaled(factor: float) -> Falsity:
    """Every value times a factor."""
    return on_values(lambda values: values * np.float32(factor))


def zeros(column: int, first: int = 0) -> Falsity:
    """One layer (a column) is zeros from a row on."""

    def falsity(states: States) -> States:
        changed = states.copy()
        changed[first:, column] = 0
        return changed

    return falsity


def rounded(bits: int) -> Falsity:
    """That many of the mantissa's last bits are gone."""

    def falsity(states: States) -> States:
        unsigned = states.view(f"<u{states.dtype.itemsize}")
        return (unsigned >> bits << bits).view(states.dtype)

    return falsity


def instead(other: States) -> Falsity:
    """Other states in their place, repeated or cut to as many rows."""

    def falsity(states: States) -> States:
        return np.resize(other, states.shape)

    return falsity
