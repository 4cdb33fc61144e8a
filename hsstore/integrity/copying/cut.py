"""A new store from another: fewer layers or samples, or another codec.

Where all layers stay, each sample keeps its content digest. Where they do not, ``previous`` names
the content digest of what a sample was cut from. Origins tell the parent store.
"""

import dataclasses
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsstore.errors import MalformedInput, SampleUnavailable, StoreExists
from hsstore.integrity.copying.meter import Meter
from hsstore.integrity.copying.proof import prove
from hsstore.integrity.copying.version import Damaged, Stop, go_on, versions
from hsstore.integrity.examine import Listing
from hsstore.integrity.subject import Subject
from hsstore.model.capture import CODECS, Capture, Layer
from hsstore.model.document import seal, timestamp, unseal
from hsstore.model.footprint import companion_bytes, data_bytes
from hsstore.model.geometry import Extent, Geometry, choose_geometry, place
from hsstore.model.identity import StoreIdentity
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import KIND, AbsentSample, Manifest, StoredSample
from hsstore.model.progress import Progress
from hsstore.model.source import Failed, Origin
from hsstore.storage import digest
from hsstore.storage.builder import Builder, StoreFiles
from hsstore.storage.building import building, free_target, publish
from hsstore.storage.claim import Claim
from hsstore.storage.commit import commit
from hsstore.storage.dataset_digest import DatasetDigest
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.reader import Reader
from hsstore.storage.stage import staging
from hsstore.storage.store import Store
from hsstore.storage.tokenised import TokenisedSample, gather
from hsstore.storage.writer import ShardWriter

if TYPE_CHECKING:
    from numpy.typing import NDArray

PARENT = "copied_from"
"""What an origin records of the stores that a sample came through: their uuids, oldest first."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What is taken of a store: layers in stored order, sample numbers ascending, and the codec."""

    parent: Store
    layers: tuple[Layer, ...]
    samples: list[int]
    codec: str

    @property
    def is_whole(self) -> bool:
        """Whether that is the very same store."""
        identity = self.parent.identity
        taken = (self.layers, self.codec, len(self.samples))
        return taken == (identity.capture.layers, identity.codec, self.parent.plan.samples)

    @property
    def columns(self) -> list[int] | None:
        """Where the layers are among those of the parent; None if all of them stay in order."""
        held = self.parent.identity.capture.layers
        return None if self.layers == held else [held.index(layer) for layer in self.layers]

    def lengths(self) -> list[int]:
        """The tokens of each sample taken."""
        lengths: list[int] = self.parent.samples.length[self.samples].tolist()
        return lengths

    def identity(self) -> StoreIdentity:
        """The identity of the new store, with a uuid of its own."""
        parent = self.parent.identity
        geometry = self._geometry()
        return dataclasses.replace(
            parent,
            uuid=uuid.uuid4().hex,
            created=timestamp(),
            capture=Capture(self.layers, parent.capture.dtype),
            chunk_rows=geometry.chunk_rows,
            shard_rows=geometry.shard_rows,
            codec=self.codec,
        )

    def _geometry(self) -> Geometry:
        """The parent's where rows are as large as there, else what create would choose."""
        identity = self.parent.identity
        if len(self.layers) == len(identity.capture.layers):
            return identity.geometry
        return choose_geometry(
            layers=len(self.layers),
            hidden_size=identity.model.hidden_size,
            itemsize=identity.capture.itemsize,
            longest_sample=max(self.lengths()),
        )

    def shard_bytes(self) -> list[int]:
        """What each shard of the new store takes at most; the most is what is not compressed."""
        geometry = self._geometry()
        extents = place(self.lengths(), geometry)
        return [
            data_bytes(shard, geometry) + companion_bytes(shard, geometry)
            for _, group in groupby(extents, key=lambda extent: extent.shard)
            for shard in [list(group)]
        ]

    def tokenised(self) -> Iterator[TokenisedSample]:
        """The samples from the token files of the parent. Raises InvalidDocument, OSError."""
        table = self.parent.samples
        for shard, own in groupby(self.samples, key=lambda n: table.extent(n).shard):
            tokens = self.parent.tokens(shard)
            for number in own:
                key, ids, mask = tokens.sample(number - tokens.first_sample)
                yield TokenisedSample(key, ids, mask, line=number)


def refuse_unknown_codec(codec: str) -> None:
    """MalformedInput for a codec that the format does not have."""
    if codec not in CODECS:
        raise MalformedInput(f"unknown codec {codec!r}; known: {', '.join(CODECS)}")


def build_cut(cut: Cut, path: Path, filesystem: Filesystem, progress: Progress) -> None:
    """Make the new store at ``path``, with nothing in it yet.

    Raises StoreExists, StorageFailed, InvalidDocument where a token file is not whole, OSError.
    """
    target, identity, lengths = free_target(path, filesystem), cut.identity(), cut.lengths()
    with building(target, seal(identity.to_document()), filesystem) as root:
        pairs = zip(place(lengths, identity.geometry), cut.tokenised(), strict=True)
        Builder(StoreFiles(filesystem, root), identity).build(lengths, pairs, progress)
        publish(root, target, filesystem)


def refuse_another(cut: Cut, made: Store) -> None:
    """StoreExists unless ``made`` is what this cut makes, and holds states of the parent only.

    Raises InvalidDocument, OSError.
    """
    wanted = dataclasses.replace(
        cut.identity(), uuid=made.identity.uuid, created=made.identity.created
    )
    same = wanted == made.identity and made.plan.dataset == _dataset(cut, made.identity.geometry)
    copied = [_is_of_parent(cut.parent, origin) for origin in _origins(made)] if same else []
    if same and all(copied):
        return
    raise StoreExists(
        "such a copy is there, but not all of its states were copied from here"
        if any(copied)
        else "another store is there already",
        place=str(made.root),
        remedy="choose another path; nothing was written",
    )


def _dataset(cut: Cut, geometry: Geometry) -> str:
    found = DatasetDigest()
    pairs = zip(place(cut.lengths(), geometry), cut.tokenised(), strict=True)
    for _, group in groupby(pairs, key=lambda pair: pair[0].shard):
        found.update(gather(0, [sample for _, sample in group]))
    return found.hexdigest()


def _origins(made: Store) -> Iterator[Origin]:
    for version, absent in made.committed().values():
        manifest = made.manifest(made.read_marker(version, absent=absent))
        yield from manifest.origins


def _is_of_parent(parent: Store, origin: Origin) -> bool:
    return origin.recorded.get(PARENT, "").endswith(parent.identity.uuid)


class Cutter:
    """Fills the shards of a new store from its parent."""

    def __init__(self, cut: Cut, subject: Subject, made: Store, meter: Meter, stop: Stop) -> None:
        self._cut = cut
        self._subject = subject
        self._made = made
        self._columns = cut.columns
        self._layers = made.identity.capture.layers_text()
        self._meter = meter
        self._stop = stop
        self._reader = Reader(cut.parent)
        self._listing = Listing(subject)
        self._held: Manifest | None = None

    def parents(self, shard: int) -> list[int]:
        """The shards of the parent that hold the samples of a shard of the new store."""
        table = self._cut.parent.samples
        numbers = [self._cut.samples[n] for n in self._made.samples.shard_samples(shard)]
        return sorted({table.extent(number).shard for number in numbers})

    def copy(self, shard: int, claim: Claim) -> None:
        """Fill a shard of the new store, which has none yet, and commit it.

        Raises Damaged where a sample of the parent is not whole, Stopped, StorageFailed,
        ClaimedByAnother, OSError. What was journalled by then is kept.
        """
        made = self._made
        samples = made.samples.shard_samples(shard)
        with staging(made, ShardVersion(shard, 1), claim) as writer:
            for number in samples:
                extent = made.samples.extent(number)
                self._take(extent, writer)
            staged = writer.finish(samples)
        prove(made, staged, Manifest.from_document(unseal(staged.manifest, KIND)))
        commit(made.filesystem, made.root, staged, claim, made.identity)

    def _take(self, extent: Extent, writer: ShardWriter) -> None:
        go_on(self._stop)
        size = extent.rows * self._made.identity.geometry.row_bytes
        number = self._cut.samples[extent.sample]
        known, origin = self._known(number)
        settled = writer.journal.samples.get(extent.sample)
        if settled is not None and self._is_taken(settled, known):
            self._meter.passed(size)
            return
        if isinstance(known, AbsentSample):
            failed = Failed(extent.sample, known.reason, known.detail, known.attempts)
            writer.fail(extent, known.key, failed, origin)
            return
        states, previous = self._states(number, known)
        writer.add(extent, known.key, states, origin, previous=previous)
        self._meter.copied(size)

    def _is_taken(self, settled: StoredSample, known: StoredSample | AbsentSample) -> bool:
        """Whether what is staged is what would be staged now."""
        if isinstance(known, AbsentSample):
            return False
        return known.content == (settled.content if self._columns is None else settled.previous)

    def _states(self, number: int, known: StoredSample) -> "tuple[NDArray[Any], str | None]":
        """The states of the layers taken, and what they replace or were cut from."""
        try:
            states = self._reader.read(number, verify=True)
        except SampleUnavailable as error:
            raise Damaged(error.message) from None
        except OSError as error:
            raise Damaged(f"sample {known.key!r}: {error.strerror}") from None
        if digest.content_digest(states) != known.content:
            raise Damaged(f"sample {known.key!r} is not what its manifest describes")
        if self._columns is None:
            return states, known.previous
        return np.ascontiguousarray(states[:, self._columns]), known.content

    def _known(self, number: int) -> tuple[StoredSample | AbsentSample, Origin]:
        """What the parent's manifest says of a sample, and the origin to record."""
        shard = self._cut.parent.samples.extent(number).shard
        if self._held is None or self._held.version.shard != shard:
            self._held = self._manifest(shard)
        manifest = self._held
        for stored in manifest.samples:
            if stored.sample == number:
                return stored, self._origin(manifest.origins[stored.origin])
        absent = next(entry for entry in manifest.absent if entry.sample == number)
        return absent, self._origin((*manifest.origins, Origin({}))[0])

    def _manifest(self, shard: int) -> Manifest:
        found = versions(self._subject, shard, self._listing)
        if not found:
            raise Damaged(f"shard {shard} has no marker and manifest that are whole")
        return found[0].manifest

    def _origin(self, origin: Origin) -> Origin:
        through = [origin.recorded.get(PARENT, ""), self._cut.parent.identity.uuid]
        return Origin(
            {**origin.match, "layers": self._layers},
            {**origin.recorded, PARENT: " ".join(filter(None, through))},
        )
