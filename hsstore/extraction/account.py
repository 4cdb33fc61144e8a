"""What an extraction did, and what became of every sample that it was asked for."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.extraction.open_shard import OpenShard
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import Marker
from hsstore.storage.status import staged_by_shard
from hsstore.storage.store import Store


@dataclass(frozen=True, slots=True)
class Account:
    """Every sample of the shards asked for, in exactly one place; ``total`` is their sum.

    committed_before, absent_before: in shards that were committed before, or by others meanwhile.
    extracted, resumed, failed: committed by this run: computed now, computed by an earlier run,
        absent because they failed now. What an earlier run saw fail counts as absent_before.
    staged: in the journals of shards that are not committed.
    held_by_others: in shards that another writer holds, or took over.
    unreadable: in shards whose commit marker cannot be read.
    not_reached: none of these: the next run computes them.
    """

    committed_before: int = 0
    absent_before: int = 0
    extracted: int = 0
    resumed: int = 0
    failed: int = 0
    staged: int = 0
    held_by_others: int = 0
    unreadable: int = 0
    not_reached: int = 0

    @property
    def total(self) -> int:
        """How many samples were asked for."""
        return sum(getattr(self, name) for name in self.__slots__)


@dataclass(slots=True)
class ExtractionSummary:
    """What an extraction did. Samples and tokens are those computed now, not those found staged.

    ``samples_resumed`` counts what journals held, failures too; ``seconds_source`` and
    ``seconds_disk`` say how long it waited for either.
    """

    shards_total: int
    shards_committed_before: int = 0
    shards_committed: int = 0
    samples_extracted: int = 0
    samples_resumed: int = 0
    samples_failed: int = 0
    tokens_extracted: int = 0
    shards_claimed_by_others: list[int] = field(default_factory=list)
    samples_absent: int = 0
    stopped: bool = False
    seconds: float = 0.0
    seconds_source: float = 0.0
    seconds_disk: float = 0.0
    account: Account = field(default_factory=Account)

    @property
    def complete(self) -> bool:
        """Whether every shard is committed."""
        return self.shards_committed_before + self.shards_committed == self.shards_total


@dataclass(slots=True)
class _Tally:
    """What some shards hold, by what it was to this run."""

    extracted: int = 0
    resumed: int = 0
    failed: int = 0
    absent_before: int = 0
    tokens: int = 0

    def add(self, shard: OpenShard) -> None:
        for name in self.__slots__:
            setattr(self, name, getattr(self, name) + getattr(shard, name))


class Ledger:
    """Keeps what became of each shard of a range; a shard that it was not told of is not reached.

    ``committed_before`` has the newest committed version of each shard of the whole store, and
    whether samples are absent in it.
    """

    def __init__(self, store: Store, wanted: range) -> None:
        self.committed_before = store.committed()
        self.held: list[int] = []
        self._store = store
        self._wanted = wanted
        self._open: dict[int, OpenShard] = {}
        self._done: set[int] = set()
        self._committed = _Tally()
        self._rolled_forward = _Tally()

    def opened(self, shard: OpenShard) -> None:
        """A shard is being filled."""
        self._open[shard.shard] = shard

    def committed(self, shard: OpenShard) -> None:
        """A shard that this run filled is committed now."""
        del self._open[shard.shard]
        self._done.add(shard.shard)
        self._committed.add(shard)

    def rolled_forward(self, shard: int, marker: Marker) -> None:
        """A shard that an earlier run had filled is committed now."""
        self._done.add(shard)
        self._open.pop(shard, None)
        self._rolled_forward.resumed += marker.samples
        self._rolled_forward.absent_before += marker.absent

    def committed_by_another(self, shard: int, found: tuple[ShardVersion, bool]) -> None:
        """A shard turned out to be committed when its turn came; as in ``committed_before``."""
        self.committed_before[shard] = found
        self._open.pop(shard, None)

    def held_by_another(self, shard: int) -> None:
        """Another writer has a shard; what this run staged for it does not count."""
        self.held.append(shard)
        self._open.pop(shard, None)

    @property
    def finished(self) -> bool:
        """Whether nothing is left of the range for this run."""
        ended = {*self.committed_before, *self.held, *self._done}
        return all(shard in ended for shard in self._wanted)

    def summary(self) -> ExtractionSummary:
        """All of it, read from markers and journals as they are now. Raises OSError."""
        filled = dataclasses.replace(self._committed)
        for shard in self._open.values():
            filled.add(shard)
        absent = (self._committed, self._rolled_forward)
        return ExtractionSummary(
            shards_total=self._store.plan.shards,
            shards_committed_before=len(self.committed_before),
            shards_committed=len(self._done),
            samples_extracted=filled.extracted,
            samples_resumed=filled.resumed + filled.absent_before,
            samples_failed=filled.failed,
            tokens_extracted=filled.tokens,
            shards_claimed_by_others=sorted(self.held),
            samples_absent=sum(each.failed + each.absent_before for each in absent),
            account=self._account(),
        )

    def _account(self) -> Account:
        wanted = set(self._wanted)
        before = wanted & self.committed_before.keys()
        held = wanted & set(self.held)
        absent, unreadable = self._absent(before)
        rest = wanted - before - held - self._done
        staged = staged_by_shard(self._store, self.committed_before.keys() | self._done)
        in_journals = sum(len(staged.get(shard, ())) for shard in rest)
        done = (self._committed, self._rolled_forward)
        return Account(
            committed_before=self._samples(before) - absent - unreadable,
            absent_before=absent + sum(each.absent_before for each in done),
            extracted=self._committed.extracted,
            resumed=sum(each.resumed for each in done),
            failed=self._committed.failed,
            staged=in_journals,
            held_by_others=self._samples(held),
            unreadable=unreadable,
            not_reached=self._samples(rest) - in_journals,
        )

    def _samples(self, shards: Iterable[int]) -> int:
        return sum(len(self._store.samples.shard_samples(shard)) for shard in shards)

    def _absent(self, shards: Iterable[int]) -> tuple[int, int]:
        """How many samples committed shards lack, and how many are in shards that do not say."""
        absent = unreadable = 0
        newest = {**self.committed_before, **self._store.committed()}
        for shard in shards:
            version, lacking = newest[shard]
            try:
                absent += self._store.read_marker(version, absent=lacking).absent
            except (InvalidDocument, UnsupportedFormat, OSError):
                unreadable += self._samples([shard])
        return absent, unreadable
