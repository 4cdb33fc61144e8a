"""Mending one shard, under its claim: the next generation takes over every sample that is whole."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from hsstore.errors import Stopped, StoreError
from hsstore.integrity.examine import Listing, examine
from hsstore.integrity.mending.quarantine import Quarantine
from hsstore.integrity.mending.recompute import Recomputation
from hsstore.integrity.mending.repair_cost import refuse_full_disk
from hsstore.integrity.mending.replica import Copy, Replica, Wanted
from hsstore.integrity.mending.sample_rows import read_rows
from hsstore.integrity.mending.suspects import Suspects
from hsstore.integrity.plain_file import Trouble, plain_status
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model import keys
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import AbsentSample, Manifest
from hsstore.model.progress import Progress
from hsstore.model.source import Extracted, Failed, HiddenStateSource, Origin, Request
from hsstore.storage.claim import Claim, claimed
from hsstore.storage.commit import commit, replay_intent
from hsstore.storage.roll_forward import roll_forward
from hsstore.storage.stage import fence, set_strange_aside, staging
from hsstore.storage.token_file import ShardTokens
from hsstore.storage.writer import ShardWriter, StagedShard, verified_chunks


@dataclass(slots=True)
class Mended:
    """What was done so far, over all shards."""

    replacements_finished: int = 0
    rolled_forward: int = 0
    shards_replaced: int = 0
    samples_reextracted: int = 0
    tokens_reextracted: int = 0
    samples_failed: int = 0
    samples_from_replica: int = 0
    tokens_from_replica: int = 0
    samples_the_same: int = 0
    samples_waived: int = 0
    notes: list[str] = field(default_factory=list)


OpenSource = Callable[[], HiddenStateSource]

# The reason of samples of which a value is not finite (format.md, section 13.3).
NON_FINITE = "non-finite"


class Mender:
    """Mends shards from what is whole of them, then a replica, then a source."""

    def __init__(
        self,
        subject: Subject,
        *,
        source: OpenSource | None,
        replica: Replica | None,
        progress: Progress,
        stop: Callable[[], bool],
        suspects: Mapping[int, Suspects] | None = None,
    ) -> None:
        self.subject = subject
        self.store = subject.store
        self.source: HiddenStateSource | None = None
        self._recomputation: Recomputation | None = None
        self._open_source = source
        self.replica = replica
        self.progress = progress
        self.stop = stop
        self.suspects = suspects or {}
        self._counted = 0
        self.done = Mended()

    def open_source(self) -> HiddenStateSource | None:
        """The source, opened when first asked for; IdentityMismatch if it is not the store's."""
        if self.source is None and self._open_source is not None:
            self.source = self._open_source()
            self._recomputation = Recomputation(self.store, self.source, self.progress, self.stop)
        return self.source

    def close(self) -> None:
        """Let go of the source, if it was opened."""
        if self.source is not None:
            self.source.close()

    def tokens(self, shards: Iterable[int]) -> int:
        """The tokens of shards, as far as is known: what their mending counts as progress."""
        return sum(self._tokens(shard) for shard in shards)

    def _tokens(self, shard: int) -> int:
        table = self.subject.table
        return int(table.length[self.subject.samples(shard)].sum()) if table else 0

    def mend(self, shard: int) -> None:
        """Mend one shard as far as can be. ClaimedByAnother while a live writer holds it."""
        self._counted = 0
        self._claim_and_mend(shard)
        # What was found whole, or cannot be had, is as far as it will be.
        self._advance(max(self._tokens(shard) - self._counted, 0))

    def _advance(self, tokens: int) -> None:
        self._counted += tokens
        self.progress.advance(tokens)

    def _claim_and_mend(self, shard: int) -> None:
        store = self.store
        with claimed(store.filesystem, store.root, store.identity.uuid, shard) as claim:
            self._finish_intents(shard, claim)
            case = examine(self.subject, shard)
            quarantine = Quarantine.of_shard(store, _next_version(case), claim.writer)
            try:
                self._mend(case, claim, quarantine)
            finally:
                quarantine.close()

    def _mend(self, case: ShardCase, claim: Claim, quarantine: Quarantine) -> None:
        for name in case.discredited:
            quarantine.set_aside(name)
        if case.provable:
            if roll_forward(self.store, claim):
                self.done.rolled_forward += 1
            return
        if self._adopt_manifest(case, quarantine):
            case = examine(self.subject, case.shard)
        self._accuse(case)
        if self._has_work(case):
            self._replace(case, claim, quarantine)

    def _accuse(self, case: ShardCase) -> None:
        """Take the samples that reports call false for lost, unless they were replaced since."""
        if case.shard in self.suspects:
            self.suspects[case.shard].accuse(case)

    def _acquit(self, case: ShardCase, writer: ShardWriter) -> set[int]:
        """Keep suspected samples that nothing better was found for; those found the same.

        One whose states are not finite however often it is computed is better absent.
        """
        journal, contents, same = writer.journal, _contents(case), set()
        for sample in sorted(case.suspected):
            stored, failure = journal.samples.get(sample), journal.failures.get(sample)
            if stored is not None and stored.content == contents.get(sample):
                same.add(sample)
                case.lost[sample].clear()
                self._note_same(case, sample)
            elif stored is None and (failure is None or failure.reason != NON_FINITE):
                journal.failures.pop(sample, None)
                del case.lost[sample]
                self.suspects[case.shard].failed.add(sample)
        case.suspected.clear()
        self._keep_whole(case, writer)
        return same

    def _keep_whole(self, case: ShardCase, writer: ShardWriter) -> None:
        """Keep what was said to differ and is what its digest says, where nothing better is had."""
        manifest, suspects = case.manifest, self.suspects.get(case.shard)
        if manifest is None or suspects is None:
            return
        journal = writer.journal
        unsettled = suspects.differing & case.lost.keys() - journal.samples.keys()
        for stored in manifest.samples:
            sample = stored.sample
            if sample in unsettled and read_rows(self.store, manifest, stored) is not None:
                journal.failures.pop(sample, None)
                del case.lost[sample]
                suspects.failed.add(sample)

    def _note_same(self, case: ShardCase, sample: int) -> None:
        self.suspects[case.shard].same.add(sample)
        self.done.samples_the_same += 1
        (key,) = self.subject.keys(case.shard, [sample])
        self.done.notes.append(
            f"shard {case.shard}: sample {key!r} was computed again: the same states; it stays"
        )

    def _finish_intents(self, shard: int, claim: Claim) -> None:
        """Finish what was decided; an intent that cannot be finished decides nothing."""
        store = self.store
        fenced = fence(store.filesystem, store.root, claim)
        for version in Listing(self.subject).of(shard)[1]:
            try:
                replay_intent(store.filesystem, store.root, store.identity, version)
                self.done.replacements_finished += 1
            except (StoreError, IsADirectoryError, NotADirectoryError) as error:
                self.done.notes.append(str(error))
                quarantine = Quarantine.of_shard(store, version, claim.writer)
                quarantine.set_aside(keys.intent(version))
                quarantine.close()
        self.done.notes += set_strange_aside(store, claim, fenced)

    def _adopt_manifest(self, case: ShardCase, quarantine: Quarantine) -> bool:
        """Copy the manifest that our marker names from the replica."""
        if case.marker is None or case.manifest is not None or self.replica is None:
            return False
        raw = self.replica.manifest_of(case.marker)
        if raw is None:
            return False
        quarantine.set_aside(case.marker.manifest_name)
        self.store.filesystem.publish(self.store.root / case.marker.manifest_name, raw)
        return True

    def _has_work(self, case: ShardCase) -> bool:
        """Whether a new generation would be better than what there is."""
        tokens = self.subject.tokens(case.shard)
        if not self.subject.samples(case.shard) or (tokens is None and case.manifest is None):
            return False
        source = tokens is not None and self._open_source is not None
        had = [s for s in case.lost if source or self._in_replica(case, s)]
        salvageable = case.manifest is not None and len(case.lost) < len(
            case.subject.samples(case.shard)
        )
        return bool(had) or (salvageable and is_unreadable(case))

    def _in_replica(self, case: ShardCase, sample: int) -> Copy | None:
        return self.replica.find(wanted(case, sample)) if self.replica else None

    # -- replacing -----------------------------------------------------------------------------

    def _replace(self, case: ShardCase, claim: Claim, quarantine: Quarantine) -> None:
        version = _next_version(case)
        refuse_full_disk(self.store.root, [case])
        with self._staging(version, claim) as writer:
            # What an earlier run gave up may be had by now.
            writer.journal.failures.clear()
            _forget_suspected(case, writer)
            self._remake(case, writer)
            same = self._acquit(case, writer)
            if not _is_better(case, writer, same):
                self._abandon(case, writer, same)
                return
            self._copy_whole(case, writer)
            self._remake(case, writer)
            self._give_up(case, writer)
            if writer.journal.settled() != set(self.subject.samples(case.shard)):
                self._abandon(case, writer)
                return
            for chunk in sorted({c for chunks in case.lost.values() for c in chunks},
                                key=lambda c: c.offset):  # fmt: skip
                quarantine.keep_bytes(keys.shard_file(case.shard), chunk)
            self._clear_the_way(case, quarantine)
            staged = writer.finish(self.subject.samples(case.shard))
        quarantine.close()
        self._commit(case, staged, claim)
        self.done.shards_replaced += 1

    @contextlib.contextmanager
    def _staging(self, version: ShardVersion, claim: Claim) -> Iterator[ShardWriter]:
        """A writer; in the end the source hears what of its answers is durable."""
        with contextlib.ExitStack() as after, staging(self.store, version, claim) as writer:
            after.callback(self._written, writer)
            yield writer

    def _written(self, writer: ShardWriter) -> None:
        if self._recomputation is not None:
            self._recomputation.written(writer)

    def _commit(self, case: ShardCase, staged: StagedShard, claim: Claim) -> None:
        store, replaces = self.store, _committed(case)
        commit(store.filesystem, store.root, staged, claim, store.identity, replaces=replaces)

    def _copy_whole(self, case: ShardCase, writer: ShardWriter) -> None:
        """Copy every sample that is whole, verified once more on the way."""
        manifest = case.manifest
        kept = [s for s in manifest.samples if s.sample not in case.lost] if manifest else []
        if manifest is None or not kept:
            return
        rows = self.store.identity.geometry
        by_number = {chunk.chunk: chunk for chunk in manifest.chunks}
        path, filesystem = self.store.root / keys.shard_file(case.shard), self.store.filesystem
        with filesystem.opened(path) as fd:
            for sample in kept:
                if sample.sample in writer.journal.samples:
                    continue
                extent = self.store.samples.extent(sample.sample)
                chunks = [by_number[number] for number in extent.chunk_range(rows)]
                verified = verified_chunks(filesystem, fd, path, chunks)
                if verified is None:
                    case.lose([sample.sample], chunks)
                else:
                    writer.copy(sample, manifest.origins[sample.origin], verified)
                    self._advance(sample.rows)

    def _abandon(
        self, case: ShardCase, writer: ShardWriter, same: AbstractSet[int] = frozenset()
    ) -> None:
        """Drop a generation that would be no better than what there is."""
        if not same:
            text = f"shard {case.shard}: nothing could be recovered; it was left as is"
            self.done.notes.append(text)
        self.store.filesystem.remove_folder(writer.folder)

    def _remake(self, case: ShardCase, writer: ShardWriter) -> None:
        """Stage what is lost and was not tried yet, from the replica, else from the source."""
        self._take_from_replica(case, writer)
        self._compute(case, writer)

    def _take_from_replica(self, case: ShardCase, writer: ShardWriter) -> None:
        for sample in _unsettled(case, writer):
            copy = self._in_replica(case, sample)
            key = self._key(case, sample, copy)
            if copy and key and self.replica and self.replica.give(
                writer, wanted(case, sample), copy, key
            ):  # fmt: skip
                self.done.samples_from_replica += 1
                self.done.tokens_from_replica += copy.stored.rows
                self._advance(copy.stored.rows)

    def _key(self, case: ShardCase, sample: int, copy: Copy | None) -> str | None:
        """The key of a sample by what this store proves; the copy's where the numbers are alike."""
        tokens = self.subject.tokens(case.shard)
        if tokens is not None:
            return tokens.keys[sample - tokens.first_sample]
        named = {s.sample: s.key for s in case.manifest.samples} if case.manifest else {}
        return named.get(sample) or (copy.stored.key if copy else None)

    def _compute(self, case: ShardCase, writer: ShardWriter) -> None:
        """Have the source compute exactly the samples that are still lost."""
        lost = _unsettled(case, writer)
        tokens = self.subject.tokens(case.shard)
        if not lost or tokens is None:
            return
        self.open_source()
        if self._recomputation is None:
            return
        for request, staged in self._recomputation.stage(
            writer, _requests(lost, tokens), _contents(case), _absent(case)
        ):
            rows = len(request.input_ids)
            if isinstance(staged, Extracted):
                self.done.samples_reextracted += 1
                self.done.tokens_reextracted += rows
            else:
                self.done.samples_failed += 1
                self.progress.note(f"sample {request.key!r} failed: {staged.kind}, {staged.detail}")
            self._advance(rows)
        self._refuse_to_go_on()

    def _refuse_to_go_on(self) -> None:
        if self.stop():
            raise Stopped("stopped; what was computed is kept", remedy="run the same command again")

    def _give_up(self, case: ShardCase, writer: ShardWriter) -> None:
        """Settle what nobody has as absent: better missing by name than served wrong."""
        manifest, absent = case.manifest, _absent(case)
        named = {s.sample: s.key for s in manifest.samples} if manifest else {}
        named |= {number: entry.key for number, entry in absent.items()}
        origin = _some_origin(manifest, writer)
        if origin is None:
            return
        # Absent ones that nobody asks for, being waived, stay so.
        kept = absent.keys() - case.lost.keys() - writer.journal.settled()
        for sample in sorted({*_unsettled(case, writer), *kept}):
            extent = self.store.samples.extent(sample)
            key = named.get(sample) or self.subject.keys(case.shard, [sample])[0]
            before = absent.get(sample)
            failed = (
                Failed(sample, before.reason, before.detail, before.attempts)
                if before
                else Failed(sample, *self._why_lost(case))
            )
            writer.fail(extent, key, failed, origin)

    def _why_lost(self, case: ShardCase) -> tuple[str, str]:
        if self._open_source is not None and self.subject.tokens(case.shard) is None:
            return "tokens-lost", "its token file is lost, and without it nothing can compute it"
        return "damaged", "nothing that repair was given has it whole"

    def _clear_the_way(self, case: ShardCase, quarantine: Quarantine) -> None:
        """Keep a file that nothing explains; move away what a rename cannot replace."""
        name = keys.shard_file(case.shard)
        if case.marker is not None and case.manifest is None:
            quarantine.set_aside(case.marker.manifest_name)
        try:
            plain_status(self.store.filesystem, self.store.root, name)
        except Trouble as trouble:
            if trouble.state == "damaged":
                quarantine.set_aside(name)
        else:
            if case.manifest is None:
                quarantine.keep_file(name)


def is_unreadable(case: ShardCase) -> bool:
    """Whether readers refuse the whole shard, whatever its samples are worth."""
    size = case.marker.data_bytes if case.marker else None
    return not case.index_whole or case.file_bytes != size


def _forget_suspected(case: ShardCase, writer: ShardWriter) -> None:
    """An earlier run may have copied what nobody held against them then."""
    contents = _contents(case)
    for sample in case.suspected & writer.journal.samples.keys():
        if writer.journal.samples[sample].content == contents.get(sample):
            writer.journal.forget(sample)


def wanted(case: ShardCase, sample: int) -> Wanted:
    """What a replica is asked for in place of a lost sample."""
    superseded = sample in case.suspected
    return Wanted(sample, case.shard, _contents(case).get(sample), superseded)


def _requests(samples: list[int], tokens: ShardTokens) -> Iterator[Request]:
    for sample in samples:
        key, ids, _ = tokens.sample(sample - tokens.first_sample)
        yield Request(sample, key, ids)


def _contents(case: ShardCase) -> dict[int, str]:
    """The content digests that the shard's samples had."""
    return {s.sample: s.content for s in case.manifest.samples} if case.manifest else {}


def _absent(case: ShardCase) -> dict[int, AbsentSample]:
    return {a.sample: a for a in case.manifest.absent} if case.manifest else {}


def _unsettled(case: ShardCase, writer: ShardWriter) -> list[int]:
    """The lost samples that are neither staged nor known to fail."""
    return sorted(case.lost.keys() - writer.journal.settled())


def _is_better(case: ShardCase, writer: ShardWriter, same: AbstractSet[int]) -> bool:
    """Whether the next generation would have something that can be read now only there.

    So would one that has a damaged sample as absent: its readers are told.
    """
    if case.marker is None or case.manifest is None or is_unreadable(case):
        return True
    told = writer.journal.failures.keys() - _absent(case).keys()
    return bool((case.lost.keys() - same) & (writer.journal.samples.keys() | told))


def _some_origin(manifest: Manifest | None, writer: ShardWriter) -> Origin | None:
    known = [*(manifest.origins if manifest else ()), *writer.journal.origins]
    return known[0] if known else None


def _committed(case: ShardCase) -> ShardVersion | None:
    """The newest version that a marker claims which was not set aside."""
    true = (
        v for v, absent in case.markers if keys.marker(v, absent=absent) not in case.discredited
    )
    return max(true, default=None)


def _next_version(case: ShardCase) -> ShardVersion:
    """One above every generation that was ever decided; the first of a shard that never was."""
    seen = [version.generation for version, _ in case.markers]
    seen += [version.generation for version in case.intents]
    seen += [case.manifest.version.generation] if case.manifest else []
    return ShardVersion(case.shard, max(seen, default=0) + 1)
