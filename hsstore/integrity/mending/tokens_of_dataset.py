"""Token files of a store made again from the dataset that it was made or extended from.

What was read is placed as create and extend place it. The digest in the plan decides whether that
gave the very file that was lost, so nothing depends on the right guess.
"""

from collections.abc import Iterator
from itertools import groupby, islice
from pathlib import Path

import xxhash

from hsstore.errors import StoreError
from hsstore.model.geometry import Extent, place
from hsstore.model.progress import Progress
from hsstore.storage.roll_forward import valid_manifests
from hsstore.storage.store import Store
from hsstore.storage.token_file import encode
from hsstore.storage.tokenised import (
    Naming,
    TokenisedSample,
    count_samples,
    gather,
    read_samples,
)


def tokens_of_dataset(store: Store, path: Path, progress: Progress) -> dict[int, bytes]:
    """The token files, by shard, that a dataset gives and the plan proves.

    A dataset of each growth is tried by its order, as a whole and behind the samples that were
    there before; whatever is missing then, by the keys that manifests name. Raises MalformedInput
    for what is no dataset.
    """
    lengths, _ = count_samples(path, progress=progress)
    found: dict[int, bytes] = {}
    placed = 0
    for _, shards in store.plan.token_files.spans():
        end = _samples_up_to(store, shards.stop, placed + len(lengths))
        for skipped in sorted({0, placed}):
            if found.keys() >= {*shards}:
                break
            added = lengths[skipped : skipped + end - placed]
            extents = place(added, store.identity.geometry,
                            first_shard=shards.start, first_sample=placed)  # fmt: skip
            naming = Naming(number=placed - skipped)
            read = read_samples(path, vocab_size=store.identity.model.vocab_size, naming=naming)
            found |= _proven(store, extents, islice(read, skipped, None), shards)
        placed = end
    return found | _by_keys(store, path, set(range(store.plan.shards)) - found.keys())


def _proven(
    store: Store, extents: Iterator[Extent], samples: Iterator[TokenisedSample], shards: range
) -> dict[int, bytes]:
    """Place samples in order; the shards of which that makes the planned token file."""
    found = {}
    pairs = zip(extents, samples, strict=False)
    for shard, group in groupby(pairs, key=lambda pair: pair[0].shard):
        members = list(group)
        if shard not in shards:
            break
        raw = encode(gather(members[0][0].sample, [sample for _, sample in members]))
        if _is_planned(store, shard, raw):
            found[shard] = raw
    return found


def _samples_up_to(store: Store, shard: int, known: int) -> int:
    """The samples before a shard, by whatever proves that."""
    try:
        if shard >= store.plan.shards:
            return store.plan.samples
        return store.tokens(shard).first_sample
    except (StoreError, OSError):
        pass
    try:
        return store.samples.shard_samples(shard).start
    except (StoreError, OSError):
        return known


def _by_keys(store: Store, path: Path, shards: set[int]) -> dict[int, bytes]:
    """The shards whose keys a manifest names, each sample taken by its key."""
    wanted = {shard: named for shard in shards if (named := _named(store, shard))}
    keys = {key for named in wanted.values() for key in named.values()}
    if not keys:
        return {}
    read = read_samples(path, vocab_size=store.identity.model.vocab_size)
    by_key = {sample.key: sample for sample in read if sample.key in keys}
    found = {}
    for shard, named in wanted.items():
        if by_key.keys() >= set(named.values()):
            members = [by_key[key] for _, key in sorted(named.items())]
            raw = encode(gather(min(named), members))
            if _is_planned(store, shard, raw):
                found[shard] = raw
    return found


def _named(store: Store, shard: int) -> dict[int, str]:
    """The keys of a shard's samples, by number, where a manifest tells them and they are lost."""
    try:
        store.tokens(shard)
    except (StoreError, OSError):
        manifests = valid_manifests(store, shard)
    else:
        return {}
    if not manifests:
        return {}
    manifest = manifests[0][0]
    named = {stored.sample: stored.key for stored in manifest.samples}
    return named | {absent.sample: absent.key for absent in manifest.absent}


def _is_planned(store: Store, shard: int, raw: bytes) -> bool:
    return xxhash.xxh3_128_hexdigest(raw) == store.plan.token_files[shard].xxh3_128
