"""Which samples of a store have given tokens, by the digests of them."""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hsstore.errors import StoreError
from hsstore.model import keys
from hsstore.storage.digest_index import DIGEST_BYTES, DigestIndex
from hsstore.storage.store import Store
from hsstore.storage.token_file import token_digest
from hsstore.storage.zarr_arrays import TABLE_CHUNK


class TokenIndex:
    """Samples by token digest. What is found is a hint, and no proof.

    The array of digests is read at once and proven by nothing: where a sample is not in it, the
    token files decide, which are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._of_array = DigestIndex(_of_array(store))

    def find(self, digest: bytes) -> list[int]:
        """The numbers of all samples with this digest, in order."""
        return self._of_array.find_all(digest) or self._in_token_files(digest)

    def _in_token_files(self, digest: bytes) -> list[int]:
        numbers, index = self._of_token_files
        return [numbers[found] for found in index.find_all(digest)]

    @cached_property
    def _of_token_files(self) -> tuple[list[int], DigestIndex]:
        numbers, digests = _of_token_files(self._store)
        return numbers, DigestIndex(digests)


def _of_array(store: Store) -> NDArray[np.bytes_]:
    """The digests of all samples by their array; none where that is not whole."""
    samples = store.plan.samples
    try:
        raw = b"".join(
            store.filesystem.read(store.root / keys.array_chunk(keys.SAMPLE_DIGEST, chunk))
            for chunk in range(-(-samples // TABLE_CHUNK))
        )
    except OSError:
        raw = b""
    whole = len(raw) >= samples * DIGEST_BYTES
    return np.frombuffer(raw, f"S{DIGEST_BYTES}", samples if whole else 0)


def _of_token_files(store: Store) -> tuple[list[int], list[bytes]]:
    """The samples of every token file that is whole."""
    numbers: list[int] = []
    digests: list[bytes] = []
    for shard in range(store.plan.shards):
        try:
            tokens = store.tokens(shard)
        except (StoreError, OSError):
            continue
        numbers += range(tokens.first_sample, tokens.first_sample + len(tokens.keys))
        digests += [token_digest(ids) for _, ids, _ in tokens.samples()]
    return numbers, digests
