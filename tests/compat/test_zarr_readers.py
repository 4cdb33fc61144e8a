"""Stores as other Zarr implementations see them, with shards written here by hand.

What is written follows the Zarr specification alone: neither the writer of hsstore nor a Zarr
library takes part, and no torch, so that the file also runs under another zarr.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from numcodecs import Blosc
from numpy.typing import NDArray

from hsstore.model import keys
from hsstore.storage.create import create
from hsstore.storage.store import Store

pytestmark = pytest.mark.zarr_compat

LENGTHS = [5, 16, 33, 1, 40, 7]
CHUNK_ROWS, SHARD_ROWS, LAYERS, HIDDEN = 16, 64, 2, 24
FILL = {
    "bfloat16": np.uint16(0xFFFF),
    "float16": np.float16(np.nan),
    "float32": np.float32(np.nan),
}
ABSENT_SHARD = 1

ARRAYS = ["hidden_states", "input_ids", "loss_mask", "sample_digest", "sample_length",
          "sample_start"]  # fmt: skip


@pytest.fixture(params=[(d, c) for d in FILL for c in ("none", "blosc-zstd")], ids="-".join)
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Store, NDArray[Any]]:
    """A store with all shards but one, and the bits that its hidden states must read as."""
    dtype, codec = request.param
    store = make(tmp_path, dtype, codec)
    expected = np.full((store.plan.shards * SHARD_ROWS, LAYERS, HIDDEN), FILL[dtype])
    for shard in range(store.plan.shards):
        if shard != ABSENT_SHARD:
            rows = expected[shard * SHARD_ROWS : (shard + 1) * SHARD_ROWS]
            write_shard(store, shard, rows)
    return store, expected


def make(folder: Path, dtype: str, codec: str) -> Store:
    config = {"hidden_size": HIDDEN, "num_hidden_layers": 3, "vocab_size": 99}
    (folder / "config.json").write_text(json.dumps(config))
    lines = [json.dumps({"input_ids": [n + 1] * n, "loss_mask": [n % 2] * n}) for n in LENGTHS]
    (folder / "data.jsonl").write_text("\n".join(lines))
    return create(
        folder / "store", folder / "data.jsonl", folder, "1,final", dtype,
        codec=codec, chunk_rows=CHUNK_ROWS, shard_rows=SHARD_ROWS,
    )  # fmt: skip


def write_shard(store: Store, shard: int, rows: NDArray[Any]) -> None:
    """Write a shard's chunks in descending order, and put their values into ``rows``."""
    bits = np.random.default_rng(shard).integers(0, 256, rows.nbytes, np.uint8)
    index = np.full((SHARD_ROWS // CHUNK_ROWS, 2), 2**64 - 1, "<u8")
    compressed = store.identity.codec == "blosc-zstd"
    codec = Blosc("zstd", clevel=1, blocksize=1 << 20) if compressed else None
    payload = b""
    samples = [store.samples.extent(n) for n in store.samples.shard_samples(shard)]
    for extent in reversed(samples):
        chunks = extent.chunk_range(store.identity.geometry)
        for chunk in reversed(chunks):
            where = slice(chunk * CHUNK_ROWS, (chunk + 1) * CHUNK_ROWS)
            values = bits.view(rows.dtype).reshape(rows.shape)[where].copy()
            values[extent.first_row + extent.rows - chunk * CHUNK_ROWS :] = 0
            stored = values.tobytes() if codec is None else codec.encode(values)
            index[chunk] = len(payload), len(stored)
            payload += stored
            rows[where] = values
    raw = index.tobytes()
    path = store.root / keys.shard_file(shard)
    path.parent.mkdir(parents=True)
    path.write_bytes(payload + raw + google_crc32c.value(raw).to_bytes(4, "little"))


def bits(values: Any) -> NDArray[Any]:  # noqa: ANN401 - an array of any library
    array = np.ascontiguousarray(values)
    return array.view(f"<u{array.itemsize}")


def check_tokens(store: Store, arrays: dict[str, Any]) -> None:
    """Hold the arrays as a reader gave them against the dataset."""
    assert sorted(arrays) == ARRAYS
    starts, lengths = arrays["sample_start"], arrays["sample_length"]
    assert lengths.tolist() == LENGTHS
    for n, (start, length) in enumerate(zip(starts.tolist(), LENGTHS, strict=True)):
        rows = slice(start, start + length)
        assert arrays["input_ids"][rows].tolist() == [length + 1] * length
        assert arrays["loss_mask"][rows].tolist() == [length % 2] * length
        shard = store.samples.extent(n).shard
        tokens = store.tokens(shard)
        assert tokens.sample(n - tokens.first_sample)[1].tolist() == [length + 1] * length
    assert arrays["sample_digest"].shape == (len(LENGTHS), 16)


def test_zarr_python_reads_the_same_bits(filled: tuple[Store, NDArray[Any]]) -> None:
    zarr = importlib.import_module("zarr")
    store, expected = filled
    group = zarr.open_group(store.root / keys.ZARR, mode="r")
    arrays = dict(group.arrays())
    assert (bits(arrays["hidden_states"][:]) == bits(expected)).all()
    assert arrays["hidden_states"].metadata.dimension_names == ("row", "layer", "hidden")
    check_tokens(store, {name: array[:] for name, array in arrays.items()})
    assert group.attrs["hsstore"]["store"] == store.identity.uuid


def test_zarr_python_would_write_the_same_metadata(filled: tuple[Store, NDArray[Any]]) -> None:
    zarr = importlib.import_module("zarr")
    store, _ = filled
    for name in ARRAYS:
        path = store.root / keys.zarr_metadata(name)
        array = zarr.open_array(path.parent, mode="r")
        buffers = array.metadata.to_buffer_dict(
            importlib.import_module("zarr.core.buffer").default_buffer_prototype()
        )
        ours, theirs = json.loads(path.read_bytes()), json.loads(buffers["zarr.json"].to_bytes())
        # A codec without settings may be spelled with an empty configuration or as a bare name.
        assert normal(ours) == normal(theirs)


def normal(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, dict):
        if set(value) == {"name", "configuration"} and not value["configuration"]:
            return value["name"]
        return value["name"] if set(value) == {"name"} else {k: normal(v) for k, v in value.items()}
    return [normal(item) for item in value] if isinstance(value, list) else value


def test_arrays_open_without_the_consolidated_metadata(
    filled: tuple[Store, NDArray[Any]],
) -> None:
    zarr = importlib.import_module("zarr")
    store, expected = filled
    group = zarr.open_group(store.root / keys.ZARR, mode="r", use_consolidated=False)
    assert sorted(name for name, _ in group.arrays()) == ARRAYS
    assert (bits(group["hidden_states"][:]) == bits(expected)).all()


def test_consolidated_metadata_equals_each_arrays_own(filled: tuple[Store, NDArray[Any]]) -> None:
    store, _ = filled
    root = json.loads((store.root / keys.zarr_metadata()).read_bytes())
    inline = root["consolidated_metadata"]["metadata"]
    assert sorted(inline) == ARRAYS
    for name, array in inline.items():
        assert array == json.loads((store.root / keys.zarr_metadata(name)).read_bytes())


def test_tensorstore_reads_the_same_bits(filled: tuple[Store, NDArray[Any]]) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    store, expected = filled

    def read(name: str) -> NDArray[Any]:
        kvstore = {"driver": "file", "path": str(store.root / keys.ZARR / name)}
        array = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()
        values: NDArray[Any] = array.read().result()
        return values

    assert (bits(read("hidden_states")) == bits(expected)).all()
    check_tokens(store, {name: read(name) for name in ARRAYS})


def test_xarray_reads_the_same_bits(filled: tuple[Store, NDArray[Any]]) -> None:
    xarray = pytest.importorskip("xarray")
    store, expected = filled
    with xarray.open_zarr(store.root / keys.ZARR, chunks=None) as dataset:
        assert dataset["hidden_states"].dims == ("row", "layer", "hidden")
        assert dataset["hidden_states"].dtype == expected.dtype
        assert (bits(dataset["hidden_states"].values) == bits(expected)).all()
        check_tokens(store, {str(name): dataset[name].values for name in dataset.variables})


def test_absent_rows_are_not_a_number(filled: tuple[Store, NDArray[Any]]) -> None:
    zarr = importlib.import_module("zarr")
    store, _ = filled
    hidden_states = zarr.open_group(store.root / keys.ZARR, mode="r")["hidden_states"]
    absent = hidden_states[ABSENT_SHARD * SHARD_ROWS : (ABSENT_SHARD + 1) * SHARD_ROWS]
    if store.identity.capture.dtype == "bfloat16":
        assert (absent == 0xFFFF).all()
        absent = (absent.astype(np.uint32) << 16).view(np.float32)
    assert np.isnan(absent).all()
