"""Stores that hsstore filled, through its commands, as other Zarr implementations see them.

One sample of each is absent. Nothing here needs torch, so that the file also runs under another
zarr; what stands in for a model answers from the token ids alone.
"""

import importlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hsstore.errors import SampleAbsent
from hsstore.model import keys
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.stores import empty_store, ids_of, key_of
from hsstore_cli.main import main

pytestmark = pytest.mark.zarr_compat

LENGTHS = [5, 3, 9, 16, 1, 2, 11]
ABSENT = 2
DTYPES = ("bfloat16", "float16", "float32")


@pytest.fixture(params=[(d, c) for d in DTYPES for c in ("none", "blosc-zstd")], ids="-".join)
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    dtype, codec = request.param
    made = empty_store(tmp_path / "store", LENGTHS, hidden_size=24, dtype=dtype, codec=codec)

    def opened(_options: object, store: Store, _note: object) -> SeededSource:
        return SeededSource(store.identity, {key_of(ABSENT): "cannot be had"})

    monkeypatch.setattr("hsstore_cli.extract.open_source", opened)
    assert main(["extract", str(made.root), "--source", "transformers:model"]) == 4
    return made


def values(stored: Any) -> NDArray[np.float32]:  # noqa: ANN401 - an array of any library
    """The numbers that stored elements mean: uint16 is the upper half of a float32."""
    array = np.ascontiguousarray(stored)
    if array.dtype == np.uint16:
        return (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


def check(store: Store, hidden_states: Any, input_ids: Any, loss_mask: Any) -> None:  # noqa: ANN401
    """Hold three arrays, as a reader gave them, against what was computed."""
    rows = np.ascontiguousarray(hidden_states)
    for sample, length in enumerate(LENGTHS):
        first = int(store.samples.start[sample])
        where = slice(first, first + length)
        ids = ids_of(sample, length)
        assert input_ids[where].tolist() == ids.tolist()
        assert loss_mask[where].tolist() == [0] + [1] * (length - 1)
        if sample == ABSENT:
            assert np.isnan(values(rows[where])).all()
        else:
            expected = seeded_states(store.identity, ids)
            assert rows.dtype == expected.dtype
            assert rows[where].tobytes() == expected.tobytes()


def test_zarr_python_reads_what_was_computed(store: Store) -> None:
    group = importlib.import_module("zarr").open_group(store.root / keys.ZARR, mode="r")
    check(store, group["hidden_states"][:], group["input_ids"][:], group["loss_mask"][:])


def test_tensorstore_reads_what_was_computed(store: Store) -> None:
    tensorstore = pytest.importorskip("tensorstore")

    def read(name: str) -> NDArray[Any]:
        kvstore = {"driver": "file", "path": str(store.root / keys.ZARR / name)}
        opened = tensorstore.open({"driver": "zarr3", "kvstore": kvstore}).result()
        array: NDArray[Any] = opened.read().result()
        return array

    check(store, read("hidden_states"), read("input_ids"), read("loss_mask"))


def test_xarray_reads_what_was_computed(store: Store) -> None:
    xarray = pytest.importorskip("xarray")
    with xarray.open_zarr(store.root / keys.ZARR, chunks=None) as dataset:
        check(store, *(dataset[n].values for n in ("hidden_states", "input_ids", "loss_mask")))


def test_the_absent_sample_is_never_served(store: Store) -> None:
    reader = Reader(store)
    for sample, length in enumerate(LENGTHS):
        if sample == ABSENT:
            with pytest.raises(SampleAbsent, match=key_of(sample)):
                reader.read(sample)
        else:
            states = seeded_states(store.identity, ids_of(sample, length))
            assert (reader.read(sample, verify=True) == states).all()
