"""Copying a shard as it is: the same manifest, the same marker, every chunk at its offset."""

from hsstore.errors import StoreError
from hsstore.integrity.copying.meter import Meter
from hsstore.integrity.copying.proof import prove
from hsstore.integrity.copying.version import (
    Stop,
    Version,
    opened_shard,
    whole_chunks,
)
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.geometry import Extent
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import Chunk, Manifest, StoredSample
from hsstore.model.source import Failed, Origin
from hsstore.storage.claim import Claim
from hsstore.storage.commit import commit
from hsstore.storage.stage import staging
from hsstore.storage.store import Store
from hsstore.storage.writer import ShardWriter, StagedShard


def copy_version(
    subject: Subject,
    version: Version,
    copy: Store,
    claim: Claim,
    *,
    replaces: ShardVersion | None,
    meter: Meter,
    stop: Stop,
) -> None:
    """Copy one generation of a shard, and commit it at the copy in the place of ``replaces``.

    Raises Damaged where the source is not whole, Stopped, StorageFailed where the disk does not
    hold what it took, ClaimedByAnother, OSError. What was journalled by then is kept.
    """
    marker = version.marker
    with (
        opened_shard(subject, marker.version.shard) as fd,
        staging(copy, marker.version, claim, named=marker.writer) as writer,
    ):
        _Transfer(subject, version, fd, writer, meter, stop).run()
        staged = writer.finish(copy.samples.shard_samples(marker.version.shard))
    named = StagedShard(staged.folder, version.raw, marker)
    _refuse_other_file(staged, named)
    prove(copy, named, version.manifest)
    commit(copy.filesystem, copy.root, named, claim, copy.identity, replaces=replaces)


class _Transfer:
    """The samples of one generation of a shard on their way into a staging folder."""

    def __init__(
        self,
        subject: Subject,
        version: Version,
        fd: int,
        writer: ShardWriter,
        meter: Meter,
        stop: Stop,
    ) -> None:
        self._subject = subject
        self._manifest = version.manifest
        self._fd = fd
        self._writer = writer
        self._meter = meter
        self._stop = stop
        self._chunks = _by_sample(subject.store, version.manifest)

    def run(self) -> None:
        """Stage what is not staged yet, in the order of the file."""
        journal, manifest = self._writer.journal, self._manifest
        # A decided replacement is known by it: the name of the folder is another.
        self._writer.begin(_some_origin(manifest))
        self._forget_others()
        for sample in sorted(manifest.samples, key=self._offset):
            chunks = self._chunks[sample.sample]
            if sample.sample in journal.samples:
                self._meter.passed(sum(chunk.length for chunk in chunks))
            else:
                self._place(sample, chunks)
        for absent in manifest.absent:
            if absent.sample not in journal.failures:
                extent = Extent(
                    absent.sample, manifest.version.shard, absent.first_row, absent.rows
                )
                failed = Failed(absent.sample, absent.reason, absent.detail, absent.attempts)
                self._writer.fail(extent, absent.key, failed, _some_origin(manifest))

    def _place(self, sample: StoredSample, chunks: tuple[Chunk, ...]) -> None:
        path = self._subject.root / keys.shard_file(self._manifest.version.shard)
        whole = whole_chunks(
            self._subject.filesystem, self._fd, path, chunks, meter=self._meter, stop=self._stop
        )
        self._writer.place(sample, self._manifest.origins[sample.origin], whole)

    def _offset(self, sample: StoredSample) -> int:
        return min(chunk.offset for chunk in self._chunks[sample.sample])

    def _forget_others(self) -> None:
        """Drop what is staged of this generation and is not what the manifest says."""
        journal = self._writer.journal
        stored = {sample.sample: sample.content for sample in self._manifest.samples}
        absent = {sample.sample for sample in self._manifest.absent}
        for number, found in list(journal.samples.items()):
            same = stored.get(number) == found.content
            if not same or journal.chunks[number] != self._chunks[number]:
                journal.forget(number)
        for number in journal.failures.keys() - absent:
            journal.forget(number)


def _by_sample(store: Store, manifest: Manifest) -> dict[int, tuple[Chunk, ...]]:
    """The chunks of every stored sample."""
    chunks, geometry = {chunk.chunk: chunk for chunk in manifest.chunks}, store.identity.geometry
    shard = manifest.version.shard
    return {
        sample.sample: tuple(
            chunks[number]
            for number in Extent(sample.sample, shard, sample.first_row, sample.rows).chunk_range(
                geometry
            )
        )
        for sample in manifest.samples
    }


def _some_origin(manifest: Manifest) -> Origin:
    """What to name in a journal, which does not decide: the manifest is copied."""
    return manifest.origins[0] if manifest.origins else Origin({})


def _refuse_other_file(staged: StagedShard, named: StagedShard) -> None:
    """StoreError where documents that contradict each other were taken for true."""
    ours, theirs = (
        (shard.marker.data_bytes, shard.marker.index_xxh3_64) for shard in (staged, named)
    )
    if ours != theirs:
        raise StoreError(
            "the copy is not as its marker says",
            place=str(staged.folder),
            remedy="report this: the documents of the source contradict each other",
        )
