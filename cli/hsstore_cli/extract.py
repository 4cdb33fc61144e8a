"""``hsstore extract``: fill a store with hidden states."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from hsstore.errors import OUT_OF_SPACE, OutOfSpace
from hsstore.model import commands
from hsstore_cli import exit_codes, render
from hsstore_cli.options import Command, json_option, shards_option, source_option, store_argument
from hsstore_cli.source_option import open_source, source_place

if TYPE_CHECKING:
    from hsstore.extraction.extractor import ExtractionSummary
    from hsstore.storage.status import StoreStatus
    from hsstore.storage.store import Store


@click.command(
    cls=Command,
    examples=[
        "hsstore extract states --source transformers:models/SmolLM2-135M",
        "hsstore extract states --source transformers:model.gguf --shards 0-99",
    ],
    exits={
        exit_codes.OK: "every shard asked for is committed, and none of their samples is absent",
        exit_codes.PROBLEMS: "samples of them are absent: the source could not compute them",
        exit_codes.FAILED: "failed, or another writer holds the shards that are left",
        exit_codes.STOPPED: "stopped by a signal or --max-duration; the same command goes on",
    },
)
@store_argument
@source_option
@click.option(
    "--batch-tokens",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many tokens, padding included, the source computes at once.",
)
@shards_option
@click.option(
    "--max-duration",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Stop in good order after this time.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    store: Path,
    source: str | None,
    batch_tokens: int | None,
    shards: range | None,
    max_duration: float | None,
    *,
    as_json: bool,
) -> None:
    """Compute the hidden states that STORE lacks, and commit them shard by shard.

    Goes on where an earlier run ended, whatever ended it. Ctrl-C or SIGTERM stops after the sample
    in work; a second one at once. Several such commands may fill one store together.
    """
    # Reading a store costs numpy, which the help does not need.
    from hsstore.storage.status import status  # noqa: PLC0415
    from hsstore.storage.store import Store  # noqa: PLC0415

    opened = Store.open(store)
    check_range(shards, opened)
    deadline = time.monotonic() + max_duration if max_duration else float("inf")
    summary = _extract(opened, source, batch_tokens, shards, deadline)
    found = status(opened)
    held = [s for s in summary.shards_claimed_by_others if s not in opened.committed()]
    absent = [s for s in found.shards_absent if shards is None or s in shards]
    code = _exit_code(summary, absent, held)
    if as_json:
        render.emit_json(_as_json(summary, found, held))
    else:
        for line in _lines(store, summary, found, held):
            click.echo(line)
    ctx.exit(code)


def check_range(shards: range | None, store: "Store") -> None:
    """click.BadParameter where a store has no such shards."""
    if shards is not None and shards.stop > store.plan.shards:
        raise click.BadParameter(
            f"the store has shards 0 to {store.plan.shards - 1}", param_hint="'--shards'"
        )


def _extract(store: "Store", source: str | None, batch_tokens: int | None, shards: range | None,
             deadline: float) -> "ExtractionSummary":  # fmt: skip
    from hsstore.extraction.extractor import already_filled, extract  # noqa: PLC0415 - numpy, as above

    source_place(source)
    try:
        # A model takes long to load, for nothing then.
        if (summary := already_filled(store, shards)) is not None:
            return summary
        opened = open_source(source, store.identity, batch_tokens)
        with contextlib.closing(opened), render.progress() as progress, stopping() as stopped:
            return extract(
                store,
                opened,
                shards=shards,
                progress=progress,
                stop=lambda: stopped() or time.monotonic() >= deadline,
            )
    except OSError as error:
        if error.errno not in OUT_OF_SPACE:
            raise
        raise OutOfSpace(
            f"{error.strerror}; the samples in committed shards and journals are safe",
            place=error.filename,
            remedy="free space, then run the same command again to go on",
        ) from error


@contextlib.contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came; a second one raises KeyboardInterrupt, a third kills."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        nonlocal asked
        if asked:
            for each in signals:
                signal.signal(each, signal.SIG_DFL)
            raise KeyboardInterrupt
        asked = True
        click.echo("stopping after the sample in work; once more to stop at once", err=True)

    signals = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, ask) for each in signals}
    try:
        yield lambda: asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _exit_code(summary: "ExtractionSummary", absent: list[int], held: list[int]) -> int:
    if summary.stopped:
        return exit_codes.STOPPED
    if held:
        return exit_codes.FAILED
    return exit_codes.PROBLEMS if absent else exit_codes.OK


def _as_json(
    summary: "ExtractionSummary", found: "StoreStatus", held: list[int]
) -> dict[str, object]:
    return {
        "type": "summary",
        **dataclasses.asdict(summary),
        "shards_claimed_by_others": held,
        "store": {**dataclasses.asdict(found), "complete": found.complete},
    }


def _lines(
    store: Path, summary: "ExtractionSummary", found: "StoreStatus", held: list[int]
) -> Iterator[str]:
    yield (
        f"this run: {summary.samples_extracted} samples ({summary.tokens_extracted} tokens) "
        f"computed, {summary.samples_resumed} resumed, {summary.samples_failed} failed, "
        f"{summary.shards_committed} shards committed"
    )
    yield (
        f"the store: {found.samples_committed} of {found.samples} samples committed, "
        f"{found.samples_absent} absent, {found.samples_staged} staged, "
        f"{found.samples_missing} missing"
    )
    if found.shards_absent:
        command = commands.hsstore("inspect", store, "--shard", found.shards_absent[0])
        yield f"why absent: {command}"
    if held:
        yield (
            f"{len(held)} shards are held by another writer, first {held[0]}; run the same "
            "command again when it is done"
        )
    if summary.stopped:
        yield "stopped; run the same command again to go on"
