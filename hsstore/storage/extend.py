"""Growing a store by another dataset, without moving a byte of what is there."""

import itertools
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import xxhash

from hsstore.errors import MalformedInput, OutOfSpace, StorageFailed
from hsstore.model.footprint import TOKEN_FILE_BYTES, token_file_bytes
from hsstore.model.geometry import Extent, place
from hsstore.model.plan import Plan, TokenFile, TokenFiles
from hsstore.model.progress import Progress, Silent
from hsstore.storage.catch_up import catch_up
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.growing import Growing, growing
from hsstore.storage.known_samples import KnownSamples, keys_of
from hsstore.storage.sample_table import SampleTable
from hsstore.storage.space import available
from hsstore.storage.store import Store
from hsstore.storage.token_file import encode, token_digest
from hsstore.storage.tokenised import (
    Naming,
    TokenisedSample,
    changed,
    count_samples,
    file_state,
    gather,
    read_samples,
)
from hsstore.storage.zarr_arrays import TABLE_CHUNK

PathLike = str | os.PathLike[str]

ROW_BYTES = 4 + 1
TABLE_ROW_BYTES = 8 + 4 + 16
# Rounding to blocks, folders and documents, for each shard.
SHARD_OVERHEAD_BYTES = 32 << 10


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A sample of the dataset whose token ids another has: ``place`` is its file and line.

    ``key`` is None for a sample without an id that was left out: it never got a number. ``equals``
    is the key of the first sample with these ids, in the store or, where ``in_store`` is False, on
    an earlier line.
    """

    place: str
    key: str | None
    equals: str
    in_store: bool


@dataclass(frozen=True, slots=True)
class Extension:
    """What an extension did; ``store`` is the store as it is now.

    ``skipped`` says whether the duplicates were left out. ``repeated`` says that the store
    had been extended by these very samples, so that nothing was added. ``finished`` says that
    an earlier extension was decided but not all in place, and is now.
    """

    store: Store
    samples: int = 0
    tokens: int = 0
    shards: int = 0
    duplicates: tuple[Duplicate, ...] = ()
    skipped: bool = False
    repeated: bool = False
    finished: bool = False


def extend(
    store: Store | PathLike,
    dataset: PathLike,
    *,
    skip_duplicates: bool = False,
    progress: Progress | None = None,
    filesystem: Filesystem = LOCAL,
) -> Extension:
    """Add the samples of a tokenised dataset to a store, behind those that it has.

    ``dataset`` is a JSON lines file as ``create`` takes it; its ids must be new to the store, and
    samples without one are named by their number in the store. A sample with the token ids of
    another is added like any, unless ``skip_duplicates``. The store is the old one or the new one
    at any moment; run again after any end, the same call finishes what was decided and adds nothing
    twice. Raises MalformedInput for anything wrong with the dataset, ClaimedByAnother while another
    extends the store, InvalidDocument where the store is damaged, StorageFailed.
    """
    progress = progress or Silent()
    source = Path(dataset)
    try:
        opened = _opened(store, filesystem)
        state = file_state(source)
        lengths, key_bytes = count_samples(source, progress=progress)
        _refuse_too_long(source, lengths, opened)
        with growing(opened) as held:
            finished = catch_up(held.store, progress, held.verify)
            if _is_repeated(held.store, source, lengths, state):
                return Extension(held.store, repeated=True, finished=finished)
            _refuse_full_disk(held.store, lengths, sum(key_bytes))
            run = _Run(held, source, lengths, state, progress, skip_duplicates=skip_duplicates)
            run.prepare()
            run.decide()
            return run.result(finished=finished)
    except OSError as error:
        raise StorageFailed.from_os(error) from error


# -- what is refused -----------------------------------------------------------------------------


def _refuse_too_long(source: Path, lengths: list[int], store: Store) -> None:
    longest = max(lengths)
    if longest > store.identity.shard_rows:
        raise MalformedInput(
            f"a sample of {longest} tokens does not fit into a shard of this store, which has "
            f"{store.identity.shard_rows} rows for ever",
            place=f"{source}:{lengths.index(longest) + 1}",
            remedy="shorten it, leave it out, or create another store for longer samples",
        )


def _refuse_full_disk(store: Store, lengths: list[int], key_bytes: int) -> None:
    needed = needed_bytes(store, lengths, key_bytes)
    space = available(store.root)
    if needed > space.available_bytes:
        raise OutOfSpace(
            f"the tokens of the new samples take up to {needed} bytes, "
            f"{space.available_bytes} are available",
            place=str(store.root),
            remedy="free space, then run the same command again",
        )


def needed_bytes(store: Store, lengths: list[int], key_bytes: int) -> int:
    """An upper bound of what the tokens of new samples take on disk; their states come later.

    ``lengths`` are their tokens, ``key_bytes`` the UTF-8 bytes of all their keys.
    """
    numbers = len(lengths) * len(str(store.plan.samples + len(lengths)))
    files = token_file_bytes(len(lengths), sum(lengths), key_bytes + numbers)
    geometry = store.identity.geometry
    rows = sum(geometry.chunks(n) * geometry.chunk_rows for n in lengths)
    shards = 1 + max(e.shard for e in place(lengths, geometry))
    tables = (min(store.plan.samples, TABLE_CHUNK) + len(lengths)) * TABLE_ROW_BYTES
    overhead = shards * (TOKEN_FILE_BYTES + SHARD_OVERHEAD_BYTES)
    return files + rows * ROW_BYTES + tables + overhead


def _is_repeated(
    store: Store, source: Path, lengths: list[int], state: tuple[int, int, int]
) -> bool:
    """Whether the dataset is, key by key and token by token, what one of the growths added.

    ``state`` is that of the file when it was counted; MalformedInput where it changed since.
    """
    _, *growths = store.plan.token_files.spans()
    if not any(_is_growth(store, shards, source, lengths) for _, shards in growths):
        return False
    if file_state(source) != state:
        raise changed(source)
    return True


def _is_growth(store: Store, shards: range, source: Path, lengths: list[int]) -> bool:
    """Whether the dataset holds just the samples of the shards that one growth added."""
    table = store.samples
    first, stop = table.shard_samples(shards[0]).start, table.shard_samples(shards[-1]).stop
    if table.length[first:stop].tolist() != lengths:
        return False
    known = (sample for shard in shards for sample in store.tokens(shard).samples())
    given = read_samples(source, vocab_size=store.identity.model.vocab_size, naming=Naming(first))
    try:
        return all(
            sample.key == key
            and np.array_equal(sample.input_ids, ids)
            and np.array_equal(sample.loss_mask, mask)
            for sample, (key, ids, mask) in zip(given, known, strict=False)
        )
    except MalformedInput:
        # Ids may collide only with the numbers of these shards; what is wrong by itself comes up
        # when the samples are added.
        return False


# -- what is added -------------------------------------------------------------------------------


@dataclass(slots=True)
class _Run:
    """One dataset on its way into a store."""

    held: Growing
    source: Path
    lengths: list[int]
    state: tuple[int, int, int]
    progress: Progress
    skip_duplicates: bool
    naming: Naming = field(default_factory=Naming)
    extents: list[Extent] = field(default_factory=list)
    files: list[TokenFile] = field(default_factory=list)
    seen: dict[bytes, str] = field(default_factory=dict)
    # Line, key, and the number of the sample in the store that it equals, or the key of one before.
    duplicates: list[tuple[int, str | None, int | str]] = field(default_factory=list)
    known: KnownSamples | None = None
    grown: Store | None = None

    def prepare(self) -> None:
        """Write the token files of all new shards."""
        store = self.held.store
        self.naming.number = store.plan.samples
        known = self.known = KnownSamples(store, self.progress)
        self.progress.start(sum(self.lengths), 0, "tok")
        pairs = _placed(self._kept(known), store)
        for shard, group in itertools.groupby(pairs, key=lambda pair: pair[0].shard):
            self._shard(shard, list(group), known)
        if file_state(self.source) != self.state:
            raise changed(self.source)

    def _kept(self, known: KnownSamples) -> Iterator[TokenisedSample]:
        """The samples to add, each checked against the store and those before it."""
        samples = read_samples(
            self.source, vocab_size=self.held.store.identity.model.vocab_size, naming=self.naming
        )
        for sample, length in itertools.zip_longest(samples, self.lengths):
            if sample is None or length != len(sample.input_ids):
                raise changed(self.source)
            self.progress.advance(length)
            equal = self._equal(sample, known)
            skipped = equal is not None and self.skip_duplicates
            key = None if skipped and self.naming.leave_out(sample) else sample.key
            if equal is not None:
                self.duplicates.append((sample.line, key, equal))
            if not skipped:
                self._refuse_known_key(sample, known)
                yield sample

    def _equal(self, sample: TokenisedSample, known: KnownSamples) -> int | str | None:
        """The number or key of the first sample with the same token ids, None for a new one."""
        digest = token_digest(sample.input_ids)
        number = known.with_tokens(digest)
        if number is not None:
            return number
        if digest in self.seen:
            return self.seen[digest]
        self.seen[digest] = sample.key
        return None

    def _refuse_known_key(self, sample: TokenisedSample, known: KnownSamples) -> None:
        number = known.with_key(sample.key)
        if number is not None:
            raise MalformedInput(
                f"id {sample.key!r} is taken by sample {number} of the store",
                place=f"{self.source}:{sample.line}",
                remedy="give every sample an id of its own (without one, its number counts)",
            )

    def _shard(
        self, shard: int, pairs: list[tuple[Extent, TokenisedSample]], known: KnownSamples
    ) -> None:
        if not self.files:
            self.held.begin()
        tokens = gather(pairs[0][0].sample, [sample for _, sample in pairs])
        raw = encode(tokens)
        self.held.add_tokens(shard, raw)
        self.files.append(TokenFile(self.held.generation, xxhash.xxh3_128_hexdigest(raw)))
        self.extents += [extent for extent, _ in pairs]
        known.dataset.update(tokens)

    def decide(self) -> None:
        """Publish the plan, then let the arrays follow."""
        if not self.files or self.known is None:
            return
        before = self.held.store
        plan = self._plan(before, self.known)
        self.held.decide(plan)
        self.grown = Store(before.root, before.identity, plan, before.filesystem)
        catch_up(self.grown, self.progress, self.held.verify)

    def _plan(self, before: Store, known: KnownSamples) -> Plan:
        added = SampleTable.of(self.extents, before.identity.shard_rows)
        return Plan(
            store=before.identity.uuid,
            generation=self.held.generation,
            samples=before.plan.samples + len(self.extents),
            shards=before.plan.shards + len(self.files),
            tokens=before.plan.tokens + int(added.length.sum(dtype=np.int64)),
            dataset=known.dataset.hexdigest(),
            sample_table=before.samples.followed_by(added).digest(),
            token_files=TokenFiles(
                (*before.plan.token_files.parts, *TokenFiles.of(self.files).parts)
            ),
            previous=before.plan.seal,
        )

    def result(self, *, finished: bool) -> Extension:
        """What was done."""
        return Extension(
            self.grown or self.held.store,
            samples=len(self.extents),
            tokens=sum(extent.rows for extent in self.extents),
            shards=len(self.files),
            duplicates=tuple(self._named()),
            skipped=self.skip_duplicates,
            finished=finished,
        )

    def _named(self) -> Iterator[Duplicate]:
        numbers = {equal for *_, equal in self.duplicates if isinstance(equal, int)}
        names = keys_of(self.held.store, numbers)
        for line, key, equal in self.duplicates:
            stored = isinstance(equal, int)
            other = names[equal] if isinstance(equal, int) else equal
            yield Duplicate(f"{self.source}:{line}", key, other, in_store=stored)


def _placed(
    samples: Iterable[TokenisedSample], store: Store
) -> Iterator[tuple[Extent, TokenisedSample]]:
    """Every sample with its place, from a new shard on."""
    measured, given = itertools.tee(samples)
    lengths = (len(sample.input_ids) for sample in measured)
    extents = place(
        lengths,
        store.identity.geometry,
        first_shard=store.plan.shards,
        first_sample=store.plan.samples,
    )
    return zip(extents, given, strict=True)


def _opened(store: Store | PathLike, filesystem: Filesystem) -> Store:
    return store if isinstance(store, Store) else Store.open(Path(store), filesystem=filesystem)
