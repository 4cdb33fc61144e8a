"""What a check says to people: findings, what was covered and what was not, the next command."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from hsstore.model import commands
from hsstore.model.finding import Finding, Summary
from hsstore_cli import render
from hsstore_cli.audit import audit_lines
from hsstore_cli.findings import finding_lines, ranges

BY_REPORT = "--from-report REPORT"


class Page:
    """Writes findings as they come; what repeats shard by shard is gathered for the end.

    ``source`` is how to type what computes the store's states, ``report`` where the report goes.
    """

    def __init__(
        self,
        store: Path,
        shards: range | None,
        source: Sequence[str],
        report: Path | None = None,
    ) -> None:
        self._store = store
        self._only = () if shards is None else ("--shards", f"{shards.start}-{shards.stop - 1}")
        self._source = source
        self._report = report
        self._missing: list[int] = []
        self._only_missing = True
        self._commands: set[str] = set()

    def add(self, finding: Finding) -> None:
        """Show a finding."""
        if finding.repair and finding.severity != "note":
            self._commands.add(finding.repair)
            self._only_missing &= finding.kind == "shard-missing"
        if finding.kind == "shard-missing" and finding.shard is not None:
            self._missing.append(finding.shard)
        else:
            render.show(*finding_lines(finding))

    def end(self, summary: Summary) -> None:
        """Show what was gathered, what the run covered, and what to do next."""
        if self._missing:
            shards = "shard" if len(self._missing) == 1 else f"{len(self._missing)} shards:"
            render.show(f"error shard-missing: not extracted yet: {shards} {ranges(self._missing)}")
        render.show(*summary_lines(summary))
        if self._commands and self._only_missing:
            again = commands.hsstore("extract", self._store, *self._only, *self._source)
            render.show(f"To finish it: {again}")
        elif self._commands:
            render.show(f"To mend it: {self._command()}")

    def _command(self) -> str:
        """The one command that mends everything that was found."""
        # What only a report can name is mended with it, and so is the rest of what it names.
        report = any(BY_REPORT in line for line in self._commands)
        if len(self._commands) == 1 and not (report and self._report):
            return next(iter(self._commands))
        source = any(" ".join(self._source) in line for line in self._commands)
        named = ("--from-report", self._report or "REPORT") if report else ()
        return commands.repair(
            self._store, *self._only, *named, source=self._source if source else ()
        )


STOPPED = {"interrupted": "Interrupted: ", "max-duration": "Stopped by --max-duration: "}


def summary_lines(summary: Summary) -> Iterator[str]:
    """What a run covered and what it did not, for people."""
    found = ", ".join(f"{name}s: {count}" for name, count in summary.findings.items() if count)
    reach = f"{summary.shards_checked} of {summary.shards_total} shards checked"
    hashed = f"{render.size(summary.bytes_checked)} hashed"
    verdict = found or "nothing wrong"
    start = STOPPED.get(summary.stopped or "", "")
    yield f"{start}{reach} at level {summary.level}, {hashed}: {verdict}"
    yield from _left_out(summary)
    if summary.samples_damaged:
        yield f"samples concerned: {summary.samples_damaged}"
    if summary.unverified:
        yield f"samples that could not be verified: {summary.unverified}"
    if summary.audit:
        yield from audit_lines(summary.audit)


def _left_out(summary: Summary) -> Iterator[str]:
    """The shards that were not looked at, and why."""
    others = summary.shards_total - summary.shards_asked
    if summary.subset and summary.shards_total:
        share = summary.shards_asked / summary.shards_total
        number, of = summary.subset
        yield (
            f"subset {number}/{of}: {summary.shards_asked} shards, {share:.1%} of the store; "
            f"the other {others} were not asked for"
        )
    elif others:
        yield f"not asked for: {others} shards"
    if summary.shards_recent:
        whole = summary.complete and summary.sound and not summary.unverified
        so = "; with them, all that was asked for is verified" if whole else ""
        yield f"left out, verified within --max-age: {summary.shards_recent} shards{so}"
        if summary.level != "quick":
            yield "not compared with those: origins, norms and rows; a run over all shards does"
    left = summary.shards_asked - summary.shards_checked - summary.shards_recent
    if left > 0:
        yield f"not reached: {left} shards; the same command goes on with them"
    elif not summary.complete and summary.shards_total:
        yield "not all checks of the store as a whole were made"
