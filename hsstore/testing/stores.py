"""Small stores for tests: created from sample lengths, filled by a seeded source."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path

import numpy as np
import xxhash

from hsstore.extraction.extractor import extract
from hsstore.model import keys
from hsstore.model.capture import Capture, Layer, ModelIdentity
from hsstore.model.document import seal
from hsstore.model.geometry import place
from hsstore.model.identity import StoreIdentity
from hsstore.model.keys import ShardVersion
from hsstore.model.plan import Plan, TokenFile
from hsstore.storage import token_file
from hsstore.storage.claim import claimed
from hsstore.storage.commit import commit_replacement
from hsstore.storage.sample_table import SampleTable
from hsstore.storage.stage import open_stage
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource, seeded_states

VOCABULARY = 1000


def key_of(sample: int) -> str:
    """The key that these stores give a sample."""
    return f"sample-{sample}"


def ids_of(sample: int, tokens: int) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    """The token ids int32 [tokens] that these stores give a sample."""
    return np.random.default_rng(sample).integers(0, VOCABULARY, tokens, np.int32)


def empty_store(
    root: Path,
    lengths: Sequence[int],
    *,
    layers: tuple[Layer, ...] = (1, "final"),
    hidden_size: int = 8,
    dtype: str = "bfloat16",
    codec: str = "none",
    chunk_rows: int = 4,
    shard_rows: int = 16,
) -> Store:
    """A store for samples of those lengths, with nothing extracted yet."""
    model = ModelIdentity(
        id="tiny",
        revision=None,
        quantisation=None,
        model_type="llama",
        num_layers=4,
        hidden_size=hidden_size,
        vocab_size=VOCABULARY,
        config_digest="0" * 32,
        weights_digest=None,
        tokenizer_digest=None,
    )
    identity = StoreIdentity(
        uuid="0123456789abcdef" * 2,
        created="2026-01-01T00:00:00Z",
        model=model,
        capture=Capture(layers, dtype),
        chunk_rows=chunk_rows,
        shard_rows=shard_rows,
        codec=codec,
    )
    for folder in keys.FOLDERS:
        (root / folder).mkdir(parents=True)
    (root / keys.PLAN / "00000000").mkdir()
    extents = list(place(lengths, identity.geometry))
    files = []
    for shard, group in groupby(extents, key=lambda e: e.shard):
        members = list(group)
        ids = [ids_of(e.sample, e.rows) for e in members]
        raw = token_file.encode(
            token_file.ShardTokens(
                members[0].sample,
                tuple(key_of(e.sample) for e in members),
                np.array([e.rows for e in members], np.int32),
                np.concatenate(ids),
                np.concatenate([np.arange(len(i)) > 0 for i in ids]).astype(np.uint8),
            )
        )
        (root / keys.tokens(0, shard)).write_bytes(raw)
        files.append(TokenFile(0, len(raw), xxhash.xxh3_128_hexdigest(raw)))
    plan = Plan(
        store=identity.uuid,
        generation=0,
        samples=len(lengths),
        shards=len(files),
        tokens=sum(lengths),
        dataset="0" * 32,
        sample_table=SampleTable.of(extents, shard_rows).digest(),
        token_files=tuple(files),
    )
    (root / keys.plan(0)).write_bytes(seal(plan.to_document()))
    (root / keys.IDENTITY).write_bytes(seal(identity.to_document()))
    return Store.open(root)


def fill(
    store: Store, *, shards: range | None = None, failing: Mapping[str, str] | None = None
) -> Store:
    """Extract into a store with a seeded source; ``failing`` keys are committed as absent."""
    extract(store, SeededSource(store.identity, failing), shards=shards)
    return store


def replace(store: Store, shard: int) -> None:
    """Commit the next generation of a shard, its samples extracted anew."""
    committed, _ = store.committed()[shard]
    version = ShardVersion(shard, committed.generation + 1)
    source = SeededSource(store.identity)
    samples, tokens = store.samples, store.tokens(shard)
    with claimed(store.filesystem, store.root, store.identity.uuid, shard) as claim:
        writer = open_stage(store.filesystem, store.root, store.identity, version, claim)
        for sample in samples.shard_samples(shard):
            key, ids, _ = tokens.sample(sample - tokens.first_sample)
            states = seeded_states(store.identity, ids)
            writer.add(samples.extent(sample), key, states, source.origin())
        staged = writer.finish()
        writer.close()
        commit_replacement(store.filesystem, store.root, staged, claim, store.identity.geometry)
