"""What a check is given: the store, how far to look, and how to word a finding about it."""

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

from hsstore.errors import StoreError
from hsstore.integrity.chunk_reader import ChunkReader
from hsstore.integrity.content.compared import Compared
from hsstore.integrity.content.shard_look import ShardLook
from hsstore.integrity.plain_file import RealFolders, names_in
from hsstore.model import commands
from hsstore.model import keys as names
from hsstore.model.finding import BEYOND_REPAIR, LEVELS, Finding, Level, severity_of
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import Chunk, Manifest
from hsstore.model.marker import Marker
from hsstore.model.source import Origin
from hsstore.model.waiver import Waiver
from hsstore.storage import catch_up, lost_plan
from hsstore.storage.catch_up import Reach
from hsstore.storage.sample_table import SampleTable
from hsstore.storage.store import Store, newest_plan
from hsstore.storage.token_file import ShardTokens
from hsstore.storage.waivers import waivers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KEPT_TOKENS = 16

# What an origin has in ``match``, then in ``recorded``.
OriginItems = tuple[tuple[tuple[str, str | None], ...], tuple[tuple[str, str], ...]]


class Subject:
    """A store under examination. Everything here survives whatever the store holds."""

    def __init__(self, store: Store, level: Level = "data", threads: int | None = None) -> None:
        self.store = store
        self.chunks = ChunkReader(store.filesystem, threads)
        self.filesystem = store.filesystem
        self.root = store.root
        self.level = level
        self.origins: dict[OriginItems, list[int]] = {}
        self.folders = RealFolders()
        self.compared = Compared()
        self.token_digests: dict[int, NDArray[np.uint8]] = {}
        self._tokens: OrderedDict[int, ShardTokens | None] = OrderedDict()
        self._lock = threading.Lock()

    def at_least(self, level: Level) -> bool:
        """Whether this run looks as deep as ``level``."""
        return LEVELS.index(self.level) >= LEVELS.index(level)

    @cached_property
    def table(self) -> SampleTable | None:
        """Where the samples lie; None where nothing in the store proves it."""
        try:
            return self.store.samples
        except (StoreError, OSError, LookupError, ValueError):
            return None

    @cached_property
    def waivers(self) -> dict[int, Waiver]:
        """The waivers that are whole, by sample; those of stored samples mean nothing."""
        try:
            return waivers(self.store)
        except OSError:
            return {}

    @cached_property
    def manifests(self) -> dict[int, list[ShardVersion]]:
        """The versions that have a manifest, by shard, as they were when first asked for."""
        found: dict[int, list[ShardVersion]] = {}
        for name in names_in(self.filesystem, self.root, names.MANIFEST):
            if (read := names.read_manifest(name)) is not None:
                found.setdefault(read[0].shard, []).append(read[0])
        return found

    @cached_property
    def lost_plan(self) -> list[str]:
        """What is beyond the newest whole plan; empty in a store that has not lost one."""
        return lost_plan.traces(self.store)

    @cached_property
    def reached(self) -> Reach:
        """How far the arrays go; as far as the plan, unless a growth is clearly unfinished."""
        try:
            found = catch_up.reached(self.store)
        except (StoreError, OSError, LookupError, ValueError):
            found = None
        return found or catch_up.planned(self.store)

    def newest(self) -> Store:
        """The store by the newest plan that there is now: it may have grown since it was opened."""
        store = self.store
        try:
            plan = newest_plan(store.filesystem, store.root, store.identity.uuid, or_older=True)
        except (StoreError, OSError):
            return store
        if plan.generation <= store.plan.generation:
            return store
        return Store(store.root, store.identity, plan, store.filesystem)

    def tokens(self, shard: int) -> ShardTokens | None:
        """The tokens of a shard; None where its token file is not whole. The latest are kept."""
        with self._lock:
            if shard in self._tokens:
                return self._tokens[shard]
        try:
            found = self.store.tokens(shard)
        except (StoreError, OSError, LookupError):
            found = None
        self.keep_tokens(shard, found)
        return found

    def keep_tokens(self, shard: int, tokens: ShardTokens | None) -> None:
        """Keep what was just read of a shard's token file."""
        with self._lock:
            self._tokens[shard] = tokens
            self._tokens.move_to_end(shard)
            while len(self._tokens) > KEPT_TOKENS:
                self._tokens.popitem(last=False)

    def note_origins(self, shard: int, origins: Iterable[Origin]) -> None:
        """Keep where the states of a shard come from; each origin once, with all its shards."""
        with self._lock:
            for origin in origins:
                items = (*sorted(origin.match.items()),), (*sorted(origin.recorded.items()),)
                self.origins.setdefault(items, []).append(shard)

    def samples(self, shard: int) -> range:
        """The global indexes of a shard's samples, empty where nothing proves them."""
        return self.table.shard_samples(shard) if self.table else range(0)

    def shard_of(self, sample: int) -> int:
        """The shard of a sample; LookupError where nothing proves it."""
        if self.table is None:
            raise LookupError(sample)
        return self.table.extent(sample).shard

    def keys(self, shard: int, samples: Iterable[int]) -> tuple[str, ...]:
        """The keys of samples; ``#index`` where the token file is lost."""
        tokens = self.tokens(shard)
        if tokens is None:
            return tuple(f"#{sample}" for sample in samples)
        first, last = tokens.first_sample, tokens.first_sample + len(tokens.keys) - 1
        return tuple(tokens.keys[n - first] if first <= n <= last else f"#{n}" for n in samples)

    def command(self, shard: int | None = None, *, source: bool = False) -> str:
        """The exact command that mends."""
        only = () if shard is None else ("--shards", shard)
        return commands.repair(self.root, *only, source=self.store.source_words() if source else ())

    def report_command(self) -> str:
        """The exact command that mends what only a report can name; REPORT is where it is."""
        report = ("--from-report", "REPORT")
        return commands.repair(self.root, *report, source=self.store.source_words())

    def finding(  # noqa: PLR0913 - the members of a finding
        self,
        kind: str,
        detail: str,
        *,
        shard: int | None = None,
        samples: Sequence[int] | None = None,
        path: str | None = None,
        chunk: int | None = None,
        byte_range: tuple[int, int] | None = None,
        evidence: str | None = None,
        source: bool = False,
        mendable: bool = True,
        generation: int | None = None,
    ) -> Finding:
        """A finding about this store; ``samples`` are global indexes.

        ``generation`` is for what that generation holds intact and false; the remedy is then by
        report.
        """
        mends = mendable and kind not in BEYOND_REPAIR
        command = self.command(shard, source=source)
        keys = None if shard is None or samples is None else self.keys(shard, samples)
        return Finding(
            kind=kind,
            severity=severity_of(kind),
            detail=detail,
            shard=shard,
            samples=keys,
            path=None if path is None else printable(path),
            chunk=chunk,
            byte_range=byte_range,
            evidence=evidence,
            repair=(command if generation is None else self.report_command()) if mends else None,
            generation=generation,
        )


@dataclass(slots=True)
class ShardCase:
    """One shard under examination: what its names say, then what its checks established.

    ``lost`` maps each sample that must be made again to its chunks that are not what the manifest
    says; those of them in ``suspected`` are as stored, but said to be false. ``discredited`` are
    markers and intents (paths) that say nothing true. ``provable`` says of a shard without a true
    marker that a manifest proves all of it. ``look`` is what was seen of the decoded rows,
    ``unsound`` the samples that are wrong by themselves.
    """

    subject: Subject
    shard: int
    markers: tuple[tuple[ShardVersion, bool], ...]
    intents: tuple[ShardVersion, ...]
    findings: list[Finding] = field(default_factory=list)
    marker: Marker | None = None
    manifest: Manifest | None = None
    file_bytes: int | None = None
    index_whole: bool = True
    provable: bool = False
    lost: dict[int, list[Chunk]] = field(default_factory=dict)
    suspected: set[int] = field(default_factory=set)
    discredited: list[str] = field(default_factory=list)
    bytes_checked: int = 0
    verified: int = 0
    look: ShardLook | None = None
    unsound: set[int] = field(default_factory=set)

    def finding(  # noqa: PLR0913 - the members of a finding
        self,
        kind: str,
        detail: str,
        *,
        samples: Sequence[int] | None = None,
        path: str | None = None,
        chunk: int | None = None,
        byte_range: tuple[int, int] | None = None,
        evidence: str | None = None,
        source: bool = False,
        generation: int | None = None,
    ) -> Finding:
        """A finding about this shard."""
        return self.subject.finding(
            kind,
            detail,
            shard=self.shard,
            samples=samples,
            path=path,
            chunk=chunk,
            byte_range=byte_range,
            evidence=evidence,
            source=source,
            generation=generation,
        )

    def lose(self, samples: Iterable[int], chunks: Iterable[Chunk] = ()) -> None:
        """Note that samples must be made again."""
        for sample in samples:
            self.lost.setdefault(sample, []).extend(chunks)


def printable(name: str) -> str:
    """A path that any terminal and JSON can show: undecodable bytes are escaped."""
    return name.encode("utf-8", "backslashreplace").decode()
