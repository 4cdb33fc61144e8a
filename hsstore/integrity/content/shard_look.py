"""What was seen of one shard's samples while its chunks were verified."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from hsstore.integrity.content.form import Form
from hsstore.integrity.content.sample_scan import Looked, SampleScan
from hsstore.model.geometry import Extent
from hsstore.model.identity import StoreIdentity
from hsstore.model.manifest import Chunk, Manifest


@dataclass(frozen=True)
class ShardLook:
    """A scan for each stored sample of a shard, fed by its chunks."""

    form: Form
    scans: tuple[SampleScan, ...]
    _by_chunk: dict[int, SampleScan] = field(default_factory=dict)

    @classmethod
    def of(cls, manifest: Manifest, identity: StoreIdentity) -> "ShardLook":
        """Nothing seen yet of the samples of a manifest."""
        form = Form(identity)
        look = cls(form, tuple(SampleScan(form, stored) for stored in manifest.samples))
        for scan in look.scans:
            look._by_chunk.update(dict.fromkeys(_numbers(scan, manifest), scan))
        return look

    def __call__(self, chunk: Chunk, stored: memoryview | None) -> None:
        """Show a chunk to the scan of its sample."""
        self._by_chunk[chunk.chunk].add(chunk, stored)

    def groups(self, chunks: Iterable[Chunk]) -> list[list[Chunk]]:
        """Chunks by sample, each sample's in the order of its rows."""
        groups: dict[int, list[Chunk]] = {}
        for chunk in sorted(chunks, key=lambda c: c.chunk):
            groups.setdefault(self._by_chunk[chunk.chunk].stored.sample, []).append(chunk)
        return [*groups.values()]

    def looked(self) -> Iterator[Looked]:
        """The samples of which everything was seen."""
        return (scan.looked for scan in self.scans if scan.looked is not None)


def _numbers(scan: SampleScan, manifest: Manifest) -> range:
    stored = scan.stored
    extent = Extent(stored.sample, manifest.version.shard, stored.first_row, stored.rows)
    return extent.chunk_range(scan.form.identity.geometry)
