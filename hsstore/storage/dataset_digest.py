"""The dataset digest of a plan: over keys, token ids and loss masks of all samples in order."""

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.storage.token_file import ShardTokens


class DatasetDigest:
    """xxh3_128 over every sample so far, each part with its length before it."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def update(self, tokens: ShardTokens) -> None:
        """Add the samples of the next shard."""
        for key, ids, mask in tokens.samples():
            self._add(key.encode(), ids, mask)

    def _add(self, key: bytes, ids: NDArray[np.int32], mask: NDArray[np.uint8]) -> None:
        self._hash.update(len(key).to_bytes(4, "little") + key + len(ids).to_bytes(4, "little"))
        self._hash.update(ids.astype("<i4", copy=False).tobytes() + mask.tobytes())

    def hexdigest(self) -> str:
        """The digest, 32 hex digits."""
        return self._hash.hexdigest()
