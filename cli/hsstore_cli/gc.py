"""``hsstore gc``: shows what a store does not need, and removes it when told."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hsstore.model import commands, keys
from hsstore.model.litter import WORDS, Cleared, Litter, Sighting
from hsstore_cli import render
from hsstore_cli.exit_codes import OK, PROBLEMS
from hsstore_cli.findings import ranges
from hsstore_cli.options import Command, json_option, store_argument

if TYPE_CHECKING:
    from hsstore.storage.store import Store


@click.command(
    cls=Command,
    examples=["hsstore gc STORE", "hsstore gc STORE --apply"],
    exits={
        OK: "nothing is needless, it was only shown, or all of it was removed",
        PROBLEMS: "something needless could not be removed; its line says why",
    },
)
@store_argument
@click.option("--apply", "applying", is_flag=True, help="Remove it; without this it is only shown.")
@click.option(
    "--quarantine",
    is_flag=True,
    help="Also all that repairs and extractions have put aside in quarantine/. It may be the only "
    "copy of what was damaged: look at it first.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context, *, store: Path, applying: bool, quarantine: bool, as_json: bool
) -> None:
    """Remove what no marker, intent or live claim of STORE needs; shows it unless told to apply it.

    That is what killed or failed commands left: staging folders of shards committed since,
    manifests that nothing names, markers and manifests of replaced generations, claims of dead
    processes, temporary files, growths that were never decided, and unfinished creations beside
    the store. Samples that a journal has stay, and so does what the format does not know.

    It works on a full disk, where only what takes a claim needs a free block, and while the store
    is being extracted, repaired, extended or read: what somebody else has claimed is left alone. A
    claim of a process that cannot be seen from here counts as held until its heartbeat is 60
    seconds old, which only --apply can measure. Replacements that were decided by a process that
    is gone are finished by --apply.

    With --json, each item is a JSON line, and the last line is a summary.
    """
    from hsstore.storage.store import Store  # noqa: PLC0415 - numpy, which the help does not need

    opened = Store.open(store)
    if applying:
        ctx.exit(_apply(opened, quarantine=quarantine, as_json=as_json))
    _look(opened, quarantine=quarantine, as_json=as_json)


def _look(store: "Store", *, quarantine: bool, as_json: bool) -> None:
    from hsstore.storage.gc import needless  # noqa: PLC0415 - numpy, as above

    sight = needless(store, quarantine=quarantine)
    if as_json:
        for item in sight.items:
            render.emit_json(_line(item, removed=False, detail=None))
        render.emit_json(_summary(sight.items, [], [], sight.held, applied=False))
        return
    for item in sight.items:
        render.show(_text(item))
    for line in _left_alone(sight):
        render.show(line)
    if not sight.items:
        render.show("nothing is needless")
        return
    again = commands.hsstore("gc", store.root, *["--quarantine"] * quarantine, "--apply")
    render.show(f"{render.counted(len(sight.items), 'item')}, {_total(sight.items)}")
    render.show(f"Nothing was removed. To remove it: {again}")


def _apply(store: "Store", *, quarantine: bool, as_json: bool) -> int:
    from hsstore.storage.gc import clear  # noqa: PLC0415 - numpy, as above

    done = clear(store, quarantine=quarantine)
    if as_json:
        _emit(done)
    else:
        _show(done)
    return PROBLEMS if done.kept else OK


def _emit(done: Cleared) -> None:
    for item in done.removed:
        render.emit_json(_line(item, removed=True, detail=None))
    for item, why in done.kept:
        render.emit_json(_line(item, removed=False, detail=why))
    items = [*done.removed, *(item for item, _ in done.kept)]
    render.emit_json(_summary(items, done.removed, done.kept, done.held, applied=True))


def _show(done: Cleared) -> None:
    for item in done.removed:
        render.show(f"removed {_text(item)}")
    for item, why in done.kept:
        render.show(f"could not remove {_text(item)}", f"  {why}")
    for note in done.notes:
        render.show(note)
    for line in _held(done.held):
        render.show(line)
    if not (done.removed or done.kept):
        render.show("nothing is needless")
        return
    end = f"; {len(done.kept)} could not be removed" if done.kept else ""
    render.show(f"{render.counted(len(done.removed), 'item')} removed, {_total(done.removed)}{end}")


def _text(item: Litter) -> str:
    return f"{WORDS[item.kind]} {item.path}: {item.reason}; {render.size(item.bytes)}"


def _total(items: Iterable[Litter]) -> str:
    listed = [*items]
    inodes = sum(item.inodes for item in listed)
    freed = render.size(sum(item.bytes for item in listed))
    return f"{freed} in {inodes} {'file or folder' if inodes == 1 else 'files and folders'}"


def _left_alone(sight: Sighting) -> list[str]:
    lines = _held(sight.held)
    if sight.unfinished:
        lines.append(f"replacement decided and not finished: {_shards(sight.unfinished)}")
    return lines


def _held(held: list[int]) -> list[str]:
    shards = [number for number in held if number != keys.GROWTH]
    lines = [f"claimed by others, left alone: {_shards(shards)}"] if shards else []
    if keys.GROWTH in held:
        lines.append("the store is being extended or repaired: what belongs to that is left alone")
    return lines


def _shards(numbers: list[int]) -> str:
    return f"{'shard' if len(numbers) == 1 else 'shards'} {ranges(numbers)}"


def _line(item: Litter, *, removed: bool, detail: str | None) -> dict[str, object]:
    return {"type": "item", **item.to_json(), "removed": removed, "detail": detail}


def _summary(
    items: list[Litter],
    removed: list[Litter],
    kept: list[tuple[Litter, str]],
    held: list[int],
    *,
    applied: bool,
) -> dict[str, object]:
    return {
        "type": "summary",
        "applied": applied,
        "items": len(items),
        "bytes": sum(item.bytes for item in items),
        "inodes": sum(item.inodes for item in items),
        "removed": len(removed),
        "bytes_removed": sum(item.bytes for item in removed),
        "inodes_removed": sum(item.inodes for item in removed),
        "refused": len(kept),
        "shards_held": [number for number in held if number != keys.GROWTH],
        "growth_held": keys.GROWTH in held,
    }
