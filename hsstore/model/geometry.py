"""Where samples lie: rows, chunks and shards.

Row ``k * shard_rows + r`` is row ``r`` of shard ``k``. Every sample starts on a chunk boundary and
never crosses a shard, so one damaged chunk costs one sample.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hsstore.errors import MalformedInput

CHUNK_BYTES = 4 << 20
SHARD_BYTES = 2 << 30
CHUNK_ROWS = (16, 256)
SHARD_ROWS = 32_768
LARGEST_CHUNK_BYTES = 1 << 30
LARGEST_SHARD_ROWS = 2**31 - 1
LARGEST_SHARD_CHUNKS = 1 << 20
LARGEST_SHARD_BYTES = 1 << 43  # ext4 ends a file at 16 TiB
# One missing entry of a Zarr shard index: offset and length both 2**64 - 1.
INDEX_ENTRY_BYTES = 16
INDEX_CHECKSUM_BYTES = 4


@dataclass(frozen=True, slots=True)
class Geometry:
    """The shape of a shard: rows and bytes of chunk and shard."""

    chunk_rows: int
    shard_rows: int
    layers: int
    hidden_size: int
    itemsize: int

    @property
    def row_bytes(self) -> int:
        """Bytes of one token's states: all layers."""
        return self.layers * self.hidden_size * self.itemsize

    @property
    def chunk_bytes(self) -> int:
        """Decoded bytes of one chunk."""
        return self.chunk_rows * self.row_bytes

    @property
    def chunks_per_shard(self) -> int:
        """Entries of a shard index."""
        return self.shard_rows // self.chunk_rows

    @property
    def index_bytes(self) -> int:
        """Bytes of a shard index with its crc32c."""
        return self.chunks_per_shard * INDEX_ENTRY_BYTES + INDEX_CHECKSUM_BYTES

    def problems(self) -> Iterator[str]:
        """What the format does not allow about it: limits that bound what a reader allocates."""
        if self.shard_rows % self.chunk_rows or self.shard_rows < self.chunk_rows:
            yield (
                f"a shard of {self.shard_rows} rows is no positive multiple of "
                f"{self.chunk_rows}-row chunks"
            )
        for what, found, most in (
            ("bytes of a chunk", self.chunk_bytes, LARGEST_CHUNK_BYTES),
            ("rows of a shard", self.shard_rows, LARGEST_SHARD_ROWS),
            ("chunks of a shard", self.chunks_per_shard, LARGEST_SHARD_CHUNKS),
            ("bytes of a shard", self.shard_rows * self.row_bytes, LARGEST_SHARD_BYTES),
        ):
            if found > most:
                yield f"{found} {what} are more than {most}"

    def chunks(self, rows: int) -> int:
        """How many chunks a sample of that many rows takes."""
        return -(-rows // self.chunk_rows)


@dataclass(frozen=True, slots=True)
class Extent:
    """Where one sample lies: its shard, its first row in that shard, and its rows (tokens)."""

    sample: int
    shard: int
    first_row: int
    rows: int

    def chunk_range(self, geometry: Geometry) -> range:
        """The chunks of the shard that hold this sample and nothing else."""
        first = self.first_row // geometry.chunk_rows
        return range(first, first + geometry.chunks(self.rows))


def choose_geometry(
    *,
    layers: int,
    hidden_size: int,
    itemsize: int,
    longest_sample: int,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
) -> Geometry:
    """The geometry for a store, by the rules of docs/format.md.

    ``longest_sample`` (tokens) raises the shard where needed. Raises MalformedInput for
    overrides that do not fit together.
    """
    for name, rows in (("--chunk-rows", chunk_rows), ("--shard-rows", shard_rows)):
        if rows is not None and rows < 1:
            raise MalformedInput(f"{name} is {rows}; it must be at least 1")
    row_bytes = layers * hidden_size * itemsize
    low, high = CHUNK_ROWS
    if chunk_rows is None:
        chunk_rows = min(max(_power_of_two(CHUNK_BYTES // row_bytes), low), high)
    if shard_rows is None:
        shard_rows = max(min(_power_of_two(SHARD_BYTES // row_bytes), SHARD_ROWS), chunk_rows)
        shard_rows = -(-shard_rows // chunk_rows) * chunk_rows
        shard_rows = max(shard_rows, -(-longest_sample // chunk_rows) * chunk_rows)
    geometry = Geometry(chunk_rows, shard_rows, layers, hidden_size, itemsize)
    for problem in geometry.problems():
        raise MalformedInput(
            problem, remedy="choose another --chunk-rows, and --shard-rows as a multiple of it"
        )
    if longest_sample > shard_rows:
        raise MalformedInput(
            f"the longest sample has {longest_sample} tokens, a shard only {shard_rows} rows",
            remedy="raise --shard-rows or leave it out",
        )
    return geometry


def place(
    lengths: Iterable[int], geometry: Geometry, *, first_shard: int = 0, first_sample: int = 0
) -> Iterator[Extent]:
    """Next-fit: samples in order, each on a chunk boundary, a new shard when one is full."""
    shard, row = first_shard, 0
    for sample, rows in enumerate(lengths, first_sample):
        needed = geometry.chunks(rows) * geometry.chunk_rows
        if row + needed > geometry.shard_rows:
            shard, row = shard + 1, 0
        yield Extent(sample, shard, row, rows)
        row += needed


def _power_of_two(limit: int) -> int:
    """The largest power of two that is at most ``limit`` (1 where there is none)."""
    return 1 << (limit.bit_length() - 1) if limit > 0 else 1
