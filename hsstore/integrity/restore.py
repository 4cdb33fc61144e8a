"""Writing again what follows from the rest of the store: folders, metadata, tokens, arrays.

A damaged calibration or waiver follows from nothing, but is missed by nothing either: it goes
aside, and whoever needs it makes another.
"""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import chain

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.errors import ClaimedByAnother, Stopped, StoreError
from hsstore.integrity.checks import arrays, calibrations, folders, metadata, tokens, waivers
from hsstore.integrity.plain_file import Trouble, plain_status
from hsstore.integrity.quarantine import Quarantine
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.storage import token_file
from hsstore.storage.array_files import replace_chunk
from hsstore.storage.growing import growing
from hsstore.storage.roll_forward import valid_manifests
from hsstore.storage.sample_table import SampleTable
from hsstore.storage.store import Store
from hsstore.storage.token_file import ShardTokens
from hsstore.storage.zarr_arrays import ArrayChunk, metadata_documents, shard_chunks


class Restorer:
    """Writes derived files again. Each is put in place whole, by a rename."""

    def __init__(
        self,
        store: Store,
        replica: Store | None = None,
        *,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Stopped is raised between two shards once ``stop`` says so."""
        self._store = store
        self._stop = stop
        self._filesystem = store.filesystem
        self._replica = replica
        self._quarantine = Quarantine(store, f"derived.{secrets.token_hex(8)}")

    def restore_all(self, shards: Sequence[int]) -> Subject:
        """Restore what can be; the subject knows the tokens of all shards that were looked at.

        Raises ClaimedByAnother while the store is extended: whoever does that writes the same
        files, and clears away what is about to be put in their place.
        """
        self._restore_folders(Subject(self._store, "manifest"))
        with _alone(self._store):
            return self._restore_files(shards)

    def _restore_files(self, shards: Sequence[int]) -> Subject:
        subject = Subject(self._store, "manifest")
        self._restore_metadata(subject)
        self._set_aside(calibrations.check(subject), waivers.check(subject))
        for shard in shards:
            refuse_to_go_on(self._stop)
            self._restore_tokens(subject, shard)
        # What the sample arrays lacked, the token files may prove now.
        subject = Subject(Store(self._store.root, self._store.identity, self._store.plan,
                                self._filesystem), "manifest")  # fmt: skip
        for shard in shards:
            refuse_to_go_on(self._stop)
            self._restore_shard_arrays(subject, shard)
        self._restore_tables(subject)
        self._quarantine.close()
        return subject

    def _restore_folders(self, subject: Subject) -> None:
        for finding in folders.check(subject):
            if finding.kind == "folder-missing" and finding.path:
                self._filesystem.make_folder(self._store.root / finding.path)

    def _restore_metadata(self, subject: Subject) -> None:
        documents = metadata_documents(self._store.identity, self._store.plan)
        for finding in metadata.check(subject):
            if finding.path:
                self._put(finding.path, documents[finding.path])

    def _set_aside(self, *found: Iterator[Finding]) -> None:
        for finding in chain(*found):
            if finding.path:
                self._quarantine.set_aside(finding.path)

    def _restore_tokens(self, subject: Subject, shard: int) -> None:
        for finding in tokens.check(subject, shard):
            raw = self._rebuilt_tokens(shard)
            if finding.path and raw is not None:
                self._put(finding.path, raw)
                list(tokens.check(subject, shard))

    def _rebuilt_tokens(self, shard: int) -> bytes | None:
        """The bytes of a token file that the plan's digest proves."""
        planned = self._store.plan.token_files[shard]
        for rebuild in (self._tokens_of_replica, self._tokens_of_arrays):
            try:
                raw = rebuild(shard)
            except (StoreError, OSError, LookupError, ValueError):
                continue
            if raw is not None and xxhash.xxh3_128_hexdigest(raw) == planned.xxh3_128:
                return raw
        return None

    def _tokens_of_replica(self, shard: int) -> bytes | None:
        if self._replica is None:
            return None
        file = self._replica.plan.token_files[shard]
        return self._replica.filesystem.read(
            self._replica.root / keys.tokens(file.generation, shard)
        )

    def _tokens_of_arrays(self, shard: int) -> bytes:
        """Token ids and masks from the Zarr arrays, keys from the manifest."""
        store, table = self._store, self._store.samples
        samples = table.shard_samples(shard)
        # Any manifest will do, marked or not: the plan's digest proves the result.
        manifest, _ = valid_manifests(store, shard)[0]
        named = {stored.sample: stored.key for stored in manifest.samples}
        named |= {absent.sample: absent.key for absent in manifest.absent}
        rows = _rows(table, samples)
        return token_file.encode(
            ShardTokens(
                first_sample=samples.start,
                keys=tuple(named[sample] for sample in samples),
                lengths=table.length[samples.start : samples.stop],
                input_ids=np.frombuffer(self._array(keys.INPUT_IDS, shard), "<i4")[rows],
                loss_mask=np.frombuffer(self._array(keys.LOSS_MASK, shard), np.uint8)[rows],
            )
        )

    def _array(self, name: str, shard: int) -> bytes:
        return self._filesystem.read(self._store.root / keys.array_chunk(name, shard))

    def _restore_shard_arrays(self, subject: Subject, shard: int) -> None:
        list(tokens.check(subject, shard))
        known = subject.tokens(shard)
        damaged = {finding.path for finding in arrays.check_shard(subject, shard)}
        if known is not None and damaged:
            for chunk in shard_chunks(shard, known, self._store.identity.geometry):
                if chunk.key in damaged:
                    self._put_chunk(chunk)

    def _restore_tables(self, subject: Subject) -> None:
        damaged = {finding.path for finding in arrays.check_tables(subject)}
        if not damaged:
            return
        for shard in range(self._store.plan.shards):
            if shard not in subject.token_digests:
                list(tokens.check(subject, shard))
        for chunk, known in arrays.expected_tables(subject):
            if chunk.key in damaged and known:
                self._put_chunk(chunk)

    # -- putting in place ----------------------------------------------------------------------

    def _put(self, name: str, data: bytes) -> None:
        self._put_chunk(ArrayChunk(name, data, len(data)))

    def _put_chunk(self, chunk: ArrayChunk) -> None:
        self._clear(chunk.key)
        replace_chunk(self._filesystem, self._store.root, chunk)

    def _clear(self, name: str) -> None:
        """Move away what a rename cannot or must not replace: folders, links, special files."""
        try:
            plain_status(self._filesystem, self._store.root, name)
        except Trouble as trouble:
            if trouble.state == "damaged":
                self._quarantine.set_aside(name)


@contextlib.contextmanager
def _alone(store: Store) -> Iterator[None]:
    """The right to grow a store, while it is as large as it was when it was looked at."""
    with contextlib.ExitStack() as stack:
        try:
            held = stack.enter_context(growing(store))
        except ClaimedByAnother:
            raise ClaimedByAnother(
                "the store is being extended",
                place=str(store.root),
                remedy="run the same command again once that is done",
            ) from None
        refuse_grown(store, held.store)
        yield


def refuse_grown(store: Store, newest: Store) -> None:
    """StoreError where a store has become larger than it was when it was looked at."""
    if newest.plan.generation != store.plan.generation:
        raise StoreError(
            "the store grew while it was looked at; nothing was written",
            place=str(store.root),
            remedy="run the same command again",
        )


def refuse_to_go_on(stop: Callable[[], bool]) -> None:
    """Raise Stopped where that was asked for."""
    if stop():
        raise Stopped("stopped; what was mended by then stays", remedy="run the same command again")


def _rows(table: SampleTable, samples: range) -> NDArray[np.int64]:
    """The rows, within their shard, of all tokens of its samples."""
    extents = [table.extent(sample) for sample in samples]
    return np.concatenate([np.arange(e.first_row, e.first_row + e.rows) for e in extents])
