"""``states.zarr``: the metadata of its arrays, and the chunks of all but the hidden states.

The documents are spelled here rather than by a Zarr library, so that two releases of one cannot
disagree about a byte of them, and a check can compare bytes. They follow the Zarr core
specification 3.1, and for the shards its sharding_indexed, bytes, blosc and crc32c codecs.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.model import keys
from hsstore.model.document import FORMAT
from hsstore.model.geometry import Geometry, place
from hsstore.model.identity import StoreIdentity
from hsstore.model.plan import Plan
from hsstore.storage.codec import BLOCK_BYTES, COMPRESSOR, LEVEL
from hsstore.storage.token_file import ShardTokens

TABLE_CHUNK = 65_536
"""Samples of one chunk of the sample arrays."""

# A NaN in each dtype: uint16 holds the bits of bfloat16, where all ones are a NaN.
PAYLOAD: dict[str, tuple[str, int | str]] = {
    "bfloat16": ("uint16", 0xFFFF),
    "float16": ("float16", "NaN"),
    "float32": ("float32", "NaN"),
}
ROW, SAMPLE = "row", "sample"

Metadata = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ArrayChunk:
    """A chunk file: its key, the bytes it begins with, and its full size.

    What lies between the two is zeros, and left as a hole.
    """

    key: str
    data: bytes
    size: int


def metadata_documents(identity: StoreIdentity, plan: Plan) -> dict[str, bytes]:
    """The bytes of every zarr.json by key; arrays first, the root group last."""
    arrays = dict(sorted(_arrays(identity, plan).items()))
    documents = {keys.zarr_metadata(name): _bytes(array) for name, array in arrays.items()}
    return documents | {keys.zarr_metadata(): _bytes(_root(identity, arrays))}


def shard_chunks(shard: int, tokens: ShardTokens, geometry: Geometry) -> Iterator[ArrayChunk]:
    """The chunks of input_ids and loss_mask that one shard has."""
    extents = list(place(map(int, tokens.lengths), geometry))
    rows = extents[-1].first_row + extents[-1].rows
    input_ids, loss_mask = np.zeros(rows, "<i4"), np.zeros(rows, "|u1")
    for extent, (_, ids, mask) in zip(extents, tokens.samples(), strict=True):
        where = slice(extent.first_row, extent.first_row + extent.rows)
        input_ids[where], loss_mask[where] = ids, mask
    for name, values in ((keys.INPUT_IDS, input_ids), (keys.LOSS_MASK, loss_mask)):
        yield _chunk(name, shard, values, geometry.shard_rows)


def table_chunks(
    starts: NDArray[np.int64],
    lengths: NDArray[np.int32],
    digests: NDArray[np.uint8],
    *,
    first_chunk: int = 0,
) -> Iterator[ArrayChunk]:
    """The chunks of the sample arrays from ``first_chunk`` on.

    From the first sample of that chunk on, ``starts`` [samples] are first global rows, ``lengths``
    [samples] tokens, ``digests`` [samples, 16] token digests.
    """
    columns = (
        (keys.SAMPLE_START, starts.astype("<i8", copy=False)),
        (keys.SAMPLE_LENGTH, lengths.astype("<i4", copy=False)),
        (keys.SAMPLE_DIGEST, digests),
    )
    for name, values in columns:
        for first in range(0, len(values), TABLE_CHUNK):
            rows = values[first : first + TABLE_CHUNK]
            yield _chunk(name, first_chunk + first // TABLE_CHUNK, rows, TABLE_CHUNK)


def _chunk(name: str, chunk: int, values: NDArray[Any], rows: int) -> ArrayChunk:
    row_bytes = values.nbytes // len(values)
    return ArrayChunk(keys.array_chunk(name, chunk), values.tobytes(), rows * row_bytes)


def _arrays(identity: StoreIdentity, plan: Plan) -> dict[str, Metadata]:
    rows, samples = plan.shards * identity.shard_rows, plan.samples
    chunk = identity.shard_rows
    return {
        keys.HIDDEN_STATES: _hidden_states(identity, rows),
        keys.INPUT_IDS: _plain("int32", {ROW: rows}, chunk),
        keys.LOSS_MASK: _plain("uint8", {ROW: rows}, chunk),
        keys.SAMPLE_START: _plain("int64", {SAMPLE: samples}, TABLE_CHUNK),
        keys.SAMPLE_LENGTH: _plain("int32", {SAMPLE: samples}, TABLE_CHUNK),
        keys.SAMPLE_DIGEST: _plain("uint8", {SAMPLE: samples, "byte": 16}, TABLE_CHUNK),
    }


def _hidden_states(identity: StoreIdentity, rows: int) -> Metadata:
    geometry = identity.geometry
    layers, hidden = geometry.layers, geometry.hidden_size
    sharding = {
        "chunk_shape": [geometry.chunk_rows, layers, hidden],
        "codecs": [_little_endian(geometry.itemsize), *_compressor(identity)],
        "index_codecs": [_little_endian(8), {"name": "crc32c"}],
        "index_location": "end",
    }
    data_type, fill_value = PAYLOAD[identity.capture.dtype]
    return _array(
        data_type,
        {ROW: rows, "layer": layers, "hidden": hidden},
        [geometry.shard_rows, layers, hidden],
        [{"name": "sharding_indexed", "configuration": sharding}],
        fill_value,
    )


def _compressor(identity: StoreIdentity) -> list[Metadata]:
    if identity.codec == "none":
        return []
    configuration = {
        "typesize": identity.capture.itemsize,
        "cname": COMPRESSOR,
        "clevel": LEVEL,
        "shuffle": "shuffle",
        "blocksize": BLOCK_BYTES,
    }
    return [{"name": "blosc", "configuration": configuration}]


def _plain(data_type: str, shape: dict[str, int], chunk: int) -> Metadata:
    """An array of zeros, uncompressed, chunked along its first dimension."""
    _, *others = shape.values()
    itemsize = np.dtype(data_type).itemsize
    return _array(data_type, shape, [chunk, *others], [_little_endian(itemsize)], 0)


def _array(
    data_type: str,
    shape: dict[str, int],
    chunk_shape: list[int],
    codecs: list[Metadata],
    fill_value: int | str,
) -> Metadata:
    return {
        "zarr_format": 3,
        "node_type": "array",
        "shape": list(shape.values()),
        "data_type": data_type,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": chunk_shape}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": fill_value,
        "codecs": codecs,
        "attributes": {},
        "dimension_names": list(shape),
        "storage_transformers": [],
    }


def _root(identity: StoreIdentity, arrays: dict[str, Metadata]) -> Metadata:
    held = identity.capture.dtype
    if held == "bfloat16":
        held += " as its 16 bits: shift them into the upper half of a float32"
    attributes = {
        "format": FORMAT,
        "store": identity.uuid,
        "model": identity.model.id,
        "layers": list(identity.capture.layers),
        "hidden_states": held,
        "samples": "sample s is rows sample_start[s] to sample_start[s] + sample_length[s]; "
        "other rows mean nothing, and rows of all NaN are not there",
    }
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"hsstore": attributes},
        "consolidated_metadata": {
            "kind": "inline",
            "must_understand": False,
            "metadata": arrays,
        },
    }


def _little_endian(itemsize: int) -> Metadata:
    """The bytes codec; single bytes have no order to name."""
    configuration = {"configuration": {"endian": "little"}} if itemsize > 1 else {}
    return {"name": "bytes", **configuration}


def _bytes(document: Metadata) -> bytes:
    return json.dumps(document, indent=2).encode() + b"\n"
