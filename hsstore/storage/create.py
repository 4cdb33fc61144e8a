"""Making a store: its identity, its plan and all its tokens, complete or not at all."""

import os
import uuid
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby, zip_longest
from pathlib import Path

import numpy as np
import xxhash

from hsstore.errors import MalformedInput, StorageFailed
from hsstore.model import keys
from hsstore.model.capture import CODECS, ITEMSIZE, Capture, Layer, ModelIdentity, parse_layers
from hsstore.model.document import seal, timestamp
from hsstore.model.geometry import Extent, Geometry, choose_geometry, place
from hsstore.model.identity import StoreIdentity
from hsstore.model.plan import Plan, TokenFile, TokenFiles
from hsstore.model.progress import Progress, Silent
from hsstore.storage.array_files import write_chunk
from hsstore.storage.building import building, free_target, publish
from hsstore.storage.dataset_digest import DatasetDigest
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.model_files import read_dtype, read_model
from hsstore.storage.sample_table import SampleTable
from hsstore.storage.store import Store
from hsstore.storage.token_file import ShardTokens, encode, token_digest
from hsstore.storage.tokenised import (
    TokenisedSample,
    changed,
    count_samples,
    file_state,
    gather,
    read_samples,
)
from hsstore.storage.zarr_arrays import (
    ArrayChunk,
    metadata_documents,
    shard_chunks,
    table_chunks,
)

PathLike = str | os.PathLike[str]

FIRST_GENERATION = 0


def create(  # noqa: PLR0913 - what a store is made of
    path: PathLike,
    dataset: PathLike,
    model: PathLike,
    layers: str | Iterable[Layer],
    dtype: str | None = None,
    *,
    codec: str = "none",
    revision: str | None = None,
    chunk_rows: int | None = None,
    shard_rows: int | None = None,
    layer_convention: str | None = None,
    progress: Progress | None = None,
    filesystem: Filesystem = LOCAL,
) -> Store:
    """Make an empty store for a tokenised dataset, and open it.

    ``dataset`` is a JSON lines file, ``model`` a config.json, its folder or a GGUF file, ``layers``
    what ``hsstore create --layers`` takes, ``dtype`` by default the model's own. Raises
    MalformedInput for anything wrong with them, StoreExists, and StorageFailed where the
    filesystem refuses; then nothing is left behind.
    """
    progress = progress or Silent()
    source = Path(dataset)
    try:
        target = free_target(Path(path), filesystem)
        state = file_state(source)
        _known("codec", codec, CODECS)
        found = read_model(model, revision)
        capture = _capture(found, layers, dtype or read_dtype(model), layer_convention)
        lengths, _ = count_samples(source, progress=progress)
        geometry = _geometry(found, capture, max(lengths), (chunk_rows, shard_rows), progress)
        identity = _identity(found, capture, geometry, codec)
        with building(target, seal(identity.to_document()), filesystem) as root:
            samples = read_samples(source, vocab_size=found.vocab_size)
            pairs = _matched(source, place(lengths, geometry), samples)
            _Builder(filesystem, root, identity).build(lengths, pairs, progress)
            if file_state(source) != state:
                raise changed(source)
            publish(root, target, filesystem)
    except OSError as error:
        raise StorageFailed.from_os(error) from error
    return Store.open(Path(path), filesystem=filesystem)


# -- what the store is ---------------------------------------------------------------------------


def _known(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise MalformedInput(f"unknown {name} {value!r}; known: {', '.join(choices)}")


def _capture(
    model: ModelIdentity, layers: str | Iterable[Layer], dtype: str, convention: str | None
) -> Capture:
    _known("dtype", dtype, ITEMSIZE)
    typed = layers if isinstance(layers, str) else ",".join(map(str, layers))
    parsed = parse_layers(
        typed, model.num_layers, convention=convention, model_type=model.model_type
    )
    return Capture(parsed, dtype)


def _geometry(
    model: ModelIdentity,
    capture: Capture,
    longest: int,
    overrides: tuple[int | None, int | None],
    progress: Progress,
) -> Geometry:
    chunk_rows, shard_rows = overrides

    def chosen(longest_sample: int) -> Geometry:
        return choose_geometry(
            layers=len(capture.layers),
            hidden_size=model.hidden_size,
            itemsize=capture.itemsize,
            longest_sample=longest_sample,
            chunk_rows=chunk_rows,
            shard_rows=shard_rows,
        )

    geometry, usual = chosen(longest), chosen(1)
    if geometry != usual:
        progress.note(
            f"shards have {geometry.shard_rows} rows instead of {usual.shard_rows}, "
            f"to hold the longest sample ({longest} tokens)"
        )
    return geometry


def _identity(
    model: ModelIdentity, capture: Capture, geometry: Geometry, codec: str
) -> StoreIdentity:
    return StoreIdentity(
        uuid=uuid.uuid4().hex,
        created=timestamp(),
        model=model,
        capture=capture,
        chunk_rows=geometry.chunk_rows,
        shard_rows=geometry.shard_rows,
        codec=codec,
    )


# -- what is written -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Builder:
    """Writes everything but hsstore.json into the folder that becomes the store."""

    filesystem: Filesystem
    root: Path
    identity: StoreIdentity
    folders: set[Path] = field(default_factory=set)
    files: list[TokenFile] = field(default_factory=list)
    token_digests: list[bytes] = field(default_factory=list)
    dataset: DatasetDigest = field(default_factory=DatasetDigest)

    def build(
        self,
        lengths: list[int],
        pairs: Iterator[tuple[Extent, TokenisedSample]],
        progress: Progress,
    ) -> None:
        for name in keys.FOLDERS:
            self._folder(self.root / name)
        progress.start(sum(lengths), 0, "tok")
        for shard, group in groupby(pairs, key=lambda pair: pair[0].shard):
            tokens = gather(len(self.token_digests), [sample for _, sample in group])
            self._shard(shard, tokens)
            progress.advance(len(tokens.input_ids))
        plan = self._plan(lengths)
        for key, document in metadata_documents(self.identity, plan).items():
            self._write(key, document)
        self._write(keys.plan(FIRST_GENERATION), seal(plan.to_document()))
        for folder in (*self.folders, self.root):
            self.filesystem.sync_folder(folder)

    def _shard(self, shard: int, tokens: ShardTokens) -> None:
        self.dataset.update(tokens)
        self.token_digests += [token_digest(ids) for _, ids, _ in tokens.samples()]
        raw = encode(tokens)
        self._write(keys.tokens(FIRST_GENERATION, shard), raw)
        self.files.append(TokenFile(FIRST_GENERATION, xxhash.xxh3_128_hexdigest(raw)))
        for chunk in shard_chunks(shard, tokens, self.identity.geometry):
            self._write_chunk(chunk)

    def _plan(self, lengths: list[int]) -> Plan:
        """Write the sample arrays; the plan that sums everything up."""
        extents = place(lengths, self.identity.geometry)
        table = SampleTable.of(extents, self.identity.shard_rows)
        digests = np.frombuffer(b"".join(self.token_digests), np.uint8).reshape(-1, 16)
        for chunk in table_chunks(table.start, table.length, digests):
            self._write_chunk(chunk)
        return Plan(
            store=self.identity.uuid,
            generation=FIRST_GENERATION,
            samples=len(lengths),
            shards=len(self.files),
            tokens=sum(lengths),
            dataset=self.dataset.hexdigest(),
            sample_table=table.digest(),
            token_files=TokenFiles.of(self.files),
        )

    def _write(self, key: str, data: bytes) -> None:
        self._folder((self.root / key).parent)
        self.filesystem.write_new(self.root / key, data)

    def _write_chunk(self, chunk: ArrayChunk) -> None:
        path = self.root / chunk.key
        self._folder(path.parent)
        write_chunk(self.filesystem, path, chunk)

    def _folder(self, path: Path) -> None:
        if path not in self.folders:
            self.filesystem.make_folders(path, below=self.root)
            self.folders.add(path)


def _matched(
    source: Path, extents: Iterator[Extent], samples: Iterator[TokenisedSample]
) -> Iterator[tuple[Extent, TokenisedSample]]:
    """Every sample with its place; MalformedInput where the second reading finds others."""
    for extent, sample in zip_longest(extents, samples):
        if extent is None or sample is None or extent.rows != len(sample.input_ids):
            raise changed(source)
        yield extent, sample
