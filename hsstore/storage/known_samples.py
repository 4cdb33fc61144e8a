"""Which keys and which token sequences a store has: 48 bytes a sample, whatever their length."""

from itertools import groupby

import xxhash

from hsstore.errors import InvalidDocument
from hsstore.model import commands, keys
from hsstore.model.progress import Progress
from hsstore.storage.dataset_digest import DatasetDigest
from hsstore.storage.digest_index import DigestIndex
from hsstore.storage.store import Store
from hsstore.storage.token_file import token_digest


class KnownSamples:
    """The samples of a store by key and by token digest, and the digest of all as a dataset."""

    def __init__(self, store: Store, progress: Progress) -> None:
        """Read every token file. Raises InvalidDocument where one is not the plan's, OSError."""
        key_digests: list[bytes] = []
        token_digests: list[bytes] = []
        self.dataset = DatasetDigest()
        progress.start(store.plan.tokens, 0, "tok")
        for shard in range(store.plan.shards):
            tokens = store.tokens(shard)
            key_digests += map(key_digest, tokens.keys)
            token_digests += [token_digest(ids) for _, ids, _ in tokens.samples()]
            self.dataset.update(tokens)
            progress.advance(len(tokens.input_ids))
        if self.dataset.hexdigest() != store.plan.dataset:
            raise InvalidDocument(
                "the token files are not the dataset that the plan names",
                place=str(store.root / keys.PLAN),
                remedy=f"run: {commands.hsstore('fsck', store.root)}",
            )
        self._keys, self._tokens = DigestIndex(key_digests), DigestIndex(token_digests)

    def with_key(self, key: str) -> int | None:
        """The number of the sample that has a key."""
        return self._keys.find(key_digest(key))

    def with_tokens(self, digest: bytes) -> int | None:
        """The number of the first sample whose token digest this is."""
        return self._tokens.find(digest)


def key_digest(key: str) -> bytes:
    """The 16 bytes of xxh3_128 over a key."""
    return xxhash.xxh3_128_digest(key.encode())


def keys_of(store: Store, samples: set[int]) -> dict[int, str]:
    """The keys of samples; each token file is read once."""
    found: dict[int, str] = {}
    for shard, own in groupby(
        sorted(samples), key=lambda sample: store.samples.extent(sample).shard
    ):
        tokens = store.tokens(shard)
        found |= {sample: tokens.keys[sample - tokens.first_sample] for sample in own}
    return found
