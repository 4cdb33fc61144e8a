"""Finding equal digests among many: 24 bytes each, whatever they are of."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

DIGEST_BYTES = 16


class DigestIndex:
    """Finds digests of 16 bytes, given as bytes or as an array of dtype S16."""

    def __init__(self, digests: Sequence[bytes] | NDArray[np.bytes_]) -> None:
        values = np.array(digests, f"S{DIGEST_BYTES}")
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]

    def find(self, digest: bytes) -> int | None:
        """The number of the first digest that is equal, None where none is."""
        return next(iter(self.find_all(digest)), None)

    def hold(self, digests: Sequence[bytes]) -> NDArray[np.bool_]:
        """Which of the digests are there, as bool [digests]."""
        if not len(self._sorted):
            return np.zeros(len(digests), bool)
        wanted = np.array(digests, self._sorted.dtype)
        at = np.searchsorted(self._sorted, wanted).clip(max=len(self._sorted) - 1)
        found: NDArray[np.bool_] = self._sorted[at] == wanted
        return found

    def find_all(self, digest: bytes) -> list[int]:
        """The numbers of all digests that are equal, in order."""
        # numpy drops zeros at the end of such values, of all of them alike.
        wanted = np.array(digest, self._sorted.dtype)
        low, high = (int(np.searchsorted(self._sorted, wanted, side)) for side in ("left", "right"))
        found: list[int] = self._order[low:high].tolist()
        return found
