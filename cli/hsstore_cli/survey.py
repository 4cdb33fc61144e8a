"""``hsstore survey``: what is there of a tree of loose sample files, and what is lost."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hsstore_cli import render
from hsstore_cli.exit_codes import OK, PROBLEMS, STOPPED
from hsstore_cli.options import Command, PathArgument, json_option
from hsstore_cli.scrub_options import interruptible
from hsstore_cli.survey_page import Page

if TYPE_CHECKING:
    from hsstore.interop.surveying.finding import Depth, SurveySummary

# That of hsstore.interop.surveying.names, which the help must not import; a test compares them.
MOST_SAMPLES = 10_000_000


@click.command(
    cls=Command,
    examples=[
        "hsstore survey DIR --quick",
        "hsstore survey DIR --dataset data.jsonl --redo again.jsonl",
        "hsstore survey DIR --content --json",
    ],
    exits={
        OK: "everything that was looked at is whole, and nothing that should be there is missing; "
        "there may be warnings and notes, and bytes that nothing can prove",
        PROBLEMS: "samples are broken or missing",
        STOPPED: "stopped by a signal, with nothing wrong so far",
    },
)
@click.argument("root", metavar="DIR", type=PathArgument())
@click.option(
    "--quick",
    is_flag=True,
    help="Only names, sizes, headers and token ids: finds what is missing, empty, cut off or of "
    "another shape, and proves no bytes.",
)
@click.option(
    "--content",
    is_flag=True,
    help="Also decode all states: infinities, NaN, layers and stretches of zeros, the states of "
    "another file.",
)
@click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    help="The samples that should be there, as for create. Files are matched to its rows by their "
    "tokens, whatever they are called.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=0, max=MOST_SAMPLES),
    help="How many samples should be there.  [default: what a stats.json in DIR says]",
)
@click.option(
    "--redo",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the samples to extract again to a new FILE: with --dataset its rows, for create; "
    "else row numbers and names.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    help="How many files are read at once; by default one a CPU, at most 4.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    root: Path,
    quick: bool,
    content: bool,
    dataset: Path | None,
    samples: int | None,
    redo: Path | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Look at a tree of loose .pt, .ckpt, .ckpt.gz or .safetensors files; writes nothing into it.

    Says what format it is, which samples should be there, which are missing, broken or there twice,
    what lies around beside them, and what it costs to extract again what is lost. Every byte that
    a checksum in its file vouches for is read and checked. What has no checksum (safetensors, the
    older form of torch.save) is called unverifiable, and never sound.

    With --json, findings are JSON lines, and the last line is a summary.
    """
    if quick and content:
        raise click.UsageError("--quick reads no states: leave out --content.")
    if dataset is not None and samples is not None:
        raise click.UsageError("A --dataset is counted: leave out --samples.")
    # Reading files costs numpy, which the help does not need.
    from hsstore.interop.survey import survey  # noqa: PLC0415

    depth: Depth = "quick" if quick else "content" if content else "checksums"
    with render.progress() as progress:
        run = survey(
            root,
            depth=depth,
            dataset=dataset,
            samples=samples,
            redo=redo,
            threads=threads,
            progress=progress,
        )
        page = Page()
        findings = contextlib.closing(iter(run))
        with contextlib.suppress(KeyboardInterrupt), interruptible(), findings as found:
            for finding in found:
                if as_json:
                    render.emit_json(finding.to_json())
                else:
                    page.add(finding)
    if as_json:
        render.emit_json(run.summary.to_json())
    else:
        page.end(run.summary, dataset, redo)
    ctx.exit(_exit_code(run.summary))


def _exit_code(summary: "SurveySummary") -> int:
    if not summary.sound:
        return PROBLEMS
    return OK if summary.complete else STOPPED
