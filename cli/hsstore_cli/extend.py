"""``hsstore extend``: a store grows by another dataset."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hsstore.model import commands
from hsstore_cli import exit_codes, render
from hsstore_cli.options import Command, json_option, store_argument

if TYPE_CHECKING:
    from hsstore.storage.extend import Duplicate, Extension

SHOWN = 5


@click.command(
    cls=Command,
    examples=[
        "hsstore extend STORE --dataset more.jsonl",
        "hsstore extend STORE --dataset more.jsonl --skip-duplicates --json",
    ],
    exits={
        exit_codes.OK: "every sample of the dataset is in the store, or was left out as asked",
        exit_codes.FAILED: "failed, or another process is growing the store; one line says which",
    },
)
@store_argument
@click.option(
    "--dataset",
    required=True,
    type=click.Path(path_type=Path),
    help="JSON lines as for create; ids must be new to the store (else the sample's number in it).",
)
@click.option(
    "--skip-duplicates",
    is_flag=True,
    help="Leave out samples whose token ids are in the store already, or on an earlier line.",
)
@json_option
def command(*, store: Path, dataset: Path, skip_duplicates: bool, as_json: bool) -> None:
    """Add the samples of another dataset to STORE, behind those that it has.

    Nothing that is there changes, and whoever reads or fills the store may go on. Run again after
    any interruption, the same command finishes what was decided and adds nothing twice. Samples
    with the token ids of another are named, and added like any unless told otherwise.
    """
    # Reading a store costs numpy, which the help does not need.
    from hsstore.storage.extend import extend  # noqa: PLC0415

    with render.progress() as progress:
        done = extend(store, dataset, skip_duplicates=skip_duplicates, progress=progress)
    if as_json:
        render.emit_json(_facts(done))
        return
    for line in _lines(done):
        click.echo(line)


def _facts(done: "Extension") -> dict[str, Any]:
    plan, geometry = done.store.plan, done.store.identity.geometry
    return {
        "store": str(done.store.root),
        "generation": plan.generation,
        "samples_added": done.samples,
        "tokens_added": done.tokens,
        "shards_added": done.shards,
        "payload_bytes_added": done.tokens * geometry.row_bytes,
        "duplicates_skipped": done.skipped,
        "duplicates": [_fact(duplicate) for duplicate in done.duplicates],
        "repeated": done.repeated,
        "finished": done.finished,
        "samples": plan.samples,
        "tokens": plan.tokens,
        "shards": plan.shards,
    }


def _fact(duplicate: "Duplicate") -> dict[str, Any]:
    return {
        "place": duplicate.place,
        "id": duplicate.key,
        "equals": duplicate.equals,
        "in_store": duplicate.in_store,
    }


def _lines(done: "Extension") -> Iterator[str]:
    store = done.store
    if done.finished:
        yield "an earlier extension was decided but not all in place: it is now"
    yield from _duplicates(done)
    if done.repeated:
        yield f"{store.root}: unchanged; it was extended by these samples before"
        return
    if not done.samples:
        yield f"{store.root}: unchanged; nothing of the dataset is new"
        return
    payload = render.size(done.tokens * store.identity.geometry.row_bytes)
    yield (
        f"{store.root}: grew by samples: {done.samples}, tokens: {done.tokens}, "
        f"shards: {done.shards}; {payload} of hidden states to come"
    )
    yield (
        f"it has now samples: {store.plan.samples}, tokens: {store.plan.tokens}, "
        f"shards: {store.plan.shards}"
    )
    yield f"fill it: {commands.extract(store.root, source=store.source_words())}"


def _duplicates(done: "Extension") -> Iterator[str]:
    if not done.duplicates:
        return
    kept = "left out" if done.skipped else "added all the same; --skip-duplicates leaves them out"
    yield f"samples with the token ids of another: {len(done.duplicates)}, {kept}"
    for duplicate in done.duplicates[:SHOWN]:
        where = "in the store" if duplicate.in_store else "on an earlier line"
        name = "" if duplicate.key is None else f" {duplicate.key!r}"
        yield f"  {duplicate.place}:{name} equals {duplicate.equals!r} {where}"
    more = len(done.duplicates) - SHOWN
    if more > 0:
        yield f"  and {more} more; --json lists all"
