"""Writing again what follows from the rest of the store: folders, metadata, tokens, arrays.

A damaged calibration or waiver follows from nothing, but is missed by nothing either: it goes
aside, and whoever needs it makes another.
"""

import contextlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from hsstore.errors import ClaimedByAnother, Stopped, StorageFailed, StoreError
from hsstore.integrity.checks import arrays, calibrations, folders, metadata, tokens, waivers
from hsstore.integrity.mending.quarantine import Quarantine
from hsstore.integrity.mending.rebuilt_plans import rebuilt_plans
from hsstore.integrity.mending.tokens_of_dataset import tokens_of_dataset
from hsstore.integrity.plain_file import Trouble, plain_status
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.model.progress import Progress, Silent
from hsstore.storage import token_file
from hsstore.storage.array_files import replace_chunk
from hsstore.storage.growing import growing
from hsstore.storage.roll_forward import valid_manifests
from hsstore.storage.store import Store
from hsstore.storage.token_file import ShardTokens
from hsstore.storage.zarr_arrays import ArrayChunk, metadata_documents, shard_chunks

if TYPE_CHECKING:
    from hsstore.model.manifest import AbsentSample, StoredSample


class Restorer:
    """Writes derived files again. Each is put in place whole, by a rename."""

    def __init__(
        self,
        store: Store,
        replica: Store | None = None,
        datasets: Sequence[str | os.PathLike[str]] = (),
        *,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Stopped is raised between two shards once ``stop`` says so.

        ``datasets`` are what the store was made of: tokens that nothing else has come from there.
        """
        self._store = store
        self._datasets = [Path(path) for path in datasets]
        self._progress = progress or Silent()
        self._of_datasets: dict[int, bytes] | None = None
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
        self._progress.start(2 * len(shards), 0, "shards")
        for shard in shards:
            refuse_to_go_on(self._stop)
            self._restore_tokens(subject, shard)
            self._progress.advance(1)
        # What the sample arrays lacked, the token files may prove now.
        subject = Subject(Store(self._store.root, self._store.identity, self._store.plan,
                                self._filesystem), "manifest")  # fmt: skip
        for shard in shards:
            refuse_to_go_on(self._stop)
            self._restore_shard_arrays(subject, shard)
            self._progress.advance(1)
        self._restore_tables(subject)
        self._restore_plans()
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
        for rebuild in (self._tokens_of_replica, self._tokens_of_arrays, self._tokens_of_datasets):
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
        # Whether it is the same file the caller sees by its digest.
        file = self._replica.plan.token_files[shard]
        return self._replica.filesystem.read(
            self._replica.root / keys.tokens(file.generation, shard)
        )

    def _tokens_of_arrays(self, shard: int) -> bytes:
        """Token ids and masks from the Zarr arrays, by what is known of the shard's samples."""
        named = self._named_samples(shard)
        rows = np.concatenate([np.arange(row, row + length) for _, _, row, length in named])
        return token_file.encode(
            ShardTokens(
                first_sample=named[0][0],
                keys=tuple(key for _, key, _, _ in named),
                lengths=np.array([length for _, _, _, length in named], np.int32),
                input_ids=np.frombuffer(self._array(keys.INPUT_IDS, shard), "<i4")[rows],
                loss_mask=np.frombuffer(self._array(keys.LOSS_MASK, shard), np.uint8)[rows],
            )
        )

    def _named_samples(self, shard: int) -> list[tuple[int, str, int, int]]:
        """Number, key, first row and rows of a shard's samples; the plan's digest proves them.

        Any manifest will do, marked or not. Without one the samples may still be named by their
        numbers, as those of a dataset without ids are.
        """
        if found := valid_manifests(self._store, shard):
            manifest = found[0][0]
            entries: list[StoredSample | AbsentSample] = [*manifest.samples, *manifest.absent]
            return sorted((e.sample, e.key, e.first_row, e.rows) for e in entries)
        table = self._store.samples
        extents = map(table.extent, table.shard_samples(shard))
        return [(e.sample, str(e.sample), e.first_row, e.rows) for e in extents]

    def _tokens_of_datasets(self, shard: int) -> bytes | None:
        """What the datasets given here have for a shard, as far as the plan proves it."""
        if self._of_datasets is None:
            found: dict[int, bytes] = {}
            for path in self._datasets:
                try:
                    found |= tokens_of_dataset(self._store, path, self._progress)
                except OSError as error:
                    # Not to be taken for a dataset that lacks these samples.
                    raise StorageFailed.from_os(error) from None
            self._of_datasets = found
        return self._of_datasets.get(shard)

    def _array(self, name: str, shard: int) -> bytes:
        return self._filesystem.read(self._store.root / keys.array_chunk(name, shard))

    def _restore_plans(self) -> None:
        for name, raw in rebuilt_plans(self._store).items():
            self._quarantine.set_aside(name)
            self._filesystem.publish(self._store.root / name, raw)

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
                "the store is being extended or repaired",
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
