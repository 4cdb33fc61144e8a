"""The rows of one sample by what its manifest says, verified chunk by chunk and as a whole."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.model import keys
from hsstore.model.geometry import Extent
from hsstore.model.manifest import Manifest, StoredSample
from hsstore.storage import codec, digest
from hsstore.storage.store import Store
from hsstore.storage.writer import verified_chunks


def read_rows(store: Store, manifest: Manifest, stored: StoredSample) -> NDArray[Any] | None:
    """A sample's states [tokens, layers, hidden] in the stored dtype; None unless all are proven.

    Chunks are found by the manifest, so neither the shard's index nor its marker is needed.
    """
    geometry = store.identity.geometry
    extent = Extent(stored.sample, manifest.version.shard, stored.first_row, stored.rows)
    numbers = extent.chunk_range(geometry)
    chunks = [chunk for chunk in manifest.chunks if chunk.chunk in numbers]
    path = store.root / keys.shard_file(manifest.version.shard)
    try:
        with store.filesystem.opened(path) as fd:
            store.filesystem.forget_cached(fd)
            verified = verified_chunks(store.filesystem, fd, path, chunks)
    except OSError:
        return None
    if verified is None or len(verified) != len(numbers):
        return None
    decoded = _decoded(store, [verified[number] for number in numbers])
    if decoded is None:
        return None
    shape = (stored.rows, geometry.layers, geometry.hidden_size)
    dtype = codec.stored_dtype(store.identity.capture.dtype)
    states = decoded[: stored.rows * geometry.row_bytes].view(dtype).reshape(shape)
    return states if digest.content_digest(states) == stored.content else None


def _decoded(store: Store, chunks: list[bytearray]) -> NDArray[np.uint8] | None:
    """The decoded bytes of chunks, back to back."""
    size = store.identity.geometry.chunk_bytes
    whole = np.empty(size * len(chunks), np.uint8)
    for n, stored in enumerate(chunks):
        into = whole[n * size : (n + 1) * size]
        if store.identity.codec == "none":
            if len(stored) != size:
                return None
            into[:] = np.frombuffer(stored, np.uint8)
            continue
        try:
            codec.decompress(stored, into)
        except ValueError:
            return None
    return whole
