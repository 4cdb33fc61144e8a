"""``hsstore fsck``: names what is damaged, where, and how to mend it."""

import shlex
from collections import defaultdict
from pathlib import Path
from typing import get_args

import click

from hsstore.model import commands
from hsstore.model.finding import Finding, Level, Summary
from hsstore_cli import render
from hsstore_cli.audit import AuditOptions, audit_lines, audit_options, audited
from hsstore_cli.exit_codes import OK, PROBLEMS, STOPPED
from hsstore_cli.extract import check_range
from hsstore_cli.findings import finding_lines, ranges
from hsstore_cli.options import Command, json_option, shards_option, store_argument


@click.command(
    cls=Command,
    examples=["hsstore fsck STORE", "hsstore fsck STORE --level quick --json"],
    exits={
        OK: "everything that was checked is sound; there may be warnings and notes",
        PROBLEMS: "errors were found: damage, absent samples, shards that are not there yet",
    },
)
@store_argument
@click.option(
    "--level",
    type=click.Choice(get_args(Level)),
    default="data",
    show_default=True,
    help="quick: markers and sizes. manifest: also all documents, indexes, token files, arrays, "
    "and norms by layer. data: also every stored chunk. thorough: also what the decoded rows are.",
)
@shards_option
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="How many threads read and hash; by default one a CPU, at most 4.",
)
@audit_options
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    store: Path,
    level: Level,
    shards: range | None,
    threads: int | None,
    audit: AuditOptions,
    as_json: bool,
) -> None:
    """Check a store and name what is damaged; writes nothing.

    Every finding says where the damage is, which samples it concerns and how to mend it. With
    --json, findings are JSON lines and the last line is the summary.
    """
    from hsstore.integrity.fsck import fsck  # noqa: PLC0415 - numpy, which the help does not need

    with render.progress() as progress:
        run = fsck(store, level, shards=shards, threads=threads, progress=progress)
        if run.store is not None:
            check_range(shards, run.store)
        source = run.store.source_words() if run.store else commands.TRANSFORMERS
        page = _Page(store, shards, " ".join(source), as_json=as_json)
        with audited(run, audit, progress) as findings:
            try:
                for finding in findings:
                    page.add(finding)
            except KeyboardInterrupt:
                page.interrupted = True
    page.end(run.summary)
    if not run.summary.sound:
        ctx.exit(PROBLEMS)
    ctx.exit(OK if run.summary.complete else STOPPED)


class _Page:
    """Writes findings as they come; what repeats shard by shard is gathered for the end."""

    def __init__(self, store: Path, shards: range | None, source: str, *, as_json: bool) -> None:
        self.interrupted = False
        self._store = store
        self._shards = shards
        self._source = source
        self._json = as_json
        self._missing: list[int] = []
        self._only_missing = True
        self._commands: dict[str, bool] = defaultdict(bool)

    def add(self, finding: Finding) -> None:
        if finding.repair and finding.severity != "note":
            self._commands[finding.repair] = True
            self._only_missing &= finding.kind == "shard-missing"
        if self._json:
            render.emit_json(finding.to_json())
        elif finding.kind == "shard-missing" and finding.shard is not None:
            self._missing.append(finding.shard)
        else:
            click.echo("\n".join(finding_lines(finding)))

    def end(self, summary: Summary) -> None:
        if self._json:
            render.emit_json(summary.to_json())
            return
        if self._missing:
            shards = "shard" if len(self._missing) == 1 else f"{len(self._missing)} shards:"
            click.echo(f"error shard-missing: not extracted yet: {shards} {ranges(self._missing)}")
        click.echo("\n".join(summary_lines(summary, interrupted=self.interrupted)))
        if self._commands and self._only_missing:
            click.echo(f"To finish it: {self._words('extract')} {self._source}")
        elif self._commands:
            click.echo(f"To mend it: {self._command()}")

    def _command(self) -> str:
        """The one command that mends everything that was found."""
        if len(self._commands) == 1:
            return next(iter(self._commands))
        source = any(self._source in line for line in self._commands)
        words = [self._words("repair"), *[self._source] * source, "--apply"]
        return " ".join(words)

    def _words(self, name: str) -> str:
        """A command for the same store and shards."""
        words = ["hsstore", name, shlex.quote(str(self._store))]
        if self._shards is not None:
            words.append(f"--shards {self._shards.start}-{self._shards.stop - 1}")
        return " ".join(words)


def summary_lines(summary: Summary, *, interrupted: bool) -> list[str]:
    """What a run covered, for people."""
    found = ", ".join(f"{name}s: {count}" for name, count in summary.findings.items() if count)
    reach = f"{summary.shards_checked} of {summary.shards_total} shards checked"
    hashed = f"{render.size(summary.bytes_checked)} hashed"
    start = "Interrupted: " if interrupted else ""
    verdict = found or "nothing wrong"
    lines = [f"{start}{reach} at level {summary.level}, {hashed}: {verdict}"]
    if summary.samples_damaged:
        lines.append(f"samples concerned: {summary.samples_damaged}")
    if summary.unverified:
        lines.append(f"samples that could not be verified: {summary.unverified}")
    lines += audit_lines(summary.audit) if summary.audit else []
    return lines
