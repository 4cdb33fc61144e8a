"""What a run needs on disk, from its numbers or from the lengths of its samples."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter

from hsstore.errors import MalformedInput
from hsstore.model import footprint
from hsstore.model.capture import CODECS, ITEMSIZE
from hsstore.model.footprint import BLOCK_BYTES, allocated
from hsstore.model.geometry import INDEX_ENTRY_BYTES, Extent, Geometry, choose_geometry, place

# Bits of real bfloat16 states compress so (SmolLM2 and shuffle + zstd); the wider mantissas of
# the other two were filled with noise for the figure.
RATIOS = {"bfloat16": 1.38, "float16": 1.12, "float32": 1.16}
# blosc stores a chunk that it cannot shrink behind a 16-byte header; the rest is for the longer
# numbers in the manifest then. A chunk that shrinks takes its frames, too.
BLOSC_WORST_BYTES = 24
BLOSC_FRAME_BYTES = 64
# Above this, an estimate from totals looks at a part and scales it.
ESTIMATED_SAMPLES = 20_000
# Longest key that a bound from totals provides for, and the longest numbers of a manifest.
KEY_BYTES = 64
CHUNK_NUMBER_BYTES = 30
SAMPLE_NUMBER_BYTES = 25
# Extents of a shard's data that no gap between samples explains: 2 GiB in runs of 128 MiB.
UNEXPLAINED_EXTENTS = 18
# Folder, data, journal and one document on its way, for each writer.
WRITER_INODES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What is to be stored.

    Either ``lengths`` (tokens of every sample, in order) or the totals ``tokens`` and
    ``samples``. ``layers`` counts the captured ones. ``key_bytes`` are the UTF-8 bytes of every
    sample's key; without them the keys are taken to be sample numbers. A ``ratio`` that is given
    is vouched for: the space to provide then follows the estimate instead of the worst case.
    """

    layers: int
    hidden_size: int
    dtype: str = "bfloat16"
    tokens: int = 0
    samples: int = 0
    lengths: Sequence[int] | None = None
    key_bytes: Sequence[int] | None = None
    codec: str = "none"
    ratio: float | None = None
    writers: int = 1
    chunk_rows: int | None = None
    shard_rows: int | None = None

    def __post_init__(self) -> None:
        if self.lengths is not None:
            object.__setattr__(self, "tokens", sum(self.lengths))
            object.__setattr__(self, "samples", len(self.lengths))
        for problem in self._problems():
            raise MalformedInput(problem)

    def _problems(self) -> Iterator[str]:
        for name in ("layers", "hidden_size", "samples", "writers"):
            if getattr(self, name) < 1:
                yield f"{name} is {getattr(self, name)}, but must be at least 1"
        if self.tokens < self.samples or (self.lengths is not None and min(self.lengths) < 1):
            yield f"{self.tokens} tokens for {self.samples} samples leave some empty"
        if self.dtype not in ITEMSIZE:
            yield f"unknown dtype {self.dtype!r}; known: {', '.join(ITEMSIZE)}"
        if self.codec not in CODECS:
            yield f"unknown codec {self.codec!r}; known: {', '.join(CODECS)}"
        if self.ratio is not None and (self.codec == "none" or not 1 <= self.ratio < float("inf")):
            yield "a ratio is a finite number from 1 on, and needs a codec"
        if self.key_bytes is not None and len(self.key_bytes) != self.samples:
            yield f"{len(self.key_bytes)} key sizes for {self.samples} samples"

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return ITEMSIZE[self.dtype]

    @property
    def geometry(self) -> Geometry:
        """The geometry that ``create`` will choose (for the mean sample where lengths lack)."""
        longest = -(-self.tokens // self.samples) if self.lengths is None else max(self.lengths)
        return choose_geometry(
            layers=self.layers,
            hidden_size=self.hidden_size,
            itemsize=self.itemsize,
            longest_sample=longest,
            chunk_rows=self.chunk_rows,
            shard_rows=self.shard_rows,
        )


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What a workload needs.

    ``exact`` says that ``store_bytes``, ``shards``, ``files`` and ``inodes`` are what will be;
    otherwise they are upper bounds, with the likely figures beside them. ``peak_bytes`` is the
    most that is taken while the store is filled: one staged shard a writer on top.
    """

    workload: Workload
    geometry: Geometry
    exact: bool
    payload_bytes: int
    store_bytes: int
    estimated_bytes: int
    peak_bytes: int
    estimated_peak_bytes: int
    shards: int
    estimated_shards: int
    files: int
    estimated_files: int
    inodes: int


def plan_capacity(workload: Workload) -> CapacityPlan:
    """What a workload needs on disk: exact if uncompressed and of known lengths, else bounded.

    Raises MalformedInput for shards and chunks that do not fit together.
    """
    geometry = workload.geometry
    likely = _layout(workload, geometry, _likely_data(workload, geometry))
    exact = workload.lengths is not None and workload.codec == "none"
    most = likely if exact else _most(workload, geometry)
    chosen = likely if workload.ratio else most
    return CapacityPlan(
        workload=workload,
        geometry=geometry,
        exact=exact,
        payload_bytes=workload.tokens * geometry.row_bytes,
        store_bytes=most.store_bytes,
        estimated_bytes=likely.store_bytes,
        peak_bytes=chosen.peak_bytes(workload.writers),
        estimated_peak_bytes=likely.peak_bytes(workload.writers),
        shards=most.shards,
        estimated_shards=likely.shards,
        files=footprint.file_count(workload.samples, most.shards),
        estimated_files=footprint.file_count(workload.samples, likely.shards),
        inodes=footprint.file_count(workload.samples, most.shards)
        + footprint.folder_count(workload.samples, most.shards)
        + workload.writers * WRITER_INODES,
    )


@dataclass(frozen=True, slots=True)
class _Totals:
    store_bytes: int
    staged_bytes: int
    shards: int

    def peak_bytes(self, writers: int) -> int:
        return self.store_bytes + writers * self.staged_bytes


def _layout(
    workload: Workload, geometry: Geometry, data_bytes: Callable[[Sequence[Extent]], int]
) -> _Totals:
    """Place the samples, or a part of equally long ones, and add up what each shard takes."""
    part = workload.samples
    lengths: Iterable[int] | None = workload.lengths
    if lengths is None:
        part = min(part, ESTIMATED_SAMPLES)
        lengths = _equal_lengths(workload.tokens, workload.samples, part)
    filled = staged = shards = taken = 0
    extents: list[Extent] = []
    for _, group in groupby(place(lengths, geometry), attrgetter("shard")):
        extents = list(group)
        keys = _key_bytes(workload, extents)
        taken = data_bytes(extents) + footprint.companion_bytes(extents, geometry, key_bytes=keys)
        filled, staged, shards = filled + taken, max(staged, taken), shards + 1
    if part < workload.samples and shards > 1:
        # The last shard of a part is cut short; it would count for many.
        filled, shards, part = filled - taken, shards - 1, extents[0].sample
    shards = -(-shards * workload.samples // part)
    shared = footprint.shared_bytes(workload.samples, shards, workload.tokens)
    return _Totals(filled * workload.samples // part + shared, staged, shards)


def _equal_lengths(tokens: int, samples: int, part: int) -> Iterator[int]:
    return ((n + 1) * tokens // samples - n * tokens // samples for n in range(part))


def _key_bytes(workload: Workload, extents: Sequence[Extent]) -> int | None:
    if workload.key_bytes is None:
        return None
    return sum(workload.key_bytes[extents[0].sample : extents[-1].sample + 1])


def _likely_data(workload: Workload, geometry: Geometry) -> Callable[[Sequence[Extent]], int]:
    """The function from a shard's samples to what its data takes, in all likelihood."""
    if workload.codec == "none":
        return lambda extents: footprint.data_bytes(extents, geometry)
    ratio = workload.ratio or RATIOS[workload.dtype]

    def compressed(extents: Sequence[Extent]) -> int:
        payload = sum(e.rows for e in extents) * geometry.row_bytes
        frames = footprint.used_chunks(extents[-1], geometry) * BLOSC_FRAME_BYTES
        return allocated(round(payload / ratio) + frames + geometry.index_bytes)

    return compressed


def _most(workload: Workload, geometry: Geometry) -> _Totals:
    """The worst case: of compression where lengths are known, else also of the lengths."""
    if workload.lengths is None:
        return _bound(workload, geometry)
    chunk_bytes = geometry.chunk_bytes + BLOSC_WORST_BYTES

    def incompressible(extents: Sequence[Extent]) -> int:
        chunks = footprint.used_chunks(extents[-1], geometry)
        return allocated(chunks * chunk_bytes + geometry.index_bytes) + BLOCK_BYTES

    return _layout(workload, geometry, incompressible)


def _bound(workload: Workload, geometry: Geometry) -> _Totals:
    """No less than any samples of these totals take, whatever their lengths."""
    tokens, samples, capacity = workload.tokens, workload.samples, geometry.chunks_per_shard
    chunks = (tokens + samples * (geometry.chunk_rows - 1)) // geometry.chunk_rows
    # Next-fit: two neighbouring shards together hold more than one shard's worth.
    shards = min(samples, 2 * (chunks // (capacity + 1)) + 1)
    if workload.codec == "none":
        data = tokens * geometry.row_bytes + samples * _slack_bytes(geometry)
        data += footprint.extent_tree_blocks(samples + UNEXPLAINED_EXTENTS * shards) * BLOCK_BYTES
    else:
        data = chunks * (geometry.chunk_bytes + BLOSC_WORST_BYTES)
    # A sample longer than the shard raises the shard, and the index with it: hence three times.
    data += INDEX_ENTRY_BYTES * (3 * chunks + capacity) + 4 * BLOCK_BYTES * shards
    shard = capacity * (geometry.chunk_bytes + BLOSC_WORST_BYTES) + geometry.index_bytes
    beside = _companion_bound(workload, geometry, chunks, shards)
    shared = footprint.shared_bytes(samples, shards, tokens) + shards * BLOCK_BYTES // 8
    return _Totals(data + beside + shared, min(data + beside, allocated(2 * shard)), shards)


def _slack_bytes(geometry: Geometry) -> int:
    """The most that a sample's first and last block hold of nothing."""
    if geometry.row_bytes % BLOCK_BYTES == 0:
        return 0
    return BLOCK_BYTES if geometry.chunk_bytes % BLOCK_BYTES == 0 else 2 * BLOCK_BYTES


def _companion_bound(workload: Workload, geometry: Geometry, chunks: int, shards: int) -> int:
    """The most that all shards take beside their data; each file may end in a started block."""
    manifests = (
        shards * (footprint.manifest_base_bytes(geometry.layers) + BLOCK_BYTES)
        + chunks * (footprint.CHUNK_BYTES + CHUNK_NUMBER_BYTES)
        + workload.samples
        * (footprint.sample_bytes(geometry.layers) + SAMPLE_NUMBER_BYTES + KEY_BYTES)
    )
    tokens = shards * footprint.TOKEN_FILE_BYTES + footprint.token_file_bytes(
        workload.samples, workload.tokens, workload.samples * KEY_BYTES
    )
    rows = chunks * geometry.chunk_rows
    blocks = footprint.SHARD_FILES + footprint.SHARD_FOLDERS
    return manifests + tokens + 5 * rows + shards * blocks * BLOCK_BYTES
