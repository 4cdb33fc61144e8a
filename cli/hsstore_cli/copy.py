"""``hsstore copy``: a store at another place, verified; or a new one of a part of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hsstore.model import commands
from hsstore.model.capture import CODECS
from hsstore_cli import render
from hsstore_cli.exit_codes import FAILED, OK, PROBLEMS
from hsstore_cli.extract import stopping
from hsstore_cli.findings import finding_lines, ranges
from hsstore_cli.options import Command, PathArgument, json_option, size_option, store_argument

if TYPE_CHECKING:
    from hsstore.integrity.copying.result import CopyResult
    from hsstore.storage.store import Store


@click.command(
    cls=Command,
    examples=[
        "hsstore copy /old/states /new/states",
        "hsstore copy states small --layers 31,final --samples 0-9999",
        "hsstore copy states packed --codec blosc-zstd",
    ],
    exits={
        OK: "all that the source has is at the destination",
        PROBLEMS: "something was left out, for the source is damaged there, or the destination "
        "holds something else",
        FAILED: "failed, or another writer holds the shards that are left",
    },
)
@store_argument
@click.argument("destination", metavar="DEST", type=PathArgument())
@click.option("--layers", metavar="LIST", help="Only these layers of the store, in this order.")
@click.option(
    "--samples",
    multiple=True,
    metavar="WHICH",
    help="Only these samples: a number, a range A-B of numbers with both ends, @FILE with a key on "
    "each line, or a key. May be given several times; the order stays that of the store.",
)
@click.option(
    "--codec", type=click.Choice(CODECS), help="How chunks are compressed.  [default: as they are]"
)
@size_option(
    "--min-free",
    "Leave so much of the destination's disk free, 10GB or 10GiB say.  [default: 1 % of it, at "
    "most 1 GiB]",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    store: Path,
    destination: Path,
    layers: str | None,
    samples: tuple[str, ...],
    codec: str | None,
    min_free: int | None,
    as_json: bool,
) -> None:
    """Copy STORE to DEST, or go on where an earlier copy ended.

    Every chunk is verified while it is read, and again, past the page cache, once it is written; a
    shard appears at DEST when all of it is proven. Holes stay holes. STORE is never written to, and
    may be filled meanwhile: copy again for what came since. What is damaged in STORE is named and
    left out.

    The whole of a store is copied as the same store: a replica, for `hsstore repair --from`. With
    --layers, --samples or --codec it is a new one, whose samples have the same content digests
    where all layers stay, and name those that they were cut from where not.

    With --json, findings about STORE are JSON lines, and the last line is a summary.
    """
    # Reading a store costs numpy, which the help does not need.
    from hsstore.integrity.copying.copy import copy_store  # noqa: PLC0415
    from hsstore.storage.store import Store  # noqa: PLC0415

    opened = Store.open(store)
    with render.progress() as progress, stopping("the chunk in work") as stopped:
        result = copy_store(
            opened,
            destination,
            layers=layers,
            samples=samples,
            codec=codec,
            min_free_bytes=min_free,
            progress=progress,
            stop=stopped,
        )
    if as_json:
        for finding in result.findings:
            render.emit_json(finding.to_json())
        render.emit_json(result.to_json())
    else:
        render.show(*_lines(opened, destination, result))
    ctx.exit(_code(result))


def _code(result: "CopyResult") -> int:
    if result.held:
        return FAILED
    return OK if result.complete else PROBLEMS


def _lines(store: "Store", destination: Path, result: "CopyResult") -> Iterator[str]:
    for finding in result.findings:
        yield from finding_lines(finding)
    yield from result.notes
    yield f"{destination}: {_account(result)}"
    for name in result.left_out:
        yield f"left out, for it is or was not whole in {store.root}: {name}"
    yield from _advice(store, destination, result)


def _account(result: "CopyResult") -> str:
    kind = "the same store" if result.same_store else f"a new store, {result.uuid}"
    counts = {
        "copied": result.copied,
        "replaced": result.replaced,
        "there before": result.before,
        "not committed at the source": len(result.missing),
        "left out": len(result.damaged),
        "other than at the source": len(result.differing),
        "held by another writer": len(result.held),
    }
    listed = ", ".join(f"{count} {words}" for words, count in counts.items() if count)
    return (
        f"{kind}; of {result.shards} shards {listed or 'none copied'}; "
        f"{render.size(result.bytes_copied)} copied and verified"
    )


def _advice(store: "Store", destination: Path, result: "CopyResult") -> Iterator[str]:
    """What to run next."""
    if result.before:
        again = commands.hsstore("fsck", destination)
        yield f"shards that were there before were not read again; that is for: {again}"
    if result.damaged:
        choice = ", one of" if result.same_store else ""
        yield f"left out: shards {ranges(result.damaged)}. To complete the copy{choice}:"
        source = store.source_words()
        yield f"  {commands.repair(store.root, source=source)}   # then the same copy again"
        if result.same_store:
            yield f"  {commands.repair(destination, '--from', store.root, source=source)}"
    elif result.same_store and result.left_out:
        again = commands.repair(destination, source=())
        yield f"what follows from the rest is written again by: {again}"
    if result.differing:
        yield (
            f"shards {ranges(result.differing)} of the copy are others than at the source, or "
            f"damaged, and were left as they are: {commands.hsstore('fsck', destination)}"
        )
    if result.held:
        yield (
            f"shards {ranges(result.held)} are held by another writer; run the same command again "
            "when it is done"
        )
