"""``hsstore repair``: shows how a store would be mended, and mends it when told."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from hsstore.model import commands
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
        "hsstore repair STORE --from-report night.jsonl --server http://127.0.0.1:30000 --apply",
        "hsstore repair STORE --waive conversation-17 --reason 'longer than the context' --apply",
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
    help="Another copy of the store, or another store of the same model, layers and dtype: what is "
    "whole there is copied before anything is computed.",
)
@click.option(
    "--from-report",
    "report_paths",
    metavar="FILE",
    multiple=True,
    type=click.Path(path_type=Path),
    help="A report of fsck: only the shards that it names are looked at, and samples of which it "
    "says that their states are false are made again. May be given several times.",
)
@click.option(
    "--dataset",
    "datasets",
    metavar="D",
    multiple=True,
    type=click.Path(path_type=Path),
    help="What the store was created or extended from: tokens that the store has lost twice come "
    "from there, if the plan proves them. May be given several times.",
)
@click.option(
    "--waive",
    "waived",
    metavar="SAMPLE",
    multiple=True,
    help="Accept that this absent sample (its id, or # and its number) will never come; nothing "
    "else is done then. May be given several times.",
)
@click.option("--reason", metavar="TEXT", help="Why: kept in the store, with --waive.")
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
    report_paths: tuple[Path, ...],
    datasets: tuple[Path, ...],
    waived: tuple[str, ...],
    reason: str | None,
    shards: range | None,
    as_json: bool,
) -> None:
    """Mend a store; shows what it would do unless told to apply it.

    Only samples that are damaged, absent or missing are computed. What is replaced goes to
    quarantine/ first, and what was touched is checked again at the end. With --json, the steps are
    JSON lines, then what remains, then a summary.
    """
    options.refuse_without_servers("max_wait")
    more = MoreOptions(replica, report_paths, datasets, shards)
    _refuse_mixture(options, more, waived, reason)
    # Reading a store costs numpy, which the help does not need.
    from hsstore.integrity.mending.head_documents import give_back_documents  # noqa: PLC0415
    from hsstore.integrity.mending.waive import waive  # noqa: PLC0415
    from hsstore.integrity.repair import only_given_back, repair  # noqa: PLC0415
    from hsstore.integrity.scrub.report_file import read_report  # noqa: PLC0415
    from hsstore.storage.store import Store  # noqa: PLC0415

    given_back = give_back_documents(store, replica, apply=applying)
    if given_back and not applying:
        _end(ctx, only_given_back(given_back), as_json=as_json, again=_again(store, options, more))
    opened = Store.open(store, to_check=True)
    if waived:
        result = waive(opened, waived, reason or "", apply=applying)
        words = [("--waive", name) for name in waived] + [("--reason", reason or "")]
        _end(ctx, result, as_json=as_json, again=_command(store, words), sound=WAIVED)
    check_range(shards, opened)
    refuse_unfit(options, opened)
    reports = [read_report(path) for path in report_paths]
    with render.progress() as progress, stopping() as stopped:
        result = repair(
            opened,
            source=partial(open_source, options, opened, note) if options.given else None,
            replica=replica,
            shards=shards,
            reports=reports,
            datasets=datasets,
            given_back=given_back,
            apply=applying,
            progress=progress,
            stop=stopped,
        )
    lacking = opened.source_words() if result.plan.lacks_source else ()
    again = _again(store, options, more, lacking)
    sound = SOUND if shards is None and not reports else SOUND_THERE
    _end(ctx, result, as_json=as_json, again=again, sound=sound)


@dataclass(frozen=True, slots=True)
class MoreOptions:
    """What there is to mend with beside a source, and where, as it was typed."""

    replica: Path | None
    reports: tuple[Path, ...]
    datasets: tuple[Path, ...]
    shards: range | None

    def words(self) -> list[tuple[str, str]]:
        """What was typed, as pairs of an option and its value."""
        told = []
        if self.shards is not None:
            told.append(("--shards", f"{self.shards.start}-{self.shards.stop - 1}"))
        if self.replica is not None:
            told.append(("--from", str(self.replica)))
        told += [("--from-report", str(path)) for path in self.reports]
        return told + [("--dataset", str(path)) for path in self.datasets]


def _refuse_mixture(
    options: SourceOptions, more: MoreOptions, waived: tuple[str, ...], reason: str | None
) -> None:
    """click.UsageError for a waiver without a reason or beside anything else."""
    if bool(waived) != (reason is not None):
        raise click.UsageError("--waive and --reason need each other.")
    others = [*options.words(), *more.words()]
    if waived and others:
        raise click.UsageError(f"--waive is done alone: leave out {others[0][0]}.")


def _end(
    ctx: click.Context, result: "RepairResult", *, as_json: bool, again: str, sound: str = ""
) -> NoReturn:
    """Show what was planned or done, and exit with its code; ``sound``: that nothing had to be."""
    if as_json:
        _emit(result)
    else:
        _show(result, again, sound)
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


def _show(result: "RepairResult", again: str, sound: str) -> None:
    for step in result.plan.steps:
        render.show(*step_lines(step))
    if not result.applied:
        for note in result.notes:
            render.show(note)
        render.show(*_verdict(result, again, sound))
        return
    for finding in result.remaining:
        render.show(*finding_lines(finding))
    for note in (*result.notes, *result.done.notes):
        render.show(note)
    render.show(_account(result))
    if result.remaining and result.plan.lacks_source:
        render.show(f"With something to compute with: {again}")
    if any(finding.kind.startswith("tokens-") for finding in result.remaining):
        render.show(LOST_TWICE)
    if result.done.samples_the_same:
        render.show(SAME)


def step_lines(step: Step) -> list[str]:
    """A step for people."""
    where = "" if step.shard is None else f"shard {step.shard}: "
    what = f"{where}{WORDS[step.action]}"
    lines = [f"{what}: {step.path}" if step.path else what, f"  because: {step.reason}"]
    if step.samples:
        lines.append(f"  {PROVIDED[step.provider]}: {sample_list(step.samples)}")
    if cost := _cost(step):
        lines.append(f"  {cost}")
    return lines


def _cost(step: Step) -> str:
    """What a step reads, writes and takes; empty where that is next to nothing."""
    parts = [f"{step.tokens} tokens"] if step.tokens else []
    parts += [f"reads {render.size(step.reads_bytes)}"] if step.reads_bytes else []
    parts += [f"writes up to {render.size(step.writes_bytes)}"] if step.writes_bytes else []
    if step.seconds is not None:
        parts.append(f"about {render.duration(step.seconds)} at the pace of the last commits")
    return "; ".join(parts)


SOUND = "nothing is wrong at level data"
SOUND_THERE = f"{SOUND} with the shards that were asked for; the others were not looked at"
WAIVED = "waived before; nothing else was looked at"
COSTS = ("tokens", "reads_bytes", "writes_bytes")
SAME = (
    "What was computed again and is the same is what this source says: compare it with another one "
    "(hsstore fsck --audit); a sample that no source can get right is waived once it is absent"
)
LOST_TWICE = (
    "Tokens that neither the store's arrays nor anything given here has: the same command with "
    "--from REPLICA, or with --dataset D, a dataset that the store was made or extended from"
)
PROVIDED = {
    "store": "from the store itself",
    "replica": "copied from the replica",
    "source": "computed by the source",
    "nobody": "nothing given here provides",
}


def _verdict(result: "RepairResult", again: str, sound: str) -> list[str]:
    """The lines that end a plan that was only shown."""
    plan: RepairPlan = result.plan
    if not plan.steps:
        return ["nothing can be done about it" if result.found else sound]
    needed = " once there is something to compute with" if plan.lacks_source else ""
    lines = [_total(plan)] if len(plan.steps) > 1 else []
    return [*lines, f"Nothing was written. To do it{needed}: {again}"]


def _total(plan: RepairPlan) -> str:
    """All steps of a plan in one line."""
    tokens, reads, writes = (sum(getattr(s, name) for s in plan.steps) for name in COSTS)
    whole = Step("replace", "", "store", tokens=tokens, reads_bytes=reads, writes_bytes=writes,
                 seconds=plan.seconds)  # fmt: skip
    return f"all of it: {len(plan.steps)} steps; {_cost(whole)}".rstrip("; ")


def _account(result: "RepairResult") -> str:
    done = result.done
    counts = {
        "shards replaced or extracted": done.shards_replaced,
        "shards rolled forward": done.rolled_forward,
        "replacements finished": done.replacements_finished,
        "samples copied from the replica": done.samples_from_replica,
        "samples computed": done.samples_reextracted,
        "computed again and the same": done.samples_the_same,
        "samples waived": done.samples_waived,
        "samples failed again": done.samples_failed,
    }
    listed = ", ".join(f"{what}: {count}" for what, count in counts.items() if count)
    end = f"problems that remain: {len(result.remaining)}" if result.remaining else "all corrected"
    rest = (
        "derived files written again" if len(result.remaining) < result.found else "nothing mended"
    )
    return f"problems found: {result.found}; {listed or rest}; {end}"


def _again(
    store: Path, options: SourceOptions, more: MoreOptions, lacking: Sequence[str] = ()
) -> str:
    """The command that does what was shown; ``lacking`` is the source that it takes, if it does."""
    return _command(store, more.words() + options.words(), () if options.given else lacking)


def _command(store: Path, words: Sequence[tuple[str, str]], lacking: Sequence[str] = ()) -> str:
    return commands.repair(store, *chain.from_iterable(words), source=lacking)
