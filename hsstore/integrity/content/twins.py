"""Rows that are equal bit for bit in two samples, though their tokens are not.

A row depends on its token, so this cannot be: one sample holds what belongs to another. What is
kept of a sample are hashes of three rows and of its content, so a million samples take 116 MB, and
three times as much while they are compared.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.integrity.content.sample_scan import Looked

Place = Literal["first", "second", "last", "all"]
PLACES: tuple[Place, ...] = ("first", "second", "last", "all")
# As many samples with one token make it sure whose the rows are.
WITNESSES = 3
EXAMPLES = 4

_ENTRY = np.dtype(
    [("hash", "<u8"), ("token", "<i8"), ("sample", "<i8"), ("shard", "<i4"), ("place", "<i1")]
)


@dataclass(frozen=True, slots=True)
class Twin:
    """A row (or all rows) of a sample that equals one of ``other``, whose token is another.

    ``certain`` says that the rows belong to the other one; else one of both is false.
    """

    shard: int
    sample: int
    place: Place
    other: int
    other_place: Place
    certain: bool

    @property
    def shifted(self) -> bool:
        """Whether the equal rows are at different places of the two samples."""
        return self.place != self.other_place


class Twins:
    """Hashes of all samples seen."""

    def __init__(self) -> None:
        self._entries: list[NDArray[np.void]] = []

    def add(self, shard: int, seen: list[tuple[Looked, NDArray[np.int32]]]) -> None:
        """Take sound samples of a shard, each with its token ids."""
        entries = [
            (row_hash, token, looked.stored.sample, shard, PLACES.index(place))
            for looked, ids in seen
            for place, row_hash, token in _hashes(looked, ids)
        ]
        self._entries.append(np.array(entries, _ENTRY))

    def found(self) -> Iterator[Twin]:
        """What is equal and may not be, by shard and sample."""
        if not self._entries:
            return
        every = np.concatenate(self._entries)
        every = every[np.argsort(every["hash"], kind="stable")]
        bounds = np.flatnonzero(np.diff(every["hash"])) + 1
        starts, ends = np.concatenate([[0], bounds]), np.concatenate([bounds, [len(every)]])
        twins: list[Twin] = []
        for at in np.flatnonzero(ends - starts > 1):
            equal = every[starts[at] : ends[at]]
            if (equal["token"] != equal["token"][0]).any():
                twins += _accused(equal)
        yield from sorted(twins, key=lambda t: (t.shard, t.sample, PLACES.index(t.place)))


def _hashes(looked: Looked, ids: NDArray[np.int32]) -> Iterator[tuple[Place, int, int]]:
    """Place, hash and token of rows; of all rows together: the hash of all tokens."""
    last = len(ids) - 1
    rows: dict[int, Place] = {last: "last", 1: "second", 0: "first"}
    for position, place in rows.items():
        if position in looked.hashes:
            yield place, looked.hashes[position], int(ids[position])
    if not looked.hashes:
        return
    whole = xxhash.xxh3_64_intdigest(np.ascontiguousarray(ids, "<i4").data)
    yield "all", int(looked.content[:16], 16), whole >> 1


def _accused(equal: NDArray[np.void]) -> Iterator[Twin]:
    """Each sample of other tokens than most; every one where most do not agree."""
    tokens = {(int(e["sample"]), int(e["token"])) for e in equal}
    ((usual, count), *_) = Counter(token for _, token in tokens).most_common(1)
    certain = count >= WITNESSES and 2 * count > len(tokens)
    others = _examples(equal)
    for entry in equal[equal["token"] != usual] if certain else equal:
        apart = (
            o for o in others if o["token"] != entry["token"] and o["sample"] != entry["sample"]
        )
        if (other := next(apart, None)) is not None:
            yield Twin(int(entry["shard"]), int(entry["sample"]), PLACES[entry["place"]],
                       int(other["sample"]), PLACES[other["place"]], certain)  # fmt: skip


def _examples(equal: NDArray[np.void]) -> list[np.void]:
    """The first and last entry of a few tokens: many may be equal, and one example is enough."""
    tokens = np.unique(equal["token"])[:EXAMPLES]
    of_each = [equal[equal["token"] == token] for token in tokens]
    return [entry for entries in of_each for entry in (entries[0], entries[-1])]
