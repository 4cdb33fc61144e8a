"""Which samples of a store have given tokens, by the digests of them."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from hsstore.errors import StoreError
from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.storage.token_file import token_digest
from hsstore.storage.zarr_arrays import TABLE_CHUNK

DIGEST_BYTES = 16


class TokenIndex:
    """Samples by token digest. What is found is a hint, and no proof.

    The array of digests is read at once and proven by nothing: where a sample is not in it, the
    token files decide, which are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._of_array = _Sorted(*(_of_array(store) or ((), ())))

    def find(self, digest: bytes) -> list[int]:
        """The numbers of all samples with this digest, in order."""
        return self._of_array.find(digest) or self._of_token_files.find(digest)

    @cached_property
    def _of_token_files(self) -> "_Sorted":
        return _Sorted(*_of_token_files(self._store))


class _Sorted:
    """Numbers of samples by token digest: 40 bytes a sample."""

    def __init__(self, numbers: Sequence[int], digests: Sequence[bytes]) -> None:
        self._numbers = np.array(numbers, np.int64)
        values = np.array(digests, f"S{DIGEST_BYTES}")
        self._order = np.argsort(values, kind="stable")
        self._sorted = values[self._order]

    def find(self, digest: bytes) -> list[int]:
        """The numbers of all samples with this digest, in order; none where there is no such."""
        # numpy drops zeros at the end of such values, of all of them alike.
        wanted = np.array(digest, self._sorted.dtype)
        low, high = (int(np.searchsorted(self._sorted, wanted, side)) for side in ("left", "right"))
        found: list[int] = self._numbers[self._order[low:high]].tolist()
        return found


def _of_array(store: Store) -> tuple[Sequence[int], Sequence[bytes]] | None:
    """All samples by the array of digests; None where that is not whole."""
    samples = store.plan.samples
    try:
        raw = b"".join(
            store.filesystem.read(store.root / keys.array_chunk(keys.SAMPLE_DIGEST, chunk))
            for chunk in range(-(-samples // TABLE_CHUNK))
        )
    except OSError:
        return None
    if len(raw) < samples * DIGEST_BYTES:
        return None
    # Sequences to whoever looks from outside, and no lists of a million objects.
    return range(samples), np.frombuffer(raw, f"S{DIGEST_BYTES}", samples)  # type: ignore[return-value]


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
