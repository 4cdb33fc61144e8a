"""How much of a store was verified when."""

from collections.abc import Mapping
from dataclasses import dataclass

from hsstore.integrity.scrub.verdicts import Standing, Verdicts
from hsstore.model.document import timestamp
from hsstore.model.finding import Level
from hsstore.storage.store import Store

DAYS = 30
DAY_SECONDS = 86400


@dataclass(frozen=True, slots=True)
class Coverage:
    """What is known of the committed shards at ``level`` or deeper; each is counted once.

    ``verified``: found sound within ``within_seconds``; ``older``: found sound before that;
    ``unsound``: there were findings when last looked at; ``never``: not looked at, or changed
    since. ``oldest`` is the longest ago that any shard was looked at (UTC, RFC 3339).
    """

    level: Level
    within_seconds: int
    shards: int
    verified: int
    older: int
    unsound: int
    never: int
    oldest: str | None

    @property
    def share(self) -> float:
        """Verified shards of all committed ones; 1 where there are none."""
        return self.verified / self.shards if self.shards else 1.0


def coverage(
    store: Store,
    verdicts: Verdicts,
    level: Level = "data",
    *,
    now: float,
    within_seconds: int = DAYS * DAY_SECONDS,
) -> Coverage:
    """Count by verdicts; O(shards), nothing is read. Raises OSError."""
    committed = store.committed()
    standings = {
        shard: standing
        for shard, (version, _) in committed.items()
        if (standing := verdicts.standing(store, shard, version.generation, level, now))
    }
    return _counted(standings, len(committed), level, int(now) - within_seconds, within_seconds)


def _counted(
    standings: Mapping[int, Standing], shards: int, level: Level, since: int, within_seconds: int
) -> Coverage:
    sound = [standing.time for standing in standings.values() if standing.sound]
    recent = sum(time >= since for time in sound)
    oldest = min((standing.time for standing in standings.values()), default=None)
    return Coverage(
        level=level,
        within_seconds=within_seconds,
        shards=shards,
        verified=recent,
        older=len(sound) - recent,
        unsound=len(standings) - len(sound),
        never=shards - len(standings),
        oldest=None if oldest is None else timestamp(oldest),
    )
