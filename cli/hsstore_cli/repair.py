"""``hsstore repair``: shows how a store would be mended, and mends it when told."""

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hsstore.model.repair_plan import WORDS, RepairPlan, Step
from hsstore_cli import render
from hsstore_cli.exit_codes import CORRECTED, OK, PROBLEMS
from hsstore_cli.extract import check_range, stopping
from hsstore_cli.findings import finding_lines, sample_list
from hsstore_cli.options import (
    Command,
    json_option,
    shards_option,
    store_argument,
)
from hsstore_cli.source_option import (
    SourceOptions,
    open_source,
    refuse_unfit,
    source_options,
)

if TYPE_CHECKING:
    from hsstore.integrity.repair import RepairResult


@click.command(
    cls=Command,
    examples=[
        "hsstore repair STORE",
        "hsstore repair STORE --shards 3 --source transformers:MODEL --apply",
    ],
    exits={
        OK: "nothing was wrong; nothing was done",
        CORRECTED: "problems were found, and all are corrected",
        PROBLEMS: "problems remain, or the plan was only shown",
    },
)
@store_argument
@click.option("--apply", "applying", is_flag=True, help="Do it; without this it is only shown.")
@source_options
@click.option(
    "--from",
    "replica",
    metavar="REPLICA",
    type=click.Path(path_type=Path),
    help="Another copy of the store: what is whole there is copied before anything is computed.",
)
@shards_option
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    store: Path,
    applying: bool,
    options: SourceOptions,
    replica: Path | None,
    shards: range | None,
    as_json: bool,
) -> None:
    """Mend a store; shows what it would do unless told to apply it.

    Only samples that are damaged, absent or missing are computed. What is replaced goes to
    quarantine/ first, and what was touched is checked again at the end. With --json, the steps are
    JSON lines, then what remains, then a summary.
    """
    options.refuse_without_servers("max_wait")
    # Reading a store costs numpy, which the help does not need.
    from hsstore.integrity.repair import repair  # noqa: PLC0415
    from hsstore.storage.store import Store  # noqa: PLC0415

    opened = Store.open(store, to_check=True)
    check_range(shards, opened)
    refuse_unfit(options, opened)
    with render.progress() as progress, stopping() as stopped:
        result = repair(
            opened,
            source=partial(open_source, options, opened, note) if options.given else None,
            replica=replica,
            shards=shards,
            apply=applying,
            progress=progress,
            stop=stopped,
        )
    if as_json:
        _emit(result)
    else:
        lacking = opened.source_words() if result.plan.lacks_source else ()
        _show(result, _again(store, shards, options, replica, lacking))
    ctx.exit(_code(result))


def note(text: str) -> None:
    """One line for people, on stderr."""
    render.tell(text)


def _code(result: "RepairResult") -> int:
    if not result.found and not result.plan.steps:
        return OK
    return CORRECTED if result.corrected else PROBLEMS


def _emit(result: "RepairResult") -> None:
    for step in result.plan.steps:
        render.emit_json(step.to_json())
    if result.applied:
        for finding in result.remaining:
            render.emit_json(finding.to_json())
    render.emit_json(result.to_json())


def _show(result: "RepairResult", again: str) -> None:
    for step in result.plan.steps:
        click.echo("\n".join(step_lines(step)))
    if not result.applied:
        click.echo(_verdict(result, again))
        return
    for finding in result.remaining:
        click.echo("\n".join(finding_lines(finding)))
    for note in result.done.notes:
        click.echo(note)
    click.echo(_account(result))
    if result.remaining and result.plan.lacks_source:
        click.echo(f"With something to compute with: {again}")


def step_lines(step: Step) -> list[str]:
    """A step for people."""
    where = "" if step.shard is None else f"shard {step.shard}: "
    what = f"{where}{WORDS[step.action]}"
    lines = [f"{what}: {step.path}" if step.path else what, f"  because: {step.reason}"]
    if step.samples:
        lines.append(f"  {PROVIDED[step.provider]}: {sample_list(step.samples)}")
        lines.append(f"  {step.tokens} tokens; stages up to {render.size(step.writes_bytes)}")
    return lines


PROVIDED = {
    "store": "from the store itself",
    "replica": "copied from the replica",
    "source": "computed by the source",
    "nobody": "nothing given here provides",
}


def _verdict(result: "RepairResult", again: str) -> str:
    """The line that ends a plan that was only shown."""
    plan: RepairPlan = result.plan
    if not plan.steps:
        return "nothing can be done about it" if result.found else "nothing is wrong"
    needed = " once there is something to compute with" if plan.lacks_source else ""
    return f"Nothing was written. To do it{needed}: {again}"


def _account(result: "RepairResult") -> str:
    done = result.done
    counts = {
        "shards replaced or extracted": done.shards_replaced,
        "shards rolled forward": done.rolled_forward,
        "replacements finished": done.replacements_finished,
        "samples copied from the replica": done.samples_from_replica,
        "samples computed": done.samples_reextracted,
        "samples failed again": done.samples_failed,
    }
    listed = ", ".join(f"{what}: {count}" for what, count in counts.items() if count)
    end = f"problems that remain: {len(result.remaining)}" if result.remaining else "all corrected"
    return f"problems found: {result.found}; {listed or 'derived files written again'}; {end}"


def _again(
    store: Path,
    shards: range | None,
    options: SourceOptions,
    replica: Path | None,
    lacking: Sequence[str],
) -> str:
    """The command that does what was shown; ``lacking`` is the source that it takes, if it does."""
    words = ["hsstore repair", shlex.quote(str(store))]
    if shards is not None:
        words.append(f"--shards {shards.start}-{shards.stop - 1}")
    if replica is not None:
        words.append(f"--from {shlex.quote(str(replica))}")
    words += [f"{option} {shlex.quote(value)}" for option, value in options.words()]
    if not options.given:
        words += lacking
    return " ".join([*words, "--apply"])
