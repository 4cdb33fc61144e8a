"""``hsstore fsck``: names what is damaged, where, and how to mend it."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import click

from hsstore.model.finding import Level
from hsstore_cli import render
from hsstore_cli.audit import AuditOptions, audit_options, audited
from hsstore_cli.exit_codes import FAILED, OK, PROBLEMS, STOPPED
from hsstore_cli.extract import check_range
from hsstore_cli.fsck_page import Page
from hsstore_cli.options import Command, json_option, shards_option, store_argument
from hsstore_cli.scrub_options import ScrubOptions, interruptible, scrub_options

if TYPE_CHECKING:
    from hsstore.integrity.fsck import Fsck, Unopened


@click.command(
    cls=Command,
    examples=[
        "hsstore fsck STORE",
        "hsstore fsck STORE --level quick --json",
        "hsstore fsck STORE --max-duration 21600 --max-age 30d",
        "hsstore fsck STORE --subset 3/7 --report night-3.jsonl",
    ],
    exits={
        OK: "everything that was asked for was checked, now or within --max-age, and is sound; "
        "there may be warnings and notes",
        PROBLEMS: "errors were found: damage, absent samples, shards that are not there yet",
        STOPPED: "stopped by a signal or --max-duration, with nothing wrong so far; the same "
        "command goes on",
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
@scrub_options
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
    scrub: ScrubOptions,
    threads: int | None,
    audit: AuditOptions,
    as_json: bool,
) -> None:
    """Check a store and name what is damaged; writes nothing into it.

    Every finding says where the damage is, which samples it concerns and how to mend it. With
    --json, the lines are those of a report: what was asked for, findings, and at the end the
    summary. What was found of each shard is remembered outside of the store, every few seconds:
    the next run begins with the shards that were checked longest ago, and hsstore status tells how
    much was verified when.
    """
    from hsstore.integrity.fsck import fsck  # noqa: PLC0415 - numpy, which the help does not need

    with render.progress() as progress:
        asked = scrub.to_scrub(progress.note)
        run = fsck(store, level, shards=shards, scrub=asked, threads=threads, progress=progress)
        if run.store is not None:
            check_range(shards, run.store)
        page = Page(store, shards, run.transcript.run.source, scrub.report)
        if as_json:
            run.transcript.tell(lambda line: click.echo(line, nl=False))
        with audited(run, audit, progress) as checking:
            findings = contextlib.closing(iter(checking))
            with contextlib.suppress(KeyboardInterrupt), interruptible(), findings as found:
                for finding in found:
                    if not as_json:
                        page.add(finding)
    if not as_json:
        page.end(run.summary)
    ctx.exit(_exit_code(run))


def _exit_code(run: "Fsck | Unopened") -> int:
    if not run.summary.sound:
        return PROBLEMS
    if run.transcript.file is not None and not run.transcript.file.whole:
        return FAILED
    return OK if run.summary.complete else STOPPED
