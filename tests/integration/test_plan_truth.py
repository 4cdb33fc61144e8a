"""What ``plan_capacity`` says against what a finished store takes on this disk."""

import json
import math
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hsstore.extraction.extractor import extract
from hsstore.model.capacity import CapacityPlan, Workload, plan_capacity
from hsstore.model.source import Extracted, Origin, Request, expected_match
from hsstore.storage.create import create
from hsstore.storage.store import Store

PAYLOAD_BYTES = 64 << 20
TOLERANCE = 0.005
STORED = {"bfloat16": np.uint16, "float16": np.float16, "float32": np.float32}


class ConstantSource:
    """Answers every request with ones."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def origin(self) -> Origin:
        identity = self.store.identity
        return Origin(expected_match(identity.model, identity.capture), {"engine": "constant"})

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted]:
        identity = self.store.identity
        shape = len(identity.capture.layers), identity.model.hidden_size
        dtype = STORED[identity.capture.dtype]
        for request in requests:
            yield Extracted(request.sample, np.ones((len(request.input_ids), *shape), dtype))

    def settled(self, samples: Iterable[int]) -> None:
        pass

    def close(self) -> None:
        pass


class NoisySource(ConstantSource):
    """Answers with finite bfloat16 bits that nothing compresses."""

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted]:
        noise = np.random.default_rng(0)
        for answer in super().states(requests):
            bits = noise.integers(0, 1 << 16, answer.states.shape, np.uint16)
            bits[bits & 0x7F80 == 0x7F80] ^= 0x4000
            yield Extracted(answer.sample, bits)


def random_lengths(seed: int, row_bytes: int, mean: int) -> list[int]:
    """Log-normal lengths of at least the wanted payload."""
    chance, lengths = np.random.default_rng(seed), [1]
    while sum(lengths) * row_bytes < PAYLOAD_BYTES:
        lengths.append(max(1, round(chance.lognormal(math.log(mean), 0.9))))
    return lengths


def allocated_bytes(root: Path) -> int:
    paths = [root, *root.rglob("*")]
    return sum(path.lstat().st_blocks for path in paths) * 512


def fill(
    folder: Path, lengths: list[int], workload: Workload, source: type[ConstantSource]
) -> Path:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(
        json.dumps(
            {
                "model_type": "llama",
                "num_hidden_layers": 8,
                "hidden_size": workload.hidden_size,
                "vocab_size": 100,
            }
        )
    )
    dataset = folder / "samples.jsonl"
    with dataset.open("w") as file:
        for length in lengths:
            file.write(json.dumps({"input_ids": [7] * length}) + "\n")
    layers = tuple(range(workload.layers))
    store = create(
        folder / "store", dataset, model, layers, dtype=workload.dtype, codec=workload.codec
    )
    assert extract(store, source(store)).complete
    os.sync()
    return store.root


def check_counts(plan: CapacityPlan, root: Path) -> None:
    paths = [root, *root.rglob("*")]
    files = sum(path.is_file() for path in paths)
    assert plan.files == files
    assert plan.inodes == len(paths) + 4
    assert plan.shards == len(list((root / "commit").iterdir()))


@pytest.mark.parametrize(
    ("hidden_size", "layers", "dtype", "mean"),
    [
        (7168, 4, "bfloat16", 60),
        (7168, 2, "float32", 400),
        (64, 2, "float16", 700),
        (64, 4, "bfloat16", 40),
        (577, 3, "bfloat16", 300),
    ],
)
def test_store_bytes_are_what_the_finished_store_takes(
    hidden_size: int, layers: int, dtype: str, mean: int, tmp_path: Path
) -> None:
    row_bytes = layers * hidden_size * (4 if dtype == "float32" else 2)
    lengths = random_lengths(hidden_size + mean, row_bytes, mean)
    workload = Workload(layers=layers, hidden_size=hidden_size, dtype=dtype, lengths=lengths)
    plan = plan_capacity(workload)
    root = fill(tmp_path, lengths, workload, ConstantSource)
    taken = allocated_bytes(root)
    assert plan.exact
    assert plan.payload_bytes == sum(lengths) * row_bytes
    assert plan.store_bytes == pytest.approx(taken, rel=TOLERANCE)
    check_counts(plan, root)
    totals = Workload(
        layers=layers,
        hidden_size=hidden_size,
        dtype=dtype,
        tokens=sum(lengths),
        samples=len(lengths),
    )
    assert plan_capacity(totals).store_bytes >= taken


@pytest.mark.parametrize("source", [ConstantSource, NoisySource])
def test_a_compressed_store_stays_below_its_bound(
    source: type[ConstantSource], tmp_path: Path
) -> None:
    lengths = random_lengths(5, 4 * 7168 * 2, 60)
    workload = Workload(layers=4, hidden_size=7168, lengths=lengths, codec="blosc-zstd")
    plan = plan_capacity(workload)
    taken = allocated_bytes(fill(tmp_path, lengths, workload, source))
    assert not plan.exact
    assert taken <= plan.store_bytes
    assert plan.estimated_bytes < plan.store_bytes
