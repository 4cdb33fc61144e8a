"""Where every sample of a store lies: its first global row and its tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.model.geometry import Extent


@dataclass(frozen=True, slots=True)
class SampleTable:
    """``start`` int64 [samples], global rows; ``length`` int32 [samples], tokens."""

    start: NDArray[np.int64]
    length: NDArray[np.int32]
    shard_rows: int

    def __len__(self) -> int:
        return len(self.start)

    @classmethod
    def of(cls, extents: Iterable[Extent], shard_rows: int) -> Self:
        """The table of placed samples, in order."""
        placed = np.fromiter(
            ((e.shard * shard_rows + e.first_row, e.rows) for e in extents),
            np.dtype([("start", "<i8"), ("length", "<i4")]),
        )
        return cls(placed["start"].copy(), placed["length"].copy(), shard_rows)

    def followed_by(self, other: Self) -> Self:
        """These samples, then those of another table."""
        return type(self)(
            np.concatenate([self.start, other.start]),
            np.concatenate([self.length, other.length]),
            self.shard_rows,
        )

    def extent(self, sample: int) -> Extent:
        """Where one sample lies."""
        shard, row = divmod(int(self.start[sample]), self.shard_rows)
        return Extent(sample, shard, row, int(self.length[sample]))

    def shard_samples(self, shard: int) -> range:
        """The global indexes of a shard's samples."""
        first = shard * self.shard_rows
        low, high = self.start.searchsorted((first, first + self.shard_rows)).tolist()
        return range(low, high)

    def digest(self) -> str:
        """xxh3_128 (32 hex digits) over all starts, then all lengths, little endian."""
        digest = xxhash.xxh3_128(np.ascontiguousarray(self.start, "<i8").data)
        digest.update(np.ascontiguousarray(self.length, "<i4").data)
        return digest.hexdigest()
