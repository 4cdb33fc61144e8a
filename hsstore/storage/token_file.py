"""Token files: the keys, token ids and loss masks of one shard, as a deterministic npz.

The archive is stored, not compressed, and dated 1980-01-01, so equal tokens make equal bytes on
every machine. ``numpy.load`` opens it; nothing in it needs pickle.
"""

import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.errors import InvalidDocument

# The order of the members is part of the format.
MEMBERS = {
    "first_sample": "<i8",
    "sample_length": "<i4",
    "key_end": "<i8",
    "key_utf8": "|u1",
    "input_ids": "<i4",
    "loss_mask": "|u1",
}
EPOCH = (1980, 1, 1, 0, 0, 0)
UNIX = 3
ALIGNMENT = 64
NPY_MAGIC = b"\x93NUMPY\x01\x00"


@dataclass(frozen=True, eq=False)
class ShardTokens:
    """The samples of one shard, back to back without padding.

    ``first_sample`` is the global index of the first; ``lengths`` [samples] int32 counts tokens;
    ``input_ids`` [tokens] int32 and ``loss_mask`` [tokens] uint8 (0 or 1) hold all samples.
    """

    first_sample: int
    keys: tuple[str, ...]
    lengths: NDArray[np.int32]
    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]

    @cached_property
    def bounds(self) -> NDArray[np.int64]:
        """The first token of every sample, and the end of the last: [samples + 1] int64."""
        return np.concatenate([[0], np.cumsum(self.lengths, dtype=np.int64)])

    def sample(self, n: int) -> tuple[str, NDArray[np.int32], NDArray[np.uint8]]:
        """Key, token ids [tokens] and loss mask [tokens] of the ``n``-th sample of the shard."""
        tokens = slice(int(self.bounds[n]), int(self.bounds[n + 1]))
        return self.keys[n], self.input_ids[tokens], self.loss_mask[tokens]

    def samples(self) -> Iterator[tuple[str, NDArray[np.int32], NDArray[np.uint8]]]:
        """Every sample in order, as ``sample`` gives it."""
        return map(self.sample, range(len(self.keys)))


def token_digest(input_ids: NDArray[np.int32]) -> bytes:
    """The 16 bytes of xxh3_128 over a sample's ids as little-endian int32."""
    return xxhash.xxh3_128_digest(np.ascontiguousarray(input_ids, "<i4").data)


def encode(tokens: ShardTokens) -> bytes:
    """The bytes of a token file."""
    keys = [key.encode() for key in tokens.keys]
    arrays = {
        "first_sample": [tokens.first_sample],
        "sample_length": tokens.lengths,
        "key_end": np.cumsum([len(key) for key in keys]),
        "key_utf8": np.frombuffer(b"".join(keys), np.uint8),
        "input_ids": tokens.input_ids,
        "loss_mask": tokens.loss_mask,
    }
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, dtype in MEMBERS.items():
            entry = zipfile.ZipInfo(f"{name}.npy", EPOCH)
            entry.create_system, entry.external_attr = UNIX, 0o644 << 16
            archive.writestr(entry, _npy(np.asarray(arrays[name], dtype)))
    return buffer.getvalue()


def decode(raw: bytes, place: str | None = None, *, proven: bool = False) -> ShardTokens:
    """The samples in the bytes of a token file; InvalidDocument for anything else.

    ``proven`` bytes have the digest that the plan names, so their form need not be proven too.
    """
    try:
        tokens = _assemble(_members(raw))
    except (zipfile.BadZipFile, ValueError, LookupError, EOFError, OSError, RuntimeError) as error:
        raise InvalidDocument(f"not a token file: {error}", place=place) from None
    if not proven and encode(tokens) != raw:
        raise InvalidDocument("a token file, but not in its one canonical form", place=place)
    return tokens


def _npy(values: NDArray[Any]) -> bytes:
    """A one-dimensional array as npy 1.0, spelled here so that no numpy release can change it."""
    text = f"{{'descr': '{values.dtype.str}', 'fortran_order': False, 'shape': ({len(values)},), }}"
    preamble = len(NPY_MAGIC) + 2
    length = -(-(preamble + len(text) + 1) // ALIGNMENT) * ALIGNMENT - preamble
    header = text.ljust(length - 1).encode() + b"\n"
    return NPY_MAGIC + length.to_bytes(2, "little") + header + values.tobytes()


def _members(raw: bytes) -> dict[str, NDArray[Any]]:
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        entries = archive.infolist()
        if [entry.filename for entry in entries] != [f"{name}.npy" for name in MEMBERS]:
            raise ValueError("other members than a token file's")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("compressed members")
        return {name: _array(archive.read(f"{name}.npy"), name) for name in MEMBERS}


def _array(member: bytes, name: str) -> NDArray[Any]:
    """The values of one member, without trusting the shape that its header claims."""
    stream = io.BytesIO(member)
    if np.lib.format.read_magic(stream) != (1, 0):
        raise ValueError(f"{name} is not npy 1.0")
    shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
    if dtype.str != MEMBERS[name]:
        raise ValueError(f"{name} is {dtype.str}, not {MEMBERS[name]}")
    values = np.frombuffer(member, dtype, offset=stream.tell())
    if shape != values.shape:
        raise ValueError(f"{name} holds {values.shape} values, its header says {shape}")
    return values


def _assemble(members: dict[str, NDArray[Any]]) -> ShardTokens:
    lengths, input_ids, loss_mask = (
        members[name] for name in ("sample_length", "input_ids", "loss_mask")
    )
    total = int(lengths.sum(dtype=np.int64))
    if not lengths.size or lengths.min() < 1 or not total == len(input_ids) == len(loss_mask):
        raise ValueError("sample lengths that do not add up to its tokens")
    if loss_mask.max() > 1:
        raise ValueError("a loss mask other than 0 and 1")
    (first_sample,) = members["first_sample"]
    keys = _keys(members["key_utf8"].tobytes(), members["key_end"])
    if len(keys) != len(lengths):
        raise ValueError("another number of keys than of samples")
    return ShardTokens(int(first_sample), keys, lengths, input_ids, loss_mask)


def _keys(utf8: bytes, ends: NDArray[np.int64]) -> tuple[str, ...]:
    bounds = [0, *ends.tolist()]
    if bounds != sorted(bounds) or bounds[-1] != len(utf8):
        raise ValueError("key bounds out of order")
    return tuple(utf8[start:end].decode() for start, end in pairwise(bounds))
