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

    def find_all(self, digest: bytes) -> list[int]:
        """The numbers of all digests that are equal, in order."""
        # numpy drops zeros at the end of such values, of all of them alike.
        wanted = np.array(digest, self._sorted.dtype)
        low, high = (int(np.searchsorted(self._sorted, wanted, side)) for side in ("left", "right"))
        found: list[int] = self._order[low:high].tolist()
        return found
