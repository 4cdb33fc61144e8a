"""Making a store: its identity, its plan and all its tokens, complete or not at all."""

import os
import uuid
from collections.abc import Collection, Iterable, Iterator
from itertools import zip_longest
from pathlib import Path

from hsstore.errors import MalformedInput, StorageFailed
from hsstore.model.capture import CODECS, ITEMSIZE, Capture, Layer, ModelIdentity, parse_layers
from hsstore.model.document import seal, timestamp
from hsstore.model.geometry import Extent, Geometry, choose_geometry, place
from hsstore.model.identity import StoreIdentity
from hsstore.model.progress import Progress, Silent
from hsstore.storage.builder import Builder, StoreFiles
from hsstore.storage.building import building, free_target, publish
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.model_files import read_dtype, read_model
from hsstore.storage.store import Store
from hsstore.storage.tokenised import JsonLines, Samples, TokenisedSample

PathLike = str | os.PathLike[str]


def create(  # noqa: PLR0913 - what a store is made of
    path: PathLike,
    dataset: PathLike | Samples,
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

    ``dataset`` is a JSON lines file, or samples from elsewhere, ``model`` a config.json, its folder
    or a GGUF file, ``layers`` what ``hsstore create --layers`` takes, ``dtype`` by default the
    model's own. Raises
    MalformedInput for anything wrong with them, StoreExists, and StorageFailed where the
    filesystem refuses; then nothing is left behind.
    """
    progress = progress or Silent()
    try:
        target = free_target(Path(path), filesystem)
        source = JsonLines(Path(dataset)) if isinstance(dataset, (str, os.PathLike)) else dataset
        _known("codec", codec, CODECS)
        found = read_model(model, revision)
        capture = _capture(found, layers, dtype or read_dtype(model), layer_convention)
        lengths = source.lengths(progress)
        geometry = _geometry(found, capture, max(lengths), (chunk_rows, shard_rows), progress)
        identity = _identity(found, capture, geometry, codec)
        with building(target, seal(identity.to_document()), filesystem) as root:
            samples = source.samples(found.vocab_size)
            pairs = _matched(source, place(lengths, geometry), samples)
            Builder(StoreFiles(filesystem, root), identity).build(lengths, pairs, progress)
            source.refuse_change()
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


def _matched(
    source: Samples, extents: Iterator[Extent], samples: Iterator[TokenisedSample]
) -> Iterator[tuple[Extent, TokenisedSample]]:
    """Every sample with its place; MalformedInput where the second reading finds others."""
    for extent, sample in zip_longest(extents, samples):
        if extent is None or sample is None or extent.rows != len(sample.input_ids):
            raise source.changed()
        yield extent, sample
