"""``hsstore import``: a tree that another tool wrote, moved into a store."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hsstore.model import commands
from hsstore.model.capture import CONVENTIONS
from hsstore_cli import exit_codes, render
from hsstore_cli.extract import space_policy, stopping, summary_json, watching
from hsstore_cli.options import (
    Command,
    PathArgument,
    codec_option,
    json_option,
    max_duration_option,
    size_option,
    store_argument,
)

if TYPE_CHECKING:
    from hsstore.interop.importing import Import, LeftOut

# Those of hsstore.interop.formats, which the help must not import; a test compares them.
FORMATS = ("specforge", "speculators", "modelopt")
SPECFORGE = "--model MODEL --layers 1,13,24 --layer-convention specforge"


@click.command(
    cls=Command,
    examples=[
        f"hsstore import specforge TREE STORE {SPECFORGE} --norm post",
        f"hsstore import specforge TREE STORE {SPECFORGE} --norm post --dataset data.jsonl",
        "hsstore import speculators TREE STORE --model MODEL --layers final:pre",
    ],
    exits={
        exit_codes.OK: "every sample of the store is committed with the states of its file",
        exit_codes.PROBLEMS: "files were left out, or samples are absent: each is named, with why",
        exit_codes.FAILED: "failed, or another writer holds the shards that are left",
        exit_codes.STOPPED: "stopped by a signal or --max-duration; the same command goes on",
    },
)
@click.argument("form", metavar="FORMAT", type=click.Choice(FORMATS))
@click.argument("tree", metavar="DIR", type=PathArgument())
@store_argument
@click.option(
    "--model",
    required=True,
    type=click.Path(path_type=Path),
    help="The model whose states these are: its folder, config.json or GGUF file. The weight of "
    "its final norm, where it is there, proves or refutes what is said of the norm.",
)
@click.option(
    "--layers",
    required=True,
    metavar="LIST",
    help="Which layers the files hold, in their order; 'final' or 'final:pre' for the last state.",
)
@click.option(
    "--layer-convention",
    type=click.Choice(CONVENTIONS),
    help="Whose layer numbers --layers lists. Demanded: 13 of specforge is 14 of vllm.",
)
@click.option(
    "--norm",
    type=click.Choice(["post", "pre"]),
    help="Whether the last state is after the final norm or before it. Demanded unless --layers "
    "says it or the model's weights prove it.",
)
@click.option(
    "--dataset",
    type=click.Path(path_type=Path),
    help="JSON lines, as for create: the samples of the store, each found by its token ids. "
    "Without: those of the tree, named after its files.",
)
@click.option(
    "--trim-padding",
    is_flag=True,
    help="Cut off what files hold behind their sample. Needs --dataset, which says where it ends.",
)
@click.option(
    "--leave-out-broken",
    is_flag=True,
    help="Go on without files that cannot be read, and without broken ones where no dataset says "
    "what they should hold. Each is named.",
)
@codec_option
@click.option("--revision", help="The model's revision, as for create.")
@click.option("--chunk-rows", type=click.IntRange(min=1), help="As for create.")
@click.option("--shard-rows", type=click.IntRange(min=1), help="As for create.")
@max_duration_option
@size_option(
    "--min-free",
    "Leave so much of the disk free, 10GB or 10GiB say: before it is less, pause until there "
    "is more.  [default: 1 % of the disk, at most 1 GiB]",
)
@click.option(
    "--log-json",
    metavar="FILE",
    help="Append what happens to FILE, a JSON object a line; - is stderr, in place of progress.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    form: str,
    tree: Path,
    store: Path,
    model: Path,
    layers: str,
    layer_convention: str | None,
    norm: str | None,
    dataset: Path | None,
    codec: str,
    revision: str | None,
    chunk_rows: int | None,
    shard_rows: int | None,
    max_duration: float | None,
    min_free: int | None,
    log_json: str | None,
    trim_padding: bool,
    leave_out_broken: bool,
    as_json: bool,
) -> None:
    """Move the hidden states in DIR, which another tool wrote, into STORE, bit for bit.

    FORMAT is specforge (.ckpt, .ckpt.gz), speculators (also vLLM's safetensors; float8 is made
    bfloat16 as speculators does) or modelopt (.pt). DIR is only read, as data: nothing in a file is
    executed, no link in it is followed, and every checksum that its container has is checked.

    STORE is made where it does not exist. A sample whose file is damaged or missing is absent, with
    the reason. What the tree cannot say of itself is demanded, and nothing is guessed. The same
    command goes on after an interruption, gives back absent samples once their files are sound, and
    does nothing where all is done.
    """
    # Costs numpy, which the help does not need.
    from hsstore.interop.importing import Choices, Layout, Told, import_tree  # noqa: PLC0415

    deadline = time.monotonic() + max_duration if max_duration else float("inf")
    with watching(log_json) as progress, stopping() as stopped:
        done = import_tree(
            form,
            tree,
            store,
            model,
            Told(layers, layer_convention, norm),
            dataset=dataset,
            choices=Choices(trim_padding=trim_padding, leave_out_broken=leave_out_broken),
            layout=Layout(codec, revision, chunk_rows, shard_rows),
            space=space_policy(min_free, None),
            progress=progress,
            stop=lambda: stopped() or time.monotonic() >= deadline,
        )
    if as_json:
        render.emit_json(_facts(done))
    else:
        render.show(*_lines(done))
    ctx.exit(_code(done))


def _code(done: "Import") -> int:
    from hsstore.storage.status import status  # noqa: PLC0415 - numpy, as above

    if done.extraction.stopped:
        return exit_codes.STOPPED
    if _held_by_others(done):
        return exit_codes.FAILED
    found = status(done.store)
    incomplete = done.left_out or found.samples_absent or found.shards_unreadable
    return exit_codes.PROBLEMS if incomplete else exit_codes.OK


def _held_by_others(done: "Import") -> bool:
    """Whether another writer has shards that are not committed."""
    return bool(set(done.extraction.shards_claimed_by_others) - done.store.committed().keys())


def _facts(done: "Import") -> dict[str, Any]:
    return {
        "type": "summary",
        "store": str(done.store.root),
        "uuid": done.store.identity.uuid,
        "files": done.files,
        "samples": done.store.plan.samples,
        "layers": list(done.store.identity.capture.layers),
        "norm_by": done.norm_by,
        "without_file": done.without_file,
        "trimmed": done.trimmed,
        "given_back": done.given_back,
        "left_out": [*map(_left_out, done.left_out)],
        "redundant": [*map(_left_out, done.redundant)],
        "notes": done.notes,
        **summary_json(done.extraction),
    }


def _left_out(one: "LeftOut") -> dict[str, str]:
    return {"file": one.name, "kind": one.fault.kind, "detail": one.fault.detail}


def _lines(done: "Import") -> Iterator[str]:
    from hsstore.storage.status import status  # noqa: PLC0415 - numpy, as above

    store, did = done.store, done.extraction
    for one in done.left_out:
        yield f"left out: {one.name}: {one.fault}"
    for one in done.redundant:
        yield f"not needed: {one.name}: {one.fault}"
    held = len(store.identity.capture.layers)
    yield (
        f"{store.root}: {store.plan.samples} samples of {done.files} files, {held} layers "
        f"({store.identity.capture.layers_text()}, norm by: {done.norm_by})"
    )
    yield (
        f"this run: {did.samples_extracted} imported, {did.samples_resumed} resumed, "
        f"{did.samples_failed} without states, {done.trimmed} cut from their padding, "
        f"{did.shards_committed} shards committed"
    )
    if done.given_back:
        yield f"samples that were absent and have a sound file now: {done.given_back}"
    found = status(store)
    if found.shards_absent:
        why = commands.hsstore("inspect", store.root, "--shard", found.shards_absent[0])
        yield f"absent samples: {found.samples_absent}; why: {why}"
    if _held_by_others(done):
        yield "some shards are held by another writer; run the same command again when it is done"
    if did.stopped:
        yield "stopped; run the same command again to go on"
