"""Samples that a report says are intact and false: what it names, and whether it is still there."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from hsstore.errors import MalformedInput
from hsstore.integrity.checks.chunks import chunk_owners
from hsstore.integrity.subject import ShardCase
from hsstore.model.finding import Finding
from hsstore.model.manifest import Chunk
from hsstore.model.report import Report
from hsstore.storage.store import Store

# Their bytes contradict the manifest, so that the manifest tells what is wanted.
_BYTES_DIFFER = frozenset({"content-differs"})


@dataclass(slots=True)
class Suspects:
    """What reports hold against one shard: findings of states that are intact and false.

    ``same`` and ``failed`` are the samples that a repair computed again without another result,
    ``differing`` those said to be other than the manifest describes.
    """

    findings: list[Finding] = field(default_factory=list)
    same: set[int] = field(default_factory=set)
    failed: set[int] = field(default_factory=set)
    differing: set[int] = field(default_factory=set)

    def accuse(self, case: ShardCase) -> tuple[list[Finding], list[Finding]]:
        """Lose the samples of findings that hold; those findings, and the ones that do not.

        A finding holds while the shard has the generation that was looked at.
        """
        held, replaced = [], []
        for finding in self.findings:
            if case.manifest is None or finding.generation != case.manifest.version.generation:
                replaced.append(finding)
                continue
            samples = _numbers(case, finding)
            if samples:
                held.append(finding)
            for sample in samples - case.lost.keys():
                case.lose([sample], _chunks(case, sample))
                whom = self.differing if finding.kind in _BYTES_DIFFER else case.suspected
                whom.add(sample)
        return held, replaced

    def left(self, case: ShardCase) -> Iterator[Finding]:
        """The findings that hold still, each with its samples that are as they were.

        ``case`` is of the shard after a repair.
        """
        for finding in self.findings:
            samples = _numbers(case, finding)
            if case.manifest is None or finding.generation != case.manifest.version.generation:
                # Replaced, but for those of which the same came out.
                samples &= self.same | self.failed
            if samples:
                keys = case.subject.keys(case.shard, sorted(samples))
                yield replace(finding, samples=keys, repair=None)


def by_shard(store: Store, reports: Iterable[Report]) -> tuple[set[int], dict[int, Suspects]]:
    """The shards that reports name, and what they hold against the states of some.

    MalformedInput for a report of another store.
    """
    shards: set[int] = set()
    suspects: dict[int, Suspects] = {}
    for report in reports:
        if report.run.store != store.identity.uuid:
            of = report.run.store or "one that could not be opened"
            raise MalformedInput(
                f"the report is of another store: {of}, not {store.identity.uuid}",
                place=report.place,
                remedy="give reports of this very store, or repair without any",
            )
        for finding in report.findings:
            if finding.shard is None or finding.shard >= store.plan.shards:
                continue
            if finding.severity == "note":
                continue
            shards.add(finding.shard)
            if finding.kind.startswith("content-") or finding.kind == "audit-wrong":
                suspects.setdefault(finding.shard, Suspects()).findings.append(finding)
    return shards, suspects


def _numbers(case: ShardCase, finding: Finding) -> set[int]:
    """The stored samples of a shard that a finding names."""
    if case.manifest is None:
        return set()
    known = {stored.key: stored.sample for stored in case.manifest.samples}
    known |= {f"#{stored.sample}": stored.sample for stored in case.manifest.samples}
    return {known[key] for key in finding.samples or () if key in known}


def _chunks(case: ShardCase, sample: int) -> list[Chunk]:
    if case.manifest is None:
        return []
    owners = chunk_owners(case, case.manifest)
    return [chunk for chunk in case.manifest.chunks if owners[chunk.chunk] == sample]
