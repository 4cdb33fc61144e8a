"""Small stores on disk for tests, made and filled by the same code as real ones."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hsstore.extraction.extractor import extract
from hsstore.storage.create import create
from hsstore.storage.store import Store
from hsstore.testing.hashed_source import HashedSource

VOCABULARY = 97
LENGTHS = (5, 17, 9, 30, 3, 12, 8, 25, 14, 6, 32, 11)
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 6,
    "hidden_size": 64,
    "vocab_size": VOCABULARY,
    "torch_dtype": "bfloat16",
}


def empty_store(
    root: Path,
    lengths: Sequence[int] = LENGTHS,
    *,
    dtype: str = "bfloat16",
    codec: str = "none",
    chunk_rows: int = 8,
    shard_rows: int = 64,
    seed: int = 7,
) -> Store:
    """A store of samples of those lengths, keys ``s0``, ``s1``, ...; nothing is extracted yet."""
    beside = root.parent / f"{root.name}.inputs"
    (beside / "model").mkdir(parents=True)
    (beside / "model" / "config.json").write_text(json.dumps(CONFIG))
    numbers = np.random.default_rng(seed)
    with (beside / "data.jsonl").open("w") as file:
        for n, length in enumerate(lengths):
            ids = numbers.integers(0, VOCABULARY, length).tolist()
            file.write(json.dumps({"id": f"s{n}", "input_ids": ids}) + "\n")
    return create(root, beside / "data.jsonl", beside / "model", "1,3,final", dtype=dtype,
                  codec=codec, chunk_rows=chunk_rows, shard_rows=shard_rows)  # fmt: skip


def filled_store(root: Path, lengths: Sequence[int] = LENGTHS, **options: object) -> Store:
    """An ``empty_store``, filled from a HashedSource."""
    store = empty_store(root, lengths, **options)  # type: ignore[arg-type]
    extract(store, HashedSource(store.identity))
    return store


def contents(store: Store) -> dict[str, str]:
    """The content digest of every committed sample by key."""
    return {
        sample.key: sample.content
        for shard in store.committed()
        for sample in store.manifest(store.marker(shard)).samples
    }
