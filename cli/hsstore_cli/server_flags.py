"""``hsstore server-flags``: the launch line of the SGLang server that a store needs."""

from pathlib import Path

import click

from hsstore_cli import exit_codes, render
from hsstore_cli.options import Command, json_option, store_argument

DEVICES = ("cuda", "cpu")


@click.command(
    cls=Command,
    examples=[
        "hsstore server-flags states --spool /dev/shm/spool",
        "hsstore server-flags states --release 0.5.23 --model-path models/Qwen3-8B",
    ],
    exits={
        exit_codes.OK: "the line is printed",
        exit_codes.FAILED: "no such store, or SGLang cannot give its layers so",
    },
)
@store_argument
@click.option(
    "--spool",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where the capture plugin writes, as the server sees it. Without: states by JSON, which "
    "carries the final state alone or numbered layers alone.",
)
@click.option(
    "--release",
    metavar="X.Y.Z",
    default="0.5.23",
    show_default=True,
    help="SGLang's release.",
)
@click.option(
    "--model-path",
    metavar="PATH",
    help="The model, as the server sees it.  [default: the store's hub id]",
)
@click.option(
    "--device",
    type=click.Choice(DEVICES),
    default="cuda",
    show_default=True,
    help="What the server computes on.",
)
@json_option
def command(
    store: Path,
    spool: Path | None,
    release: str,
    model_path: str | None,
    device: str,
    *,
    as_json: bool,
) -> None:
    """Print the launch line of an SGLang server that can fill STORE.

    The line alone goes to stdout, ready to paste; what to know about it to stderr.
    """
    # Reading a store costs numpy, which the help does not need.
    from hsstore.extraction.sglang.launch import launch  # noqa: PLC0415
    from hsstore.storage.store import Store  # noqa: PLC0415

    identity = Store.open(store).identity
    found = launch(identity, release, spool=spool, model_path=model_path, device=device)
    if as_json:
        render.emit_json(
            {
                "environment": found.environment,
                "arguments": list(found.arguments),
                "command": found.shell(),
                "remarks": list(found.remarks),
            }
        )
        return
    for remark in found.remarks:
        click.echo(f"# {remark}", err=True)
    click.echo(found.shell())
