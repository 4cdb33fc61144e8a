"""``hsstore status``: how far a store is."""

import dataclasses
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hsstore.model import commands
from hsstore_cli import exit_codes, render
from hsstore_cli.options import Command, json_option, store_argument
from hsstore_cli.scrub_options import state_folder, state_option

if TYPE_CHECKING:
    from hsstore.integrity.scrub.coverage import Coverage
    from hsstore.storage.store import Store

SHOWN = 10


@click.command(
    cls=Command,
    examples=["hsstore status states"],
    exits={exit_codes.OK: "the store could be read, however far it is"},
)
@store_argument
@state_option
@json_option
def command(store: Path, state: Path | None, *, as_json: bool) -> None:
    """Say how far STORE is: what is committed, staged, missing and absent, and verified when.

    Reads markers and journals, never the states themselves; and what hsstore fsck remembers.
    """
    # Reading a store costs numpy, which the help does not need.
    from hsstore.storage.status import status  # noqa: PLC0415
    from hsstore.storage.store import Store  # noqa: PLC0415

    opened = Store.open(store)
    found, covered = status(opened), _coverage(opened, state)
    if as_json:
        render.emit_json(
            {
                **dataclasses.asdict(found),
                "complete": found.complete,
                "seconds_left": found.seconds_left,
                "coverage": covered and {**dataclasses.asdict(covered), "share": covered.share},
            }
        )
        return
    share = found.tokens_committed / found.tokens
    staged = render.counted(found.samples_staged, "sample")
    lines = [
        ("shards", f"{found.shards_committed} of {found.shards} committed"),
        ("samples", f"{found.samples_committed} of {found.samples} committed"),
        ("staged", f"{staged} in {render.counted(found.shards_staged, 'unfinished shard')}"),
        ("missing", render.counted(found.samples_missing, "sample")),
        (
            "absent",
            f"{render.counted(found.samples_absent, 'sample')}{_where(found.shards_absent)}",
        ),
        *(
            [("waived", render.counted(found.samples_waived, "sample"))]
            if found.samples_waived
            else []
        ),
        ("tokens", f"{found.tokens_committed} of {found.tokens} ({share:.1%})"),
        (
            "on disk",
            f"{render.size(found.allocated_bytes)}; states need {render.size(found.payload_bytes)}",
        ),
        ("last commit", found.last_commit or "none"),
    ]
    if found.tokens_per_second is not None and found.seconds_left is not None:
        left = f", {render.duration(found.seconds_left)} left" if found.seconds_left else ""
        lines.append(("pace", f"{render.rate(found.tokens_per_second)} tok/s{left}"))
    if covered is not None:
        lines.append(("verified", "; ".join(coverage_words(covered))))
    if found.shards_unreadable:
        lines.append(("unreadable", f"markers of shards {_numbers(found.shards_unreadable)}"))
    for name, value in lines:
        click.echo(f"{name:12} {value}")
    if found.shards_unreadable:
        click.echo(f"next: {commands.hsstore('fsck', store)}")
    elif found.samples_missing or found.samples_staged:
        click.echo(f"next: {commands.extract(store, source=opened.source_words())}")


def _coverage(store: "Store", typed: Path | None) -> "Coverage | None":
    """What is remembered of checks; None where there is no place for it."""
    from hsstore.integrity.scrub.coverage import coverage  # noqa: PLC0415 - numpy, as above
    from hsstore.integrity.scrub.state import State  # noqa: PLC0415 - numpy, as above

    folder = state_folder(typed, render.tell)
    if folder is None:
        return None
    return coverage(store, State(folder, store.identity.uuid, render.tell).known, now=time.time())


def coverage_words(covered: "Coverage") -> Iterator[str]:
    """How much was verified when, and what was not."""
    if not covered.shards:
        yield "nothing, for nothing is committed"
        return
    days = covered.within_seconds // 86400
    # Rounded down: 100 % is all of them.
    share = int(covered.share * 1000) / 10
    yield (
        f"within {days} days at level {covered.level}: {share:g} % of the committed shards "
        f"({covered.verified} of {covered.shards})"
    )
    for count, words in (
        (covered.older, "longer ago"),
        (covered.never, "never"),
        (covered.unsound, "with findings"),
    ):
        if count:
            yield f"{count} {words}"
    if covered.oldest:
        yield f"oldest {covered.oldest}"


def _where(shards: tuple[int, ...]) -> str:
    return f", in shards {_numbers(shards)}; hsstore inspect --shard says why" if shards else ""


def _numbers(shards: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, shards[:SHOWN]))
    return f"{shown} and {len(shards) - SHOWN} more" if len(shards) > SHOWN else shown
