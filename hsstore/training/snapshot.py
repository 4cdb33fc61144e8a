"""Which samples a store can serve, fixed at one moment."""

from collections.abc import Mapping, Sized
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hsstore.errors import InvalidDocument, SampleAbsent, SampleMissing
from hsstore.model import commands
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import AbsentSample
from hsstore.storage.store import Store
from hsstore.storage.waivers import waived, waivers

Committed = Mapping[int, tuple[ShardVersion, bool]]
Samples = NDArray[np.int64]

NAMED_KEYS = 5


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``samples`` are there, ``missing``, ``absent`` and ``waived`` ones are not: global numbers.

    ``snapshot_id`` names the committed shards, as ``Store.snapshot_id`` does.
    """

    snapshot_id: str
    samples: Samples
    missing: Samples
    absent: Samples
    waived: Samples

    @property
    def excluded(self) -> int:
        """How many samples are not there."""
        return len(self.missing) + len(self.absent) + len(self.waived)

    def counted(self) -> str:
        """What is not there, in words."""
        return _counted(self.missing, self.absent, self.waived)


def take_snapshot(store: Store, *, tolerant: bool) -> Snapshot:
    """What the store has now.

    Where it lacks samples that nobody waived, only a ``tolerant`` caller gets an answer. Raises
    SampleMissing, SampleAbsent, InvalidDocument, OSError.
    """
    committed, lost, accepted = _committed(store, tolerant=tolerant)
    missing = _missing(store, committed)
    if not tolerant:
        _refuse(store, missing, lost)
    return Snapshot(
        snapshot_id=store.snapshot_id(committed),
        samples=_others(len(store.samples), missing, lost, accepted),
        missing=missing,
        absent=lost,
        waived=accepted,
    )


def _committed(store: Store, *, tolerant: bool) -> tuple[Committed, Samples, Samples]:
    """The committed shards, the samples that they were committed without, and the waived of those.

    A waived sample is in the last only. Where a shard cannot tell which those are, ``tolerant``
    takes all of its samples, and anybody else gets InvalidDocument.
    """
    while True:
        committed = store.committed()
        absent, unreadable = _absent(store, committed)
        # A repair may have replaced a shard between the listing and the read.
        if not unreadable or store.committed() == committed:
            break
    whole: list[int] = []
    for shard, error in unreadable.items():
        if not tolerant:
            raise InvalidDocument(
                f"shard {shard} lacks samples and cannot tell which: {error}",
                place=str(store.root),
                remedy=f"run: {commands.hsstore('fsck', store.root)}",
            ) from error
        whole += store.samples.shard_samples(shard)
    accepted = waived(waivers(store), absent) if absent else {}
    lost = whole + [sample.sample for sample in absent if sample.sample not in accepted]
    return committed, np.array(sorted(lost), np.int64), np.array(sorted(accepted), np.int64)


def _absent(store: Store, committed: Committed) -> tuple[list[AbsentSample], dict[int, Exception]]:
    """The samples that shards were committed without, and the shards that cannot tell."""
    lost: list[AbsentSample] = []
    unreadable: dict[int, Exception] = {}
    for version, absent in committed.values():
        if absent:
            try:
                manifest = store.manifest(store.read_marker(version, absent=True))
            except (InvalidDocument, OSError) as error:
                unreadable[version.shard] = error
            else:
                lost += manifest.absent
    return lost, unreadable


def _missing(store: Store, committed: Committed) -> Samples:
    shards = store.samples.start // store.identity.shard_rows
    return np.flatnonzero(~np.isin(shards, list(committed)))


def _others(samples: int, *left_out: Samples) -> Samples:
    return np.setdiff1d(np.arange(samples), np.concatenate(left_out))


def _refuse(store: Store, missing: Samples, lost: Samples) -> None:
    """Raise where the store lacks samples."""
    if not len(missing) and not len(lost):
        return
    error = SampleMissing if len(missing) else SampleAbsent
    mending = commands.extract if len(missing) else commands.repair
    lacking = np.concatenate([missing, lost])[:NAMED_KEYS]
    keys = ", ".join(store.key(int(sample)) for sample in lacking)
    command = mending(store.root, source=store.source_words())
    raise error(
        f"the store lacks {_counted(missing, lost)}, first: {keys}",
        place=str(store.root),
        remedy=f'run: {command}, or open it with absent="exclude" (export: --leave-out-absent)',
    )


def _counted(missing: Sized, lost: Sized, accepted: Sized = ()) -> str:
    counted = f"{len(missing)} missing and {len(lost)} absent samples"
    return f"{counted}, and {len(accepted)} waived ones" if len(accepted) else counted
