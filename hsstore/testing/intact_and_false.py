"""States that are intact and false: every seal is true, and the model never said them.

They are on a store whose states are like a model's (``causal.py``). Which level promises to find
them differs: PROMISED_BY_THOROUGH by what rows are, PROMISED_BY_AUDIT only by computing them again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from hsstore.storage.digest import as_float32
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.testing.causal import States, as_stored, causal_states, plant

# Sample 20 begins as every second one does, and 37 is of the same length.
SAMPLE, SAME_LENGTH = 20, 37
NAN = {"bfloat16": 0x7FC0, "float16": np.nan, "float32": np.nan}

Promised = Literal["manifest", "thorough", "audit"]


@dataclass(frozen=True, slots=True)
class Falsehood:
    """One lie. ``kind`` must name exactly the samples that ``tell`` returns, from ``level`` on.

    A sample that is told by an honest one's rows may cost that one the same finding: ``in_doubt``
    are such. ``unseen`` are false ones that only an audit sees.
    """

    name: str
    kind: str
    level: Promised
    tell: Callable[[Store], set[int]]
    in_doubt: frozenset[int] = frozenset()
    unseen: frozenset[int] = frozenset()


def _of(*samples: int, by: Callable[[States], States]) -> Callable[[Store], set[int]]:
    def tell(store: Store) -> set[int]:
        plant(store, dict.fromkeys(samples, by))
        return set(samples)

    return tell


def _set(rows: slice, layers: slice, value: Any) -> Callable[[States], States]:  # noqa: ANN401
    def changed(states: States) -> States:
        states[rows, layers] = value
        return states

    return changed


def _nan_rows(store: Store) -> set[int]:
    value = NAN[store.identity.capture.dtype]
    return _of(SAMPLE, by=_set(slice(2, 4), slice(None), value))(store)


def _constant(states: States) -> States:
    states[:, 1] = states[0, 1]
    return states


def _rows_of_another(store: Store) -> set[int]:
    other = Reader(store).read(SAME_LENGTH)
    return _of(SAMPLE, by=lambda _: other)(store)


def _shifted_by_one_sample(store: Store) -> set[int]:
    """Each sample of a shard has the rows that its neighbour's batch left in its place."""
    shard = store.samples.extent(SAMPLE).shard
    samples = [*store.samples.shard_samples(shard)]
    reader = Reader(store)
    every = np.concatenate([reader.read(sample) for sample in samples])
    rolled = np.roll(every, len(reader.read(samples[0])), axis=0)
    ends = np.cumsum([len(reader.read(sample)) for sample in samples])
    pieces = dict(zip(samples, np.split(rolled, ends[:-1]), strict=True))
    plant(store, {sample: _given(piece) for sample, piece in pieces.items()})
    return set(samples)


def _given(piece: States) -> Callable[[States], States]:
    return lambda _: np.ascontiguousarray(piece)


def _of_other_weights(store: Store) -> set[int]:
    """A later revision of the model: rows of the same norms in other directions."""
    identity, tokens = store.identity, store.tokens(store.samples.extent(SAMPLE).shard)
    _, ids, _ = tokens.sample(SAMPLE - tokens.first_sample)
    return _of(SAMPLE, by=lambda _: causal_states(identity, ids[::-1].copy()))(store)


def _of_a_revision(store: Store) -> set[int]:
    """As by weights that were trained a little longer: near, in norm and in direction."""

    def trained(states: States) -> States:
        values = as_float32(states)
        noise = np.random.default_rng(7).standard_normal(values.shape, np.float32)
        return as_stored(store.identity, values * (1 + 0.2 * noise))

    return _of(SAMPLE, by=trained)(store)


EVERY = slice(None)
PROMISED_BY_THOROUGH = (
    Falsehood("nan-rows", "content-nonfinite", "thorough", _nan_rows),
    Falsehood("zero-layer", "content-zero", "thorough",
              _of(SAMPLE, by=_set(EVERY, slice(1, 2), 0))),
    Falsehood("zero-rows", "content-zero", "thorough",
              _of(SAMPLE, by=_set(slice(3, 5), EVERY, 0))),
    Falsehood("constant-layer", "content-constant", "thorough", _of(SAMPLE, by=_constant)),
    Falsehood("rows-of-another", "content-duplicated", "thorough", _rows_of_another,
              frozenset({SAME_LENGTH})),
    Falsehood("shifted-by-a-row", "content-shifted", "thorough",
              _of(SAMPLE, by=lambda states: np.roll(states, -1, axis=0))),
    Falsehood("shifted-by-a-sample", "content-shifted", "thorough", _shifted_by_one_sample,
              # It got the rows of 17, which begins with the same prompt.
              unseen=frozenset({19})),
    Falsehood("swapped-layers", "content-outlier", "manifest",
              _of(SAMPLE, by=lambda states: states[:, [0, 2, 1]].copy())),
    Falsehood("other-weights", "content-shifted", "thorough", _of_other_weights),
)  # fmt: skip
PROMISED_BY_AUDIT = (Falsehood("other-revision", "audit-wrong", "audit", _of_a_revision),)
