"""``hsstore fsck-merge``: one verdict from the reports of many subsets."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from hsstore.model import commands
from hsstore.model.finding import Level
from hsstore_cli import render
from hsstore_cli.exit_codes import FAILED, OK, PROBLEMS, STOPPED
from hsstore_cli.findings import finding_lines, ranges
from hsstore_cli.options import Command, json_option

if TYPE_CHECKING:
    from hsstore.integrity.scrub.merge import Merged
    from hsstore.model.report import Report

SHOWN_RANGES = 300


@click.command(
    cls=Command,
    examples=[
        "hsstore fsck-merge night-*.jsonl",
        "hsstore fsck-merge night-*.jsonl --report all.jsonl --json",
    ],
    exits={
        OK: "the reports cover every shard of the store, and nothing is wrong with any",
        PROBLEMS: "errors were found",
        FAILED: "a report is torn or edited, or they are of different stores or levels",
        STOPPED: "nothing wrong so far, but shards are missing, or runs that did not end",
    },
)
@click.argument("reports", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--level",
    type=click.Choice(get_args(Level)),
    help="What the verdict is about, where reports are of several levels; none may be shallower.",
)
@click.option(
    "--report",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Also write all of it to FILE, as one report.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    reports: tuple[Path, ...],
    level: Level | None,
    report: Path | None,
    as_json: bool,
) -> None:
    """Merge the REPORTS of many checks of one store into one verdict.

    Of a shard that several of them checked, the newest counts; but states that a deeper check or an
    audit called false stay so until they are replaced. What no report covers is named. The store
    itself is not looked at.
    """
    from hsstore.integrity.scrub.merge import merge  # noqa: PLC0415 - numpy, which the help does not need
    from hsstore.integrity.scrub.report_file import read_report, write_report  # noqa: PLC0415 - as above

    read = [read_report(path) for path in reports]
    merged = merge(read, level)
    if report is not None:
        write_report(merged.lines(), report)
    if as_json:
        for line in merged.lines():
            click.echo(line, nl=False)
    else:
        render.show(*_lines(merged, read, report))
    summary = merged.summary
    ctx.exit(PROBLEMS if not summary.sound else OK if summary.complete else STOPPED)


def _lines(merged: "Merged", reports: list["Report"], written: Path | None) -> Iterator[str]:
    """The verdict for people."""
    for finding in merged.findings:
        yield from finding_lines(finding)
    summary = merged.summary
    found = ", ".join(f"{name}s: {count}" for name, count in summary.findings.items() if count)
    yield (
        f"{len(reports)} report{'s' * (len(reports) > 1)}: "
        f"{summary.shards_checked} of {summary.shards_total} shards checked "
        f"at level {summary.level}, {render.size(summary.bytes_checked)} hashed: "
        f"{found or 'nothing wrong'}"
    )
    if merged.checked:
        times = sorted(time for time, _ in merged.checked.values())
        yield f"checked between {times[0]} and {times[-1]}"
    yield from _gaps(merged, reports)
    if summary.samples_damaged:
        yield f"samples concerned: {summary.samples_damaged}"
    if summary.unverified:
        yield f"samples that could not be verified: {summary.unverified}"
    if mends := _mends(merged, written):
        yield f"To mend it: {mends}"


def _gaps(merged: "Merged", reports: list["Report"]) -> Iterator[str]:
    """What no report covers, and which runs must be made again."""
    subsets = {report.run.subset for report in reports}
    missing = set(merged.missing)
    for of in sorted({subset[1] for subset in subsets if subset}):
        # Buckets beyond the last shard are empty, however many a report may speak of.
        for number in range(1, min(of, merged.run.shards_total) + 1):
            shards = {*range(number - 1, merged.run.shards_total, of)}
            if (number, of) not in subsets and shards and shards <= missing:
                missing -= shards
                yield f"no report of subset {number}/{of}: {len(shards)} shards not checked"
    if missing:
        listed = ranges(sorted(missing)[:SHOWN_RANGES])
        more = f" and {len(missing) - SHOWN_RANGES} more" if len(missing) > SHOWN_RANGES else ""
        yield f"not checked: {len(missing)} shards: {listed}{more}"
    if len(reports) > 1 and merged.summary.level != "quick":
        yield (
            "not compared: origins, norms and rows of shards that different runs checked; one over "
            "all does"
        )
    for report in merged.unfinished:
        yield f"{report.place}: its run did not come to its end; run it again"
    for report in reports:
        recent = report.summary.shards_recent if report.summary and missing else 0
        if recent:
            words = "shards were left out by --max-age: merge the earlier reports, too"
            yield f"{report.place}: {recent} {words}"


def _mends(merged: "Merged", written: Path | None) -> str:
    """The command that mends what was found, empty where there is nothing to mend."""
    errors = [f for f in merged.findings if f.severity == "error"]
    mendable = [f for f in errors if f.repair]
    if not mendable:
        return ""
    if any(" ".join(commands.REPLICA) in (f.repair or "") for f in mendable):
        # Before these documents are back, nothing else can be seen.
        return commands.hsstore("repair", merged.run.root, *commands.REPLICA, "--apply")
    false = any(f.kind.startswith(("content-", "audit-")) for f in mendable)
    # Without a report a repair looks at all of the store again, which may take nights.
    named = ("--from-report", written or "FILE") if false or written else ()
    command = commands.repair(merged.run.root, *named, source=merged.run.source)
    return command if written or not false else f"{command} (FILE: by --report FILE)"
