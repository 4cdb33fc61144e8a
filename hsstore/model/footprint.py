"""What every file and folder of a finished store takes on disk, by its format.

Sizes are allocated bytes (``st_blocks * 512``) on a filesystem with 4 KiB blocks that keeps holes,
ext4 above all. Documents are measured by encoding one, so a change of the format carries over.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

from hsstore.model.document import UNSEALED, canonical
from hsstore.model.geometry import Extent, Geometry
from hsstore.model.keys import FOLDERS, ShardVersion
from hsstore.model.manifest import Manifest, Statistics, StoredSample
from hsstore.model.plan import DIGEST_DIGITS, Plan, TokenFile, TokenFiles
from hsstore.model.source import Origin

BLOCK_BYTES = 4096
# An inode names 4 extents of up to 128 MiB itself, a block of its extent tree 340 more.
INLINE_EXTENTS = 4
EXTENTS_PER_BLOCK = 340
EXTENT_BLOCKS = 32_768
# A folder of one block is filled to the end; hashing fills the blocks of a larger one less.
FOLDER_USABLE_BYTES = 4060
FOLDER_FILLED_BYTES = 2650
FOLDER_ENTRY_BYTES = 8
# ZIP and npy headers of the six members of a token file, and the value of first_sample.
TOKEN_FILE_BYTES = 1418
SAMPLE_TABLE_ROWS = 65_536
SAMPLE_TABLE_ITEMS = (8, 4, 16)
# hsstore.json and the zarr.json of six arrays and of the group, which repeats those of the arrays.
METADATA_BLOCKS = 1 + 6 + 2
METADATA_FILES = 1 + 1 + 7
ARRAYS = 6
SHARD_FILES = 6
SHARD_FOLDERS = 2
MANIFEST_NAME, MARKER_NAME, TOKENS_NAME = 37, 20, 12
STATISTICS_ROWS = 64
DIGEST, HASH = "0" * 32, "0" * 16


def allocated(size: int) -> int:
    """What a file of that size takes when it has no hole."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def folder_bytes(entries: int, name_bytes: int) -> int:
    """What a folder of that many equally long names takes."""
    used = entries * (FOLDER_ENTRY_BYTES + -(-name_bytes // 4) * 4)
    if used <= FOLDER_USABLE_BYTES:
        return BLOCK_BYTES
    return (1 + -(-used // FOLDER_FILLED_BYTES)) * BLOCK_BYTES


def data_bytes(extents: Sequence[Extent], geometry: Geometry) -> int:
    """What the uncompressed shard file of these samples takes; padding rows are holes."""
    row_bytes = geometry.row_bytes
    spans = [(e.first_row * row_bytes, (e.first_row + e.rows) * row_bytes) for e in extents]
    index = used_chunks(extents[-1], geometry) * geometry.chunk_bytes
    blocks = runs = filled = 0
    for start, end in (*spans, (index, index + geometry.index_bytes)):
        first, stop = start // BLOCK_BYTES, -(-end // BLOCK_BYTES)
        runs += first > filled or not runs
        added = stop - max(first, filled)
        runs += added // EXTENT_BLOCKS
        blocks, filled = blocks + added, stop
    return (blocks + extent_tree_blocks(runs)) * BLOCK_BYTES


def used_chunks(last: Extent, geometry: Geometry) -> int:
    """How many chunks a shard has whose last sample is this one."""
    return last.first_row // geometry.chunk_rows + geometry.chunks(last.rows)


def extent_tree_blocks(extents: int) -> int:
    """The blocks that list a file's extents."""
    return 0 if extents <= INLINE_EXTENTS else -(-extents // EXTENTS_PER_BLOCK)


def companion_bytes(
    extents: Sequence[Extent], geometry: Geometry, *, key_bytes: int | None = None
) -> int:
    """What a shard takes beside its data: folders, manifest, marker, tokens and masks.

    ``key_bytes`` sums the UTF-8 bytes of its samples' keys; None stands for their numbers.
    """
    last = extents[-1]
    numbers = digit_sum(extents[0].sample, last.sample + 1)
    tokens = sum(e.rows for e in extents)
    rows = last.first_row + last.rows
    keys = numbers if key_bytes is None else key_bytes
    return sum(
        (
            SHARD_FOLDERS * BLOCK_BYTES,
            BLOCK_BYTES,
            allocated(manifest_bytes(extents, geometry, numbers + keys)),
            allocated(token_file_bytes(len(extents), tokens, keys)),
            allocated(rows * 4),
            allocated(rows),
        )
    )


def token_file_bytes(samples: int, tokens: int, key_bytes: int) -> int:
    """The size of a token file: lengths, key ends and keys, then ids and masks."""
    return TOKEN_FILE_BYTES + samples * (4 + 8) + key_bytes + tokens * (4 + 1)


def manifest_bytes(extents: Sequence[Extent], geometry: Geometry, names: int) -> int:
    """The size of a manifest; ``names`` sums the digits of sample numbers and the key bytes."""
    chunks = used_chunks(extents[-1], geometry)
    data = chunks * geometry.chunk_bytes + geometry.index_bytes
    varying = sum(len(str(e.first_row)) + len(str(e.rows)) for e in extents)
    return sum(
        (
            manifest_base_bytes(geometry.layers),
            len(str(extents[0].shard)) + len(str(data)),
            chunks * CHUNK_BYTES + chunk_digits(chunks, geometry.chunk_bytes),
            len(extents) * sample_bytes(geometry.layers) + varying + names,
        )
    )


def chunk_digits(chunks: int, length: int) -> int:
    """The digits of number, offset and length of the first ``chunks`` chunks of a shard."""
    return digit_sum(0, chunks) + digit_sum(0, chunks, length) + chunks * len(str(length))


def digit_sum(start: int, stop: int, step: int = 1) -> int:
    """The decimal digits of ``step * n`` for all n from ``start`` to below ``stop``."""
    total, power = stop - start, 10
    while (first := -(-power // step)) < stop:
        total += stop - max(first, start)
        power *= 10
    return total


@cache
def manifest_base_bytes(layers: int) -> int:
    """The size of a manifest without chunks and samples, and without the digits that vary."""
    match = {
        "config": DIGEST,
        "weights": DIGEST,
        "quantisation": "none",
        "revision": "0" * 40,
        "tokenizer": DIGEST,
        "dtype": "bfloat16",
        "layers": ",".join(["00"] * layers),
    }
    recorded = {"engine": "transformers", "engine_version": "0.00.0", "device": "cuda:0"}
    version = ShardVersion(0, 1)
    manifest = Manifest(DIGEST, version, HASH, 0, HASH, (), (), (), (Origin(match, recorded),))
    return encoded_bytes(manifest.to_document()) - 2


@cache
def sample_bytes(layers: int) -> int:
    """The size of one sample in a manifest without its key and the digits that vary."""
    figures = (0.0,) * layers
    statistics = Statistics(STATISTICS_ROWS, figures, figures)
    sample = StoredSample(0, "", 0, 0, DIGEST, statistics, 0)
    # A comma follows, and the digits of sample, first_row and rows come extra; so does a newline.
    return len(canonical(sample.to_document())) + 1 - 3 - 1


def plan_bytes(samples: int, shards: int, tokens: int) -> int:
    """The size of the first plan document."""
    plan = Plan(
        store=DIGEST,
        generation=0,
        samples=samples,
        shards=shards,
        tokens=tokens,
        dataset=DIGEST,
        sample_table=DIGEST,
        token_files=TokenFiles.of([TokenFile(0, DIGEST)]),
    )
    return encoded_bytes(plan.to_document()) + (shards - 1) * DIGEST_DIGITS


def shared_bytes(samples: int, shards: int, tokens: int) -> int:
    """What a store takes that belongs to no single shard: tables, plan, metadata and folders."""
    tables = sum(allocated(samples * item) for item in SAMPLE_TABLE_ITEMS)
    digits = len(str(shards))
    listings = (MANIFEST_NAME, MARKER_NAME, TOKENS_NAME, digits, digits, digits)
    grown = sum(folder_bytes(shards, name) for name in listings)
    flat = (fixed_folders(samples) - len(listings)) * BLOCK_BYTES
    metadata = METADATA_BLOCKS * BLOCK_BYTES
    return tables + grown + flat + metadata + allocated(plan_bytes(samples, shards, tokens))


def fixed_folders(samples: int) -> int:
    """The folders of a store that no shard adds: root, top level, arrays, digest chunks."""
    return 1 + len(FOLDERS) + 1 + 2 * ARRAYS + table_chunks(samples)


def table_chunks(samples: int) -> int:
    """The chunks of each sample table."""
    return -(-samples // SAMPLE_TABLE_ROWS)


def file_count(samples: int, shards: int) -> int:
    """The files of a finished store."""
    tables = len(SAMPLE_TABLE_ITEMS) * table_chunks(samples)
    return METADATA_FILES + tables + SHARD_FILES * shards


def folder_count(samples: int, shards: int) -> int:
    """The folders of a finished store."""
    return fixed_folders(samples) + SHARD_FOLDERS * shards


def encoded_bytes(document: dict[str, Any]) -> int:
    """The size of a document once it is sealed."""
    return len(canonical({**document, "seal": UNSEALED}))


# ["number, offset, length", hash] and a comma, without the digits of the three numbers.
CHUNK_BYTES = len(f'[,,,"{HASH}"],')
