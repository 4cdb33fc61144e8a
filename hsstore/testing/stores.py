"""Small stores for tests: created from sample lengths, filled by a seeded source."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hsstore.extraction.extractor import extract
from hsstore.model.calibration import PROJECTIONS, Calibration, Engine
from hsstore.model.capture import Layer
from hsstore.model.keys import ShardVersion
from hsstore.storage.claim import claimed
from hsstore.storage.commit import commit_replacement
from hsstore.storage.create import create
from hsstore.storage.extend import extend
from hsstore.storage.stage import staging, take_over
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource, seeded_states

VOCABULARY = 1000
CONFIG = {"model_type": "llama", "num_hidden_layers": 8, "vocab_size": VOCABULARY}
LENGTHS = (5, 17, 9, 30, 3, 12, 8, 25, 14, 6, 32, 11)


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
    layers: Sequence[Layer] = (1, "final"),
    hidden_size: int = 8,
    dtype: str = "bfloat16",
    codec: str = "none",
    chunk_rows: int = 4,
    shard_rows: int = 16,
) -> Store:
    """A store for samples of those lengths, with nothing extracted yet.

    Every sample's first token is left out of its loss mask.
    """
    with tempfile.TemporaryDirectory() as folder:
        dataset, model = Path(folder, "dataset.jsonl"), Path(folder, "model", "config.json")
        model.parent.mkdir()
        dataset.write_text("".join(_line(n, tokens) for n, tokens in enumerate(lengths)))
        model.write_text(json.dumps(CONFIG | {"hidden_size": hidden_size}))
        return create(
            root,
            dataset,
            model,
            layers,
            dtype=dtype,
            codec=codec,
            chunk_rows=chunk_rows,
            shard_rows=shard_rows,
        )


def more_samples(path: Path, lengths: Sequence[int], *, first: int, named: bool = True) -> Path:
    """A dataset to extend these stores by; its samples have the numbers from ``first`` on.

    Without names they have no ids.
    """
    lines = [json.loads(_line(n, tokens)) for n, tokens in enumerate(lengths, first)]
    if not named:
        lines = [{name: line[name] for name in line if name != "id"} for line in lines]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def grown(store: Store, *growths: Sequence[int]) -> Store:
    """The store after each of these growths, given by the lengths of the new samples."""
    with tempfile.TemporaryDirectory() as folder:
        for lengths in growths:
            dataset = more_samples(Path(folder, "more"), lengths, first=store.plan.samples)
            store = extend(store, dataset).store
    return store


def _line(sample: int, tokens: int) -> str:
    ids, mask = ids_of(sample, tokens).tolist(), [0] + [1] * (tokens - 1)
    return json.dumps({"id": key_of(sample), "input_ids": ids, "loss_mask": mask}) + "\n"


def fill(
    store: Store, *, shards: range | None = None, failing: Mapping[str, str] | None = None
) -> Store:
    """Extract into a store with a seeded source; ``failing`` keys are committed as absent."""
    extract(store, SeededSource(store.identity, failing), shards=shards)
    return store


def filled_store(
    root: Path,
    lengths: Sequence[int] = LENGTHS,
    *,
    dtype: str = "bfloat16",
    codec: str = "none",
    shards: range | None = None,
    failing: Mapping[str, str] | None = None,
) -> Store:
    """A store to be damaged, filled as by ``fill``: its shards have several pages and chunks."""
    return fill(
        empty_store(
            root,
            lengths,
            layers=(1, 3, "final"),
            hidden_size=64,
            dtype=dtype,
            codec=codec,
            chunk_rows=8,
            shard_rows=64,
        ),
        shards=shards,
        failing=failing,
    )


def grown_filled_store(root: Path, *, codec: str = "none") -> Store:
    """``filled_store`` with its last samples added by two growths: three generations of plans."""
    first, second = 2, 8
    store = filled_store(root, LENGTHS[:first], codec=codec)
    return fill(grown(store, LENGTHS[first:second], LENGTHS[second:]))


def contents(store: Store) -> dict[str, str]:
    """The content digest of every committed sample by key."""
    return {
        sample.key: sample.content
        for shard in store.committed()
        for sample in store.manifest(store.marker(shard)).samples
    }


def replace(store: Store, shard: int) -> None:
    """Commit the next generation of a shard, its samples extracted anew."""
    source = SeededSource(store.identity)
    samples, tokens = store.samples, store.tokens(shard)
    with claimed(store.filesystem, store.root, store.identity.uuid, shard) as claim:
        take_over(store, claim)
        committed, _ = store.committed()[shard]
        version = ShardVersion(shard, committed.generation + 1)
        with staging(store, version, claim) as writer:
            for sample in samples.shard_samples(shard):
                key, ids, _ = tokens.sample(sample - tokens.first_sample)
                states = seeded_states(store.identity, ids)
                writer.add(samples.extent(sample), key, states, source.origin())
            staged = writer.finish(samples.shard_samples(shard))
        commit_replacement(
            store.filesystem, store.root, staged, claim, store.identity, replaces=committed
        )


def calibration(store: Store, number: int = 0, *, input_id: int = 7) -> Calibration:
    """A calibration by structure that the store could have."""
    return Calibration(
        store=store.identity.uuid,
        number=number,
        when="2026-01-31T12:00:00Z",
        method="structure",
        engine=Engine("sglang", "0.5.23", "json", (0, "final")),
        layers=store.identity.capture.layers,
        norm="post",
        agreement=(),
        doubt="no reference was at hand",
        input_ids=(input_id,),
        sketch=((0.5,) * PROJECTIONS,) * 2,
    )
