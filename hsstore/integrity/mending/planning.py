"""What a repair would do: for each problem a step, with who provides what is lost and its cost."""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hsstore.errors import StoreError
from hsstore.integrity.mending.mend import is_unreadable, wanted
from hsstore.integrity.mending.repair_cost import (
    copied_bytes,
    payload_bytes,
    staged_bytes,
    tokens_of,
)
from hsstore.integrity.mending.replica import Replica
from hsstore.integrity.mending.suspects import Suspects
from hsstore.integrity.subject import ShardCase
from hsstore.model.finding import Finding
from hsstore.model.repair_plan import Action, Provider, RepairPlan, Step
from hsstore.storage.status import pace
from hsstore.storage.store import Store

DERIVED: dict[str, Action] = {
    "folder": "make-folder",
    "growth": "finish-growth",
    "metadata": "rewrite-metadata",
    "tokens": "rebuild-tokens",
    "array": "rewrite-array",
    "calibration": "set-aside-calibration",
    "waiver": "set-aside-waiver",
}


@dataclass(frozen=True, slots=True)
class Means:
    """What there is to mend with, and what reports hold against the states of shards."""

    replica: Replica | None
    source: bool
    suspects: Mapping[int, Suspects]


def planned(
    store: Store, findings: Sequence[Finding], cases: Iterable[ShardCase], means: Means
) -> RepairPlan:
    """The steps for findings and unsound shards, in the order in which they are done."""
    steps = list(_derived(findings))
    for case in cases:
        steps += _steps(case, means)
    return RepairPlan(tuple(_timed(store, steps)))


def _timed(store: Store, steps: list[Step]) -> list[Step]:
    """The steps, each that computes with the time it takes at the pace of the store's commits."""
    if not any(step.provider == "source" for step in steps):
        return steps
    rate = None
    with contextlib.suppress(StoreError, OSError):
        rate = pace(store)
    if not rate:
        return steps
    return [
        replace(step, seconds=step.tokens / rate) if step.provider == "source" else step
        for step in steps
    ]


def _derived(findings: Sequence[Finding]) -> Iterator[Step]:
    order = list(DERIVED)
    for finding in findings:
        if finding.kind in ("plan-missing", "plan-invalid") and finding.repair:
            yield Step("rebuild-plan", finding.kind, "store", None, finding.path)
    wanted = [f for f in findings if f.kind.partition("-")[0] in DERIVED]
    for finding in sorted(wanted, key=lambda f: order.index(f.kind.partition("-")[0])):
        action = DERIVED[finding.kind.partition("-")[0]]
        yield Step(action, finding.kind, "store", finding.shard, finding.path)


def _steps(case: ShardCase, means: Means) -> Iterator[Step]:
    kinds = {f.kind for f in case.findings if f.kind.partition("-")[0] not in DERIVED}
    kinds -= {"sample-waived"}
    accused = means.suspects[case.shard].findings if case.shard in means.suspects else []
    said = {f.kind for f in accused} if case.suspected or case.lost else set()
    reason = ", ".join(sorted(kinds | said))
    if "intent-pending" in kinds:
        yield Step("finish-replacement", "intent-pending", "store", case.shard)
    if case.provable:
        yield Step("roll-forward", reason, "store", case.shard)
    elif case.lost:
        action: Action = "extract" if kinds == {"shard-missing"} else "replace"
        yield from _remade(case, means, action, reason)
    elif case.marker is None or is_unreadable(case):
        yield _copying(Step("replace", reason, "store", case.shard), case)
    elif case.discredited:
        yield Step("set-aside", reason, "store", case.shard, case.discredited[0])


def _copying(step: Step, case: ShardCase) -> Step:
    """The step that also takes over what is whole of a shard."""
    others = payload_bytes(case, case.lost)
    reads = step.reads_bytes + copied_bytes(case)
    return replace(
        step, reads_bytes=reads, writes_bytes=step.writes_bytes + staged_bytes(case) - others
    )


def _remade(case: ShardCase, means: Means, action: Action, reason: str) -> Iterator[Step]:
    """A step for each provider of lost samples; the first one takes over what is whole."""
    by_provider: dict[Provider, list[int]] = {}
    for sample in sorted(case.lost):
        in_replica = means.replica and means.replica.find(wanted(case, sample))
        provider: Provider = "source" if means.source else "nobody"
        by_provider.setdefault("replica" if in_replica else provider, []).append(sample)
    for number, (provider, samples) in enumerate(by_provider.items()):
        size = payload_bytes(case, samples)
        step = Step(
            action,
            reason,
            provider,
            case.shard,
            samples=case.subject.keys(case.shard, samples),
            tokens=tokens_of(case, samples),
            reads_bytes=size if provider == "replica" else 0,
            writes_bytes=size,
        )
        yield step if number else _copying(step, case)
