"""Accepting, by name and for a reason, that absent samples will never come."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hsstore.errors import InvalidDocument, MalformedInput, SampleMissing, StoreError
from hsstore.integrity.fsck import Fsck
from hsstore.integrity.mending.quarantine import Quarantine
from hsstore.integrity.repair import RepairResult
from hsstore.integrity.subject import Subject
from hsstore.model import commands, keys
from hsstore.model.document import timestamp
from hsstore.model.finding import Finding
from hsstore.model.manifest import AbsentSample
from hsstore.model.progress import Silent
from hsstore.model.repair_plan import RepairPlan, Step
from hsstore.model.waiver import Waiver
from hsstore.storage.claim import claimed
from hsstore.storage.description import find_sample
from hsstore.storage.lost_plan import refuse_lost_plan
from hsstore.storage.store import Store
from hsstore.storage.waivers import publish_waiver, read_waiver, waived, waivers

PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class _Absence:
    """An absent sample and its shard."""

    shard: int
    entry: AbsentSample


def waive(
    store: Store | PathLike, samples: Sequence[str], reason: str, *, apply: bool = False
) -> RepairResult:
    """Plan the waiver of absent samples, and with ``apply`` publish it; the shards are looked at.

    ``samples`` are keys, or ``#`` and a number. Those that are waived already stay as they are.
    Raises MalformedInput for no reason or a sample that is not the store's, SampleMissing for one
    whose shard is not committed, StoreError for one that is stored, ClaimedByAnother while another
    writer has a shard, and OSError.
    """
    opened = store if isinstance(store, Store) else Store.open(Path(store))
    if not reason.strip():
        raise MalformedInput("a waiver without a reason", remedy="say why, with --reason")
    refuse_lost_plan(opened)
    numbers = dict.fromkeys(find_sample(opened, name) for name in samples)
    absences = [_absence(opened, number) for number in numbers]
    accepted = waived(waivers(opened), [absence.entry for absence in absences])
    wanted = [absence for absence in absences if absence.entry.sample not in accepted]
    plan = RepairPlan(tuple(_step(absence, reason) for absence in wanted))
    result = RepairResult(plan, found=len(wanted))
    if apply and wanted:
        for absence in wanted:
            _publish(opened, absence, reason)
            result.done.samples_waived += 1
        result.applied = True
        result.remaining = _left(opened, sorted({absence.shard for absence in wanted}))
    return result


def _step(absence: _Absence, reason: str) -> Step:
    path = keys.waiver(absence.entry.sample)
    return Step("waive", reason, "store", absence.shard, path, samples=(absence.entry.key,))


def _absence(store: Store, sample: int) -> _Absence:
    """What the committed manifest says of an absent sample; an error for one in another state."""
    shard = store.samples.extent(sample).shard
    try:
        marker = store.marker(shard)
    except SampleMissing:
        source = store.source_words()
        raise SampleMissing(
            f"sample {store.key(sample)!r} is missing, not absent: nobody has tried to compute it",
            place=str(store.root),
            remedy=f"run: {commands.extract(store.root, source=source, shard=shard)}, "
            "which commits the shard without what cannot be computed; then waive that",
        ) from None
    for entry in store.manifest(marker).absent:
        if entry.sample == sample:
            return _Absence(shard, entry)
    raise StoreError(
        f"sample {store.key(sample)!r} is stored: there is nothing to waive",
        place=str(store.root),
        remedy=f"see: {commands.hsstore('inspect', store.root, '--sample', f'#{sample}')}",
    )


def _publish(store: Store, absence: _Absence, reason: str) -> None:
    """Under the claim of the shard, so that the sample is not stored meanwhile."""
    sample = absence.entry.sample
    with claimed(store.filesystem, store.root, store.identity.uuid, absence.shard) as claim:
        _absence(store, sample)
        _set_aside_damaged(store, absence, claim.writer)
        waiver = Waiver(
            store=store.identity.uuid,
            sample=sample,
            shard=absence.shard,
            key=absence.entry.key,
            reason=reason,
            when=timestamp(),
        )
        # Whoever came first has waived it too.
        with contextlib.suppress(FileExistsError):
            publish_waiver(store, waiver)


def _set_aside_damaged(store: Store, absence: _Absence, writer: str) -> None:
    """What waives nothing must not be in the way."""
    sample = absence.entry.sample
    with contextlib.suppress(FileNotFoundError):
        try:
            whole = read_waiver(store, sample).key == absence.entry.key
        except InvalidDocument:
            whole = False
        if not whole:
            quarantine = Quarantine(store, f"{absence.shard:08d}-waiver.{writer}")
            quarantine.set_aside(keys.waiver(sample))
            quarantine.close()


def _left(store: Store, shards: list[int]) -> tuple[Finding, ...]:
    """The errors of these shards that are left."""
    again = Fsck(Subject(store, "manifest"), shards, Silent(), lambda: False)
    return tuple(f for f in again if f.severity == "error" and f.shard in shards)
