"""``hsstore create``: an empty store for a tokenised dataset."""

from pathlib import Path

import click

from hsstore.model import commands
from hsstore.model.capture import CONVENTIONS, ITEMSIZE
from hsstore.storage.create import create
from hsstore.storage.store import Store
from hsstore_cli import exit_codes, render
from hsstore_cli.options import Command, codec_option, json_option, store_argument


@click.command(
    cls=Command,
    examples=[
        "hsstore create STORE --dataset data.jsonl --model MODEL --layers 3,31,59,final",
        "hsstore create STORE --dataset data.jsonl --model config.json --layers 1,final",
    ],
    exits={exit_codes.OK: "the store is there, whole"},
)
@store_argument
@click.option(
    "--dataset",
    required=True,
    type=click.Path(path_type=Path),
    help="JSON lines: input_ids, and optionally loss_mask and id (else the sample's number).",
)
@click.option(
    "--model",
    required=True,
    type=click.Path(path_type=Path),
    help="A model folder, its config.json, or a GGUF file; nothing of it is loaded.",
)
@click.option(
    "--layers",
    required=True,
    metavar="LIST",
    help="k: after k blocks, 0 being the embedding; 'final': after the final norm; 'final:pre': "
    "before it.",
)
@click.option(
    "--layer-convention",
    type=click.Choice(CONVENTIONS),
    help="Whose layer numbers --layers lists; converted to blocks passed.",
)
@click.option(
    "--dtype",
    type=click.Choice(list(ITEMSIZE)),
    help="How every value is stored.  [default: the model's own]",
)
@codec_option
@click.option(
    "--revision",
    help="The model's revision. A source in a hub cache knows its own, and must agree; others "
    "cannot tell.  [default: the commit in the path of a hub cache]",
)
@click.option(
    "--chunk-rows",
    type=click.IntRange(min=1),
    help="Tokens of a chunk.  [default: a power of two up to 4 MiB]",
)
@click.option(
    "--shard-rows",
    type=click.IntRange(min=1),
    help="Tokens of a shard.  [default: a power of two up to 2 GiB, more for a longer sample]",
)
@json_option
def command(
    *,
    store: Path,
    dataset: Path,
    model: Path,
    layers: str,
    layer_convention: str | None,
    dtype: str | None,
    codec: str,
    revision: str | None,
    chunk_rows: int | None,
    shard_rows: int | None,
    as_json: bool,
) -> None:
    """Make an empty store for a tokenised dataset.

    STORE must not exist yet, or be an empty folder. It holds the dataset's token ids and loss
    masks from then on, so nothing later needs the dataset. Anything malformed is refused with
    its file and line, and leaves nothing behind.
    """
    with render.progress() as progress:
        made = create(
            store,
            dataset,
            model,
            layers,
            dtype,
            codec=codec,
            revision=revision,
            chunk_rows=chunk_rows,
            shard_rows=shard_rows,
            layer_convention=layer_convention,
            progress=progress,
        )
    if as_json:
        render.emit_json(_facts(made))
    else:
        _show(made, model)


def _facts(store: Store) -> dict[str, object]:
    identity, plan = store.identity, store.plan
    return {
        "store": str(store.root),
        "uuid": identity.uuid,
        "model": identity.model.id,
        "layers": list(identity.capture.layers),
        "dtype": identity.capture.dtype,
        "codec": identity.codec,
        "samples": plan.samples,
        "tokens": plan.tokens,
        "shards": plan.shards,
        "chunk_rows": identity.chunk_rows,
        "shard_rows": identity.shard_rows,
        "payload_bytes": plan.tokens * identity.geometry.row_bytes,
    }


def _show(store: Store, model: Path) -> None:
    identity, plan = store.identity, store.plan
    capture = identity.capture
    payload = render.size(plan.tokens * identity.geometry.row_bytes)
    click.echo(
        f"{store.root}: an empty store (samples: {plan.samples}, tokens: {plan.tokens}, "
        f"shards: {plan.shards} of {identity.shard_rows} rows, {identity.chunk_rows} a chunk)"
    )
    click.echo(
        f"{identity.model.id}, layers {capture.layers_text()} as {capture.dtype}: {payload} of "
        f"hidden states, codec {identity.codec}"
    )
    place = model.parent if model.suffix == ".json" else model
    source = ("--source", f"transformers:{place}")
    click.echo(f"fill it: {commands.extract(store.root, source=source)}")
