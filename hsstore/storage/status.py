"""How far a store is, from its markers and journals: O(shards), and no payload is read."""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.model import keys
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import Marker
from hsstore.storage.space import STATUS_BLOCK_BYTES
from hsstore.storage.staged_files import staged_journal
from hsstore.storage.store import Store
from hsstore.storage.waivers import waived, waivers

RECENT_COMMITS = 32


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """What of a store's plan is there.

    Every planned sample is counted once: committed, absent (its shard is committed without it),
    waived (so, and accepted by name), staged (safe in the journal of an unfinished shard) or
    missing. Samples of shards whose marker cannot be read count as missing, and
    ``shards_unreadable`` names those shards.

    ``payload_bytes`` are planned for the states of all samples; ``allocated_bytes`` is what the
    committed shard files take on disk. ``tokens_per_second`` is the pace of the latest commits,
    None where there are too few to tell; ``last_commit`` is UTC, ISO 8601.
    """

    shards: int
    shards_committed: int
    shards_staged: int
    shards_absent: tuple[int, ...]
    shards_unreadable: tuple[int, ...]
    samples: int
    samples_committed: int
    samples_staged: int
    samples_missing: int
    samples_absent: int
    samples_waived: int
    tokens: int
    tokens_committed: int
    payload_bytes: int
    allocated_bytes: int
    last_commit: str | None
    tokens_per_second: float | None
    snapshot: str

    @property
    def complete(self) -> bool:
        """Whether every planned sample is committed or waived."""
        return self.samples_committed + self.samples_waived == self.samples

    @property
    def seconds_left(self) -> float | None:
        """Time that what is missing takes at the recent pace, None where that is unknown."""
        if not (self.samples_missing or self.samples_staged):
            return 0.0
        if not self.tokens_per_second:
            return None
        return (self.tokens - self.tokens_committed) / self.tokens_per_second


def status(store: Store) -> StoreStatus:
    """Count what is committed, staged, absent and missing. Raises StoreError, OSError."""
    committed = store.committed()
    markers, unreadable = _markers(store, committed)
    staged = staged_by_shard(store, set(committed))
    done = sum(marker.samples for marker in markers)
    lacking = {m.version.shard: m.absent for m in markers if m.absent}
    accepted = _waived(store, markers)
    lost = sum(lacking.values())
    in_journals = sum(len(samples) for samples in staged.values())
    tokens = store.plan.tokens
    last, tokens_per_second = _pace(markers)
    return StoreStatus(
        shards=store.plan.shards,
        shards_committed=len(committed),
        shards_staged=len(staged),
        shards_absent=tuple(sorted(k for k in lacking if lacking[k] > accepted.get(k, 0))),
        shards_unreadable=tuple(sorted(unreadable)),
        samples=store.plan.samples,
        samples_committed=done,
        samples_staged=in_journals,
        samples_missing=store.plan.samples - done - lost - in_journals,
        samples_absent=lost - sum(accepted.values()),
        samples_waived=sum(accepted.values()),
        tokens=tokens,
        tokens_committed=sum(marker.tokens for marker in markers),
        payload_bytes=tokens * store.identity.geometry.row_bytes,
        allocated_bytes=sum(_allocated_bytes(store, shard) for shard in committed),
        last_commit=last,
        tokens_per_second=tokens_per_second,
        snapshot=store.snapshot_id(committed),
    )


def staged_samples(store: Store, shard: int) -> set[int]:
    """The global indexes of samples that the journals of a shard's staging folders hold."""
    return staged_by_shard(store, set()).get(shard, set())


def _markers(
    store: Store, committed: Mapping[int, tuple[ShardVersion, bool]]
) -> tuple[list[Marker], list[int]]:
    """The newest marker of every committed shard, and the shards whose marker is not whole."""
    markers, unreadable = [], []
    for shard, (version, absent) in committed.items():
        try:
            markers.append(store.read_marker(version, absent=absent))
        except (InvalidDocument, UnsupportedFormat, OSError):
            unreadable.append(shard)
    return markers, unreadable


def _waived(store: Store, markers: list[Marker]) -> dict[int, int]:
    """How many of the absent samples of a shard are waived; manifests are read for waivers only.

    Where a manifest cannot tell, none of its samples are.
    """
    found, counts = waivers(store), {}
    shards = {waiver.shard for waiver in found.values()}
    for marker in markers:
        if marker.absent and marker.version.shard in shards:
            with contextlib.suppress(InvalidDocument, UnsupportedFormat, OSError):
                absent = store.manifest(marker).absent
                counts[marker.version.shard] = len(waived(found, absent))
    return counts


def pace(store: Store) -> float | None:
    """Tokens per second over the latest commits, None where there are too few to tell; OSError."""
    return _pace(_markers(store, store.committed())[0])[1]


def staged_by_shard(store: Store, committed: set[int]) -> dict[int, set[int]]:
    """Journalled samples by shard, leaving out ``committed`` ones, which a repair is replacing."""
    samples: dict[int, set[int]] = {}
    for name in store.filesystem.names(store.root / keys.STAGE):
        stage = keys.read_stage(name)
        if stage is None or stage[0] in committed:
            continue
        journal = staged_journal(store.filesystem, store.root / keys.STAGE / name)
        samples.setdefault(stage[0], set()).update(journal.settled())
    return {shard: settled for shard, settled in samples.items() if settled}


def _allocated_bytes(store: Store, shard: int) -> int:
    try:
        found = store.filesystem.status(store.root / keys.shard_file(shard))
    except FileNotFoundError:
        return 0
    return found.st_blocks * STATUS_BLOCK_BYTES


def _pace(markers: list[Marker]) -> tuple[str | None, float | None]:
    """When the last shard was committed, and tokens per second over the latest ones."""
    timed = ((time, marker) for marker in markers if (time := _time(marker)) is not None)
    recent = sorted(timed, key=lambda pair: pair[0])[-RECENT_COMMITS:]
    if not recent:
        return None, None
    seconds = (recent[-1][0] - recent[0][0]).total_seconds()
    # The first of them began before the span that is measured.
    tokens = sum(marker.tokens for _, marker in recent[1:])
    return recent[-1][1].committed, tokens / seconds if seconds > 0 else None


def _time(marker: Marker) -> datetime | None:
    """When a marker says it was committed: for people, so one that tells no time is no damage."""
    try:
        time = datetime.fromisoformat(marker.committed)
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
