"""``hsstore demo``: the whole path on this machine, every command shown as one would type it."""

import contextlib
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click

from hsstore.errors import HsstoreError, StoreExists
from hsstore_cli import exit_codes
from hsstore_cli.options import Command

SAMPLES = 64
SHARD_ROWS = 16384  # two shards, so that it shows how one of them is replaced
LAYERS = "1,2,3,final"
EPOCHS = 8
FALLEN = 0.9
FULL_BAR = 40


@click.command(
    cls=Command,
    examples=["hsstore demo", "hsstore demo /tmp/hsstore-demo"],
    exits={exit_codes.OK: "every step did what it should"},
)
@click.argument("folder", required=False, type=click.Path(path_type=Path))
def command(folder: Path | None) -> None:
    """Walk the whole path on a small model.

    Builds a small model and a small dataset, fills a store, flips one bit of it, finds and mends
    that, and trains a drafter from it. What it makes is kept in FOLDER, which must be new or
    empty; without FOLDER it is removed at the end.
    """
    with _folder(folder) as place:
        _walk(place)
    if folder is not None:
        click.echo(f"\nAll of it is in {folder}.")


@contextlib.contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="hsstore-demo-") as temporary:
            yield Path(temporary)
        return
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise StoreExists("not an empty folder", place=str(folder), remedy="name a new one")
    folder.mkdir(parents=True, exist_ok=True)
    yield folder


def _walk(folder: Path) -> None:
    # Costs seconds to import, and is wanted only here.
    from hsstore.demo.corpus import write_dataset  # noqa: PLC0415
    from hsstore.demo.model import build_model  # noqa: PLC0415

    model, dataset, store = folder / "model", folder / "dataset.jsonl", folder / "store"
    _say("A small Llama with seeded weights, and passages of Python's own documentation as tokens")
    build_model(model)
    tokens = write_dataset(dataset, SAMPLES)
    click.echo(f"{SAMPLES} samples, {tokens} tokens")

    capture = ["--model", model, "--layers", LAYERS, "--shard-rows", SHARD_ROWS]
    source = ["--source", f"transformers:{model}"]
    _say("What will it take, and does it fit?")
    _run("plan", dataset, *capture, "--dest", folder)
    _say("An empty store: token ids and loss masks are in it from now on")
    _run("create", store, "--dataset", dataset, *capture)
    _say("Fill it")
    _run("extract", store, *source)
    _run("status", store)
    _run("fsck", store)

    _say("One bit rots away")
    click.echo(_flip_one_bit(store))
    _run("fsck", store, expect=exit_codes.PROBLEMS)
    _say("Only the damaged sample is computed again")
    _run("repair", store, *source, "--apply", expect=exit_codes.CORRECTED)
    _run("fsck", store)

    _say("Train a drafter from it: auxiliary states in, the next token's final state out")
    _train(store)


def _say(text: str) -> None:
    click.secho(f"\n# {text}", bold=True)


def _run(name: str, *arguments: object, expect: int = exit_codes.OK) -> None:
    from hsstore_cli.main import main  # noqa: PLC0415 - main imports this module by name

    typed = [name, *map(str, arguments)]
    click.secho(f"\n$ hsstore {shlex.join(typed)}", fg="cyan")
    code = main(typed)
    if code != expect:
        raise HsstoreError(f"'hsstore {name}' ended with {code}, not {expect}")
    if code:
        click.echo(f"(exit code {code})")


def _flip_one_bit(store: Path) -> str:
    path = next(iter(sorted(store.glob("states.zarr/hidden_states/c/*/0/0"))))
    with path.open("r+b") as file:
        offset = path.stat().st_size // 3
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 0b100]))
    return f"flipped bit 2 of byte {offset} in {path.relative_to(store)}"


def _train(store: Path) -> None:
    from hsstore.demo.drafter import train  # noqa: PLC0415 - imports torch
    from hsstore.training.dataset import HiddenStateDataset  # noqa: PLC0415 - imports torch

    dataset = HiddenStateDataset(store, verify="first")
    losses: list[float] = []
    for epoch, loss in enumerate(train(dataset, EPOCHS), 1):
        losses.append(loss)
        click.echo(f"epoch {epoch}  loss {loss:.4f}  {'#' * round(FULL_BAR * loss / losses[0])}")
    if losses[-1] > FALLEN * losses[0]:
        raise HsstoreError(f"the loss did not fall: {losses[0]:.4f} to {losses[-1]:.4f}")
    click.echo(f"the loss fell from {losses[0]:.4f} to {losses[-1]:.4f}")
