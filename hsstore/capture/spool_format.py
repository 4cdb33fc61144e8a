"""What the capture plugin writes into a spool folder, and how the client reads it back.

::

    SPOOL/
      hello.{boot}.{rank}.json   one a writing scheduler process, renamed into place
      hsstore-{run:16}-{number:8}   one append-only file a request; the name is its rid

A request's file is a sequence of segments, each one append: a header of HEADER.size bytes, then
its payload. A segment of states holds consecutive rows of the prompt, each [layers, hidden] in
the order of the hello's ``layers``, little-endian in the hello's ``dtype``. Chunked prefill makes
several. A segment of kind ERROR holds a reason in UTF-8 instead. A segment whose hashes fit was
written whole; a sample is there once its segments cover rows 0 to N - 1 exactly once each.
"""

import re
import struct
from dataclasses import dataclass

import xxhash

FORMAT = 1
MAGIC = b"HSSPOOL\x01"
STATES, ERROR = 1, 2
DTYPES = {"bfloat16": 1, "float16": 2, "float32": 3}
ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}

# magic, kind, dtype, layers, hidden, first row, rows, payload bytes, boot, payload hash, rid hash
FIELDS = struct.Struct("<8sHHIIQIQ16sQQ")
HEADER = struct.Struct(f"<{FIELDS.size}sQ")

RID = re.compile(r"hsstore-[0-9a-f]{16}-[0-9a-f]{8}")
HELLO = re.compile(r"hello\.([0-9a-f]{32})\.([0-9]{1,4})\.json")


@dataclass(frozen=True, slots=True)
class Segment:
    """The header of one segment.

    ``boot`` is the boot id of the server that wrote it (32 hex digits), ``first_row`` the position
    of its first row in the prompt; ``payload_xxh3_64`` is over the payload of ``payload_bytes``.
    """

    kind: int
    dtype: int
    layers: int
    hidden_size: int
    first_row: int
    rows: int
    payload_bytes: int
    boot: str
    payload_xxh3_64: int


class TornSegment(ValueError):
    """Bytes that are no whole segment of the request that they are said to be of."""


def rid(run: str, number: int) -> str:
    """The request id number ``number`` of a client's run (16 random hex digits)."""
    return f"hsstore-{run}-{number:08x}"


def encode_header(segment: Segment, request: str) -> bytes:
    """The header of a segment of the request with that rid."""
    fields = FIELDS.pack(
        MAGIC,
        segment.kind,
        segment.dtype,
        segment.layers,
        segment.hidden_size,
        segment.first_row,
        segment.rows,
        segment.payload_bytes,
        bytes.fromhex(segment.boot),
        segment.payload_xxh3_64,
        xxhash.xxh3_64_intdigest(request.encode()),
    )
    return HEADER.pack(fields, xxhash.xxh3_64_intdigest(fields))


def decode_header(raw: bytes | memoryview, request: str) -> Segment:
    """The inverse of ``encode_header``; TornSegment where it is not whole or of another request."""
    if len(raw) != HEADER.size:
        raise TornSegment(f"a header of {len(raw)} bytes, not {HEADER.size}")
    fields, seal = HEADER.unpack(raw)
    magic, kind, dtype, layers, hidden, first, rows, size, boot, payload, name = FIELDS.unpack(
        fields
    )
    if magic != MAGIC or xxhash.xxh3_64_intdigest(fields) != seal:
        raise TornSegment("a damaged header")
    if name != xxhash.xxh3_64_intdigest(request.encode()):
        raise TornSegment("a segment of another request")
    return Segment(kind, dtype, layers, hidden, first, rows, size, boot.hex(), payload)
