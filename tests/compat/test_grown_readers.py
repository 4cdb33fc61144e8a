"""Grown stores as other Zarr implementations see them: no trace of how they came to be."""

import importlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hsstore.model import keys
from hsstore.storage.create import create
from hsstore.storage.extend import extend
from hsstore.storage.store import Store
from hsstore.storage.token_file import token_digest

pytestmark = pytest.mark.zarr_compat

# One token each, so that the growths cross a chunk of the sample arrays (65536 samples).
PARTS = (65_000, 500, 100)
SHARD_ROWS = 32_768
ARRAYS = ["hidden_states", "input_ids", "loss_mask", "sample_digest", "sample_length",
          "sample_start"]  # fmt: skip


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Store:
    folder = tmp_path_factory.mktemp("grown")
    config = {"hidden_size": 2, "num_hidden_layers": 3, "vocab_size": 100}
    (folder / "config.json").write_text(json.dumps(config))
    dataset, first = folder / "data.jsonl", 0
    for part in PARTS:
        ids = (json.dumps({"input_ids": [n % 97]}) for n in range(first, first + part))
        dataset.write_text("\n".join(ids))
        if not first:
            create(folder / "store", dataset, folder, "1", "float16",
                   chunk_rows=1, shard_rows=SHARD_ROWS)  # fmt: skip
        else:
            extend(folder / "store", dataset)
        first += part
    store = Store.open(folder / "store")
    assert store.plan.generation == 2
    return store


def check(store: Store, arrays: dict[str, NDArray[Any]]) -> None:
    """Hold what a reader gave against the datasets."""
    assert sorted(arrays) == ARRAYS
    total = sum(PARTS)
    assert arrays["sample_length"].tolist() == [1] * total
    starts = arrays["sample_start"]
    assert starts.tolist() == store.samples.start.tolist()
    assert arrays["input_ids"][starts].tolist() == [n % 97 for n in range(total)]
    assert arrays["loss_mask"][starts].tolist() == [1] * total
    digests = np.frombuffer(
        b"".join(token_digest(np.array([n % 97], np.int32)) for n in range(total)), np.uint8
    )
    assert (arrays["sample_digest"] == digests.reshape(-1, 16)).all()
    assert arrays["hidden_states"].shape == (store.plan.shards * SHARD_ROWS, 1, 2)
    assert np.isnan(arrays["hidden_states"][[0, -1]]).all()


def test_each_growth_begins_on_a_shard(grown: Store) -> None:
    starts = [0, PARTS[0], PARTS[0] + PARTS[1]]
    shards = [0, 2, 3]
    assert grown.samples.start[starts].tolist() == [shard * SHARD_ROWS for shard in shards]


def test_zarr_python_reads_the_same(grown: Store) -> None:
    zarr = importlib.import_module("zarr")
    for consolidated in (True, False):
        group = zarr.open_group(grown.root / keys.ZARR, mode="r", use_consolidated=consolidated)
        check(grown, {name: array[:] for name, array in group.arrays()})


def test_tensorstore_reads_the_same(grown: Store) -> None:
    tensorstore = pytest.importorskip("tensorstore")

    def read(name: str) -> NDArray[Any]:
        kvstore = {"driver": "file", "path": str(grown.root / keys.ZARR / name)}
        array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()
        values: NDArray[Any] = array.read().result()
        return values

    check(grown, {name: read(name) for name in ARRAYS})


def test_xarray_reads_the_same(grown: Store) -> None:
    xarray = pytest.importorskip("xarray")
    with xarray.open_zarr(grown.root / keys.ZARR, chunks=None) as dataset:
        check(grown, {str(name): dataset[name].values for name in dataset.variables})


def test_a_chunk_holds_zeros_behind_the_last_sample(grown: Store) -> None:
    raw = Path(grown.root / keys.array_chunk(keys.SAMPLE_LENGTH, 1)).read_bytes()
    assert len(raw) == 65_536 * 4
    assert not any(raw[(sum(PARTS) - 65_536) * 4 :])
