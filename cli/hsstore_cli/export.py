"""``hsstore export``: a tree of files that another trainer reads, made of a store."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hsstore_cli import exit_codes, render
from hsstore_cli.extract import stopping
from hsstore_cli.options import Command, PathArgument, json_option, size_option, store_argument

if TYPE_CHECKING:
    from hsstore.interop.exporting import Export

# Those of hsstore.interop.exported_trees, which the help must not import; a test compares them.
FORMATS = ("specforge", "speculators")


@click.command(
    cls=Command,
    examples=[
        "hsstore export specforge states tree",
        "hsstore export speculators states tree --layers 2,16,29,final:pre",
    ],
    exits={
        exit_codes.OK: "the tree is complete",
        exit_codes.PROBLEMS: "the tree is there without the samples that the store lacks",
        exit_codes.STOPPED: "stopped by a signal; the same command goes on",
    },
)
@click.argument("form", metavar="FORMAT", type=click.Choice(FORMATS))
@store_argument
@click.argument("destination", metavar="DEST", type=PathArgument())
@click.option(
    "--layers",
    metavar="LIST",
    help="Only these layers of the store: auxiliary ones ascending, then the last state.  "
    "[default: all numbered ones, and the last state that the format takes]",
)
@click.option(
    "--leave-out-absent",
    is_flag=True,
    help="Go on without the samples that the store lacks; otherwise it is refused.",
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
    form: str,
    store: Path,
    destination: Path,
    layers: str | None,
    leave_out_absent: bool,
    min_free: int | None,
    as_json: bool,
) -> None:
    """Make a tree at DEST that the trainer FORMAT reads as its own, bit for bit of STORE.

    FORMAT is specforge, which takes the last state after the final norm (the layer final), or
    speculators, which takes it before (final:pre). A store that has the other one is refused:
    states are never converted.

    Everything is verified as it is read, and damage ends the export. DEST appears when all of it is
    there and durable; until then the files are in a hidden folder beside it, and the same command
    goes on there. A tree names nothing of its origin, so hsstore-export.json in it does.
    """
    # Costs torch, which the help does not need.
    from hsstore.interop.exporting import export_tree  # noqa: PLC0415
    from hsstore.model.capture import parse_layers  # noqa: PLC0415
    from hsstore.storage.store import Store  # noqa: PLC0415

    model = Store.open(store).identity.model
    with render.progress() as progress, stopping("the sample in work") as stopped:
        done = export_tree(
            form,
            store,
            destination,
            layers=None if layers is None else parse_layers(layers, model.num_layers),
            absent="exclude" if leave_out_absent else "raise",
            min_free_bytes=min_free,
            progress=progress,
            stop=stopped,
        )
    if as_json:
        render.emit_json(_facts(done))
    else:
        render.show(*_lines(done))
    ctx.exit(exit_codes.PROBLEMS if done.excluded else exit_codes.OK)


def _facts(done: "Export") -> dict[str, Any]:
    return {
        "type": "summary",
        "tree": str(done.root),
        "format": done.form,
        "layers": list(done.layers),
        "samples": done.samples,
        "samples_before": done.before,
        "samples_left_out": done.excluded,
        "bytes_written": done.bytes_written,
    }


def _lines(done: "Export") -> Iterator[str]:
    before = f", {done.before} of them by an earlier run" if done.before else ""
    layers = ",".join(map(str, done.layers))
    yield (
        f"{done.root}: {render.counted(done.samples, 'sample')} for {done.form}{before}; "
        f"layers {layers}; {render.size(done.bytes_written)} written"
    )
    if done.excluded:
        yield f"left out, for the store lacks them: {render.counted(done.excluded, 'sample')}"
