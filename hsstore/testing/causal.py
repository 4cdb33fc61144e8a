"""Stores whose states are like a model's: a row depends on the tokens up to its own.

And the planting of false states in them, with true seals: what a broken source would have made.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.extraction.extractor import extract
from hsstore.model.identity import StoreIdentity
from hsstore.model.keys import ShardVersion
from hsstore.model.source import Extracted, Request
from hsstore.storage.claim import claimed
from hsstore.storage.commit import commit_replacement
from hsstore.storage.create import create
from hsstore.storage.reader import Reader
from hsstore.storage.stage import staging, take_over
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import CONFIG, VOCABULARY

HIDDEN_SIZE = 64
# Between engines and batch sizes, bfloat16 states of one small model are up to 5 % apart.
NOISE = 0.02
SINK = 50.0

Ids = NDArray[np.int32]
States = NDArray[Any]


def causal_states(identity: StoreIdentity, input_ids: Ids) -> States:
    """States [tokens, layers, hidden] of a made-up causal model, with numeric noise.

    Norms double from layer to layer, and the first row of a sample is far longer than the others.
    """
    geometry = identity.geometry
    shape = (geometry.layers, geometry.hidden_size)
    ids = np.ascontiguousarray(input_ids, "<i4")
    rows = []
    for end in range(1, len(ids) + 1):
        seed = xxhash.xxh3_64_intdigest(ids[:end].data)
        rows.append(np.random.default_rng(seed).standard_normal(shape, np.float32))
    values = np.stack(rows) * 2.0 ** np.arange(geometry.layers, dtype=np.float32)[:, None]
    values[0] *= SINK
    noise = np.random.default_rng(xxhash.xxh3_64_intdigest(ids.data))
    values *= 1 + NOISE * noise.standard_normal(values.shape, np.float32)
    return as_stored(identity, values)


def as_stored(identity: StoreIdentity, values: NDArray[np.float32]) -> States:
    """Values in the stored dtype of a store."""
    if identity.capture.dtype == "bfloat16":
        return (values.astype("<f4").view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(identity.capture.dtype)


class CausalSource(SeededSource):
    """Answers with ``causal_states``."""

    def answer(self, request: Request) -> Extracted:
        """The answer to one request."""
        return Extracted(request.sample, causal_states(self.identity, request.input_ids))


def conversations(count: int, *, seed: int = 0) -> list[Ids]:
    """Token ids as in chats: one first token, a few prompts, and then all kinds of things."""
    chance = np.random.default_rng(seed)
    prompts = [chance.integers(2, VOCABULARY, 6, np.int32) for _ in range(2)]
    return [
        np.concatenate(
            [[1], prompts[n % 2], chance.integers(2, VOCABULARY, 4 + n % 17)], dtype=np.int32
        )
        for n in range(count)
    ]


def causal_store(
    root: Path, texts: Sequence[Ids], *, dtype: str = "bfloat16", codec: str = "none"
) -> Store:
    """A filled store of such states; sample n has the key ``#n``."""
    with tempfile.TemporaryDirectory() as folder:
        dataset, model = Path(folder, "dataset.jsonl"), Path(folder, "config.json")
        lines = (json.dumps({"id": f"#{n}", "input_ids": t.tolist()}) for n, t in enumerate(texts))
        dataset.write_text("\n".join(lines) + "\n")
        model.write_text(json.dumps(CONFIG | {"hidden_size": HIDDEN_SIZE}))
        store = create(root, dataset, model, (1, 3, "final"), dtype=dtype, codec=codec,
                       chunk_rows=8, shard_rows=256)  # fmt: skip
    extract(store, CausalSource(store.identity))
    return store


def plant(store: Store, false: dict[int, Callable[[States], States]]) -> None:
    """Commit false states for samples of one shard, as its next generation; the rest stay.

    ``false`` changes the true states of samples by their number.
    """
    (shard,) = {store.samples.extent(sample).shard for sample in false}
    reader, tokens = Reader(store), store.tokens(shard)
    samples = store.samples.shard_samples(shard)
    with claimed(store.filesystem, store.root, store.identity.uuid, shard) as claim:
        take_over(store, claim)
        committed, _ = store.committed()[shard]
        version = ShardVersion(shard, committed.generation + 1)
        with staging(store, version, claim) as writer:
            for sample in samples:
                key, _, _ = tokens.sample(sample - tokens.first_sample)
                states = false.get(sample, np.copy)(reader.read(sample))
                extent, origin = store.samples.extent(sample), CausalSource(store.identity).origin()
                writer.add(extent, key, states, origin)
            staged = writer.finish(samples)
        commit_replacement(
            store.filesystem, store.root, staged, claim, store.identity, replaces=committed
        )
