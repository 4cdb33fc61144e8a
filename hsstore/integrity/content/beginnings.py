"""Samples that begin with the same tokens must begin with the same rows.

In a causal model a row depends on the tokens up to its own and on nothing else. Where most of the
samples that share their first tokens agree in the last row of that beginning, a sample that is far
from them holds other rows than its own: shifted, or of another sample or layer. Where nobody
agrees (states that depend on more, or no states at all) nothing is said.
"""

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.integrity.content.sample_scan import BEGINNINGS, Looked

# Relative errors. Measured between engines, batch sizes and dtypes: at most NEAR; between rows of
# different beginnings hardly ever below FAR in every layer.
NEAR = 0.25
FAR = 0.5
# Samples with different tokens further on that must agree, and the part of all that they must be.
WITNESSES = 3
MOST = 2 / 3
# Of how many beginnings and kinds of rows to keep account.
BEGINNINGS_KEPT = 1 << 16
KINDS_KEPT = 8

Sketch = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Stray:
    """A sample whose row is not that of the others that share its first ``tokens`` tokens.

    ``layer`` counts the telling layers; ``error`` is the relative error there; ``witnesses`` how
    many samples agree; ``unnamed`` how many more may be astray but were not kept account of.
    """

    shard: int
    sample: int
    tokens: int
    layer: int
    error: float
    witnesses: int
    unnamed: int


@dataclass(slots=True, eq=False)
class _Kind:
    """Samples that agree: the sketch of the first one, some of their token digests, and all."""

    sketch: Sketch
    texts: set[int] = field(default_factory=set)
    shards: "array[int]" = field(default_factory=lambda: array("q"))
    samples: "array[int]" = field(default_factory=lambda: array("q"))

    def add(self, shard: int, sample: int, text: int) -> None:
        """Count a sample; of texts, no more than are asked for."""
        self.shards.append(shard)
        self.samples.append(sample)
        if len(self.texts) < WITNESSES:
            self.texts.add(text)


@dataclass(slots=True)
class _Beginning:
    """All samples that share some first tokens; ``unnamed`` counts those that had to be forgotten.

    Kinds of one sample make room for others. How far they were from the greatest kind of then is
    kept, once that had its witnesses, and their sketches are not.
    """

    tokens: int
    kinds: list[_Kind] = field(default_factory=list)
    unnamed: int = 0
    _dropped: list[tuple[_Kind, _Kind, NDArray[np.float64]]] = field(default_factory=list)

    def add(self, sketch: Sketch, shard: int, sample: int, text: int) -> None:
        """Put a sample with those it agrees with."""
        kind = self._agreeing(sketch)
        if kind is None:
            if len(self.kinds) == KINDS_KEPT:
                self._drop()
            # Of itself: a view would keep the sketches of all beginnings of the sample.
            kind = _Kind(sketch.copy())
            self.kinds.append(kind)
        kind.add(shard, sample, text)

    def strays(self) -> Iterator[Stray]:
        """Those far from most."""
        most, apart = self._most(), self._apart()
        strangers = self.unnamed + sum(len(kind.samples) for kind, _ in apart)
        count = strangers + len(most.samples)
        if len(most.texts) < WITNESSES or len(most.samples) < MOST * count:
            return
        for kind, errors in apart:
            layer = int(errors.argmax())
            if errors[layer] > FAR:
                for shard, sample in zip(kind.shards, kind.samples, strict=True):
                    yield Stray(shard, sample, self.tokens, layer, float(errors[layer]),
                                len(most.samples), self.unnamed)  # fmt: skip

    def _agreeing(self, sketch: Sketch) -> _Kind | None:
        near = (k for k in self.kinds if relative_errors(sketch, k.sketch).max() <= NEAR)
        return next(near, None)

    def _most(self) -> _Kind:
        return max(self.kinds, key=lambda kind: len(kind.samples))

    def _apart(self) -> list[tuple[_Kind, NDArray[np.float64]]]:
        """The other kinds, and how far each is from the greatest."""
        most = self._most()
        kept = [(k, relative_errors(k.sketch, most.sketch)) for k in self.kinds if k is not most]
        # What was measured against a kind that others outgrew says nothing.
        nowhere = np.zeros(len(most.sketch))
        return kept + [(k, errors if of is most else nowhere) for k, of, errors in self._dropped]

    def _drop(self) -> None:
        victim = min(self.kinds, key=lambda kind: len(kind.samples))
        self.kinds.remove(victim)
        most = self._most()
        if len(most.texts) < WITNESSES:
            self.unnamed += len(victim.samples)
        else:
            errors = relative_errors(victim.sketch, most.sketch)
            victim.sketch = victim.sketch[:0].copy()
            self._dropped.append((victim, most, errors))


class Beginnings:
    """The beginnings of all samples seen; of those seen last where there are too many."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], _Beginning] = {}

    def add(self, shard: int, looked: Looked, ids: NDArray[np.int32]) -> None:
        """Take a sound sample and its token ids."""
        ids = np.ascontiguousarray(ids, "<i4")
        text = xxhash.xxh3_64_intdigest(ids.data)
        for position, sketch in zip(BEGINNINGS, looked.sketches, strict=False):
            key = position, xxhash.xxh3_64_intdigest(ids[: position + 1].data)
            if key not in self._kept:
                self._make_room()
                self._kept[key] = _Beginning(position + 1)
            self._kept[key].add(sketch, shard, looked.stored.sample, text)

    def strays(self) -> Iterator[Stray]:
        """The samples whose beginning is not theirs, each by its shortest such beginning."""
        told: set[int] = set()
        every = [stray for beginning in self._kept.values() for stray in beginning.strays()]
        for stray in sorted(every, key=lambda s: (s.shard, s.sample, s.tokens)):
            if stray.sample not in told:
                told.add(stray.sample)
                yield stray

    def _make_room(self) -> None:
        """Forget beginnings that one sample alone has, then the oldest."""
        if len(self._kept) < BEGINNINGS_KEPT:
            return
        shared = {k: b for k, b in self._kept.items() if len(b.kinds[0].samples) > 1}
        oldest = len(shared) - BEGINNINGS_KEPT // 2
        self._kept = dict([*shared.items()][max(oldest, 0) :])


def relative_errors(one: Sketch, other: Sketch) -> NDArray[np.float64]:
    """[layers], the distance of two rows [layers, values] relative to the longer one."""
    apart = np.linalg.norm(one - other, axis=1)
    length = np.maximum(np.linalg.norm(one, axis=1), np.linalg.norm(other, axis=1))
    errors = np.zeros(len(one))
    np.divide(apart, length, out=errors, where=length > 0)
    return errors
