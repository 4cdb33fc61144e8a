"""One verdict from the reports of many runs of fsck over one store."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hsstore.errors import MalformedInput
from hsstore.integrity.scrub.verdicts import is_as_deep
from hsstore.model.finding import COMPARED, Finding, Level, Summary
from hsstore.model.report import Checked, Report, ReportLines, Run


@dataclass(frozen=True, slots=True)
class Merged:
    """What many reports say together.

    ``run`` stands for all of them. ``checked`` maps the shards that one of them checked to when
    and what of it; ``missing`` are the others. ``unfinished`` are the reports with shards that
    count, or none at all, whose run ended before it had compared its shards with each other.
    """

    run: Run
    findings: tuple[Finding, ...]
    checked: Mapping[int, tuple[str, Checked]]
    missing: tuple[int, ...]
    unfinished: tuple[Report, ...]
    summary: Summary

    def lines(self) -> Iterator[str]:
        """All of it as the lines of one report, each with its newline."""
        made = ReportLines()
        yield made.run(self.run)
        for finding in self.findings:
            yield made.finding(finding)
        by_time: dict[str, list[Checked]] = {}
        for time, row in self.checked.values():
            by_time.setdefault(time, []).append(row)
        for time in sorted(by_time):
            yield made.checked(time, by_time[time])
        yield made.summary(self.summary)


def merge(reports: Sequence[Report], level: Level | None = None) -> Merged:
    """Merge reports of one store; of a shard that several checked, the newest counts.

    States that a deeper check or an audit called false stay false while they are in the store.
    Shards that different runs checked are not compared with each other: reports do not hold their
    origins, norms and rows. Reports of several levels need a ``level`` for all of them, which none
    may fall short of. Raises MalformedInput where they do not belong together.
    """
    _refuse_other_stores(reports)
    by_time = sorted(reports, key=lambda report: report.run.started)
    run = _run_of_all(by_time, _level(reports, level))
    owners = _owners(by_time, run.shards_total)
    checked = {shard: owners[shard].checked[shard] for shard in sorted(owners)}
    counting = [r for r in by_time if r is by_time[-1] or any(r is o for o in owners.values())]
    unfinished = tuple(report for report in counting if not _compared(report))
    missing = tuple(shard for shard in range(run.shards_total) if shard not in checked)
    findings = tuple(_findings(by_time, counting, owners))
    complete = not missing and not unfinished and run.store is not None
    summary = _summary(run, findings, checked, complete=complete)
    return Merged(run, findings, checked, missing, unfinished, summary)


def _refuse_other_stores(reports: Sequence[Report]) -> None:
    known = {report.run.store: report for report in reports if report.run.store}
    if len(known) > 1:
        (one, first), (other, second), *_ = known.items()
        raise MalformedInput(
            f"reports of different stores: {first.place} is of {one}, this is of {other}",
            place=second.place,
            remedy="merge those of one store",
        )
    roots = {report.run.root for report in reports if report.run.store} or {reports[0].run.root}
    for report in reports:
        if report.run.store is None and report.run.root not in roots:
            raise MalformedInput(
                "it names no store, for its run could open none, and another path than the others",
                place=report.place,
                remedy="merge those of one store",
            )


def _level(reports: Sequence[Report], level: Level | None) -> Level:
    first = reports[0]
    for report in reports:
        if level is None and report.run.level != first.run.level:
            raise MalformedInput(
                f"reports of different levels: {first.place} is of {first.run.level}, this is of "
                f"{report.run.level}",
                place=report.place,
                remedy="say by --level what the verdict shall be about",
            )
        if level is not None and not is_as_deep(report.run.level, level):
            raise MalformedInput(
                f"it is of level {report.run.level} and says nothing about {level}",
                place=report.place,
                remedy="leave it out, or give a shallower --level",
            )
    return level or first.run.level


def _run_of_all(by_time: Sequence[Report], level: Level) -> Run:
    newest_plan = max(by_time, key=lambda r: -1 if r.run.plan is None else r.run.plan).run
    started = by_time[-1].run.started
    return replace(
        newest_plan, level=level, started=started, shards=None, subset=None, max_age_seconds=None
    )


def _owners(by_time: Sequence[Report], shards: int) -> dict[int, Report]:
    """The report that counts for each shard."""
    owners: dict[int, Report] = {}
    for report in by_time:
        for shard, (time, _) in report.checked.items():
            before = owners.get(shard)
            if shard < shards and (before is None or time >= before.checked[shard][0]):
                owners[shard] = report
    return owners


def _compared(report: Report) -> bool:
    """Whether a run made the checks that go beyond one shard, for those that it checked."""
    summary = report.summary
    return summary is not None and (summary.complete or summary.stopped == "max-duration")


def _findings(
    by_time: Sequence[Report], counting: Sequence[Report], owners: Mapping[int, Report]
) -> Iterator[Finding]:
    """Those that nothing newer has overtaken, each once."""
    told: set[Finding] = set()
    for report in by_time:
        counts = any(report is other for other in counting)
        for finding in report.findings:
            if finding.shard is None:
                stands = counts
            else:
                owner = owners.get(finding.shard)
                # One of a shard that its run did not come to an end with.
                stands = (
                    owner is None
                    or owner is report
                    or _is_unseen(finding, report, owner)
                    or (
                        finding.shard not in report.checked
                        and owner.checked[finding.shard][0] < report.run.started
                    )
                )
            if stands and finding not in told:
                told.add(finding)
                yield finding


def _is_unseen(finding: Finding, report: Report, owner: Report) -> bool:
    """Whether ``owner``, which checked the shard later, could not see this, and it is there still.

    What only deeper checks see, or only those that compare it with other shards, stays while the
    shard has the generation that they looked at. An audit draws its samples, so no other run takes
    back what one has found.
    """
    if finding.shard is None or finding.generation is None:
        return False
    _, row = owner.checked[finding.shard]
    seen = finding.kind != "audit-wrong" and is_as_deep(owner.run.level, report.run.level)
    if finding.kind in COMPARED:
        seen &= owner.checked.keys() >= report.checked.keys()
    return not seen and row.generation == finding.generation


def _summary(
    run: Run,
    findings: Sequence[Finding],
    checked: Mapping[int, tuple[str, Checked]],
    *,
    complete: bool,
) -> Summary:
    rows = [row for _, row in checked.values()]
    summary = Summary(
        run.level,
        run.shards_total,
        unverified=max(run.samples_total - sum(row.verified for row in rows), 0),
        complete=complete,
        shards_checked=len(rows),
        bytes_checked=sum(row.bytes_checked for row in rows),
        shards_asked=run.shards_total,
    )
    damaged: set[tuple[int, str]] = set()
    for finding in findings:
        summary.findings[finding.severity] += 1
        if finding.severity == "error" and finding.shard is not None:
            damaged.update((finding.shard, key) for key in finding.samples or ())
    summary.samples_damaged = len(damaged)
    return summary
