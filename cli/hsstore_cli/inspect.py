"""``hsstore inspect``: what is in a store, a shard or a sample."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from hsstore_cli import exit_codes, render
from hsstore_cli.options import Command, json_option, store_argument


@click.command(
    cls=Command,
    examples=[
        "hsstore inspect states",
        "hsstore inspect states --shard 3",
        "hsstore inspect states --sample conversation-17 --json",
    ],
    exits={exit_codes.OK: "shown", exit_codes.FAILED: "no such store, shard or sample"},
)
@store_argument
@click.option("--shard", type=click.IntRange(min=0), help="Show this shard.")
@click.option("--sample", metavar="ID", help="Show this sample: its id, or # and its number.")
@json_option
def command(store: Path, shard: int | None, sample: str | None, *, as_json: bool) -> None:
    """Show what STORE is, or where a shard or a sample of it lies and what vouches for it.

    Paths are relative to STORE; byte ranges are [first, end). Nothing is verified: that is
    hsstore fsck.
    """
    # Reading a store costs numpy, which the help does not need.
    from hsstore.storage import description  # noqa: PLC0415
    from hsstore.storage.store import Store  # noqa: PLC0415

    if shard is not None and sample is not None:
        raise click.UsageError("give --shard or --sample, not both")
    opened = Store.open(store)
    if sample is not None:
        described = description.describe_sample(opened, sample)
    elif shard is not None:
        described = description.describe_shard(opened, shard)
    else:
        described = description.describe_store(opened)
    if as_json:
        render.emit_json(described)
    else:
        render.show(*outline(described))


def outline(value: Mapping[str, Any], depth: int = 0) -> Iterator[str]:
    """A JSON object as indented lines; its one-level lists of objects as one line an item.

    A list of texts, which may be long, has a line for each, also inside such an item.
    """
    margin = "  " * depth
    for name, member in value.items():
        if isinstance(member, Mapping):
            yield f"{margin}{name}:"
            yield from outline(member, depth + 1)
        elif isinstance(member, list) and member and isinstance(member[0], Mapping):
            yield f"{margin}{name}:"
            for item in member:
                yield from _item(item, margin)
        elif _are_texts(member):
            yield f"{margin}{name}:"
            yield from (f"{margin}  - {text}" for text in member)
        else:
            yield f"{margin}{name}: {_flat(member)}"


def _item(item: Mapping[str, Any], margin: str) -> Iterator[str]:
    texts = {name: member for name, member in item.items() if _are_texts(member)}
    yield f"{margin}  - {_flat({n: m for n, m in item.items() if n not in texts})}"
    for name, member in texts.items():
        yield f"{margin}    {name}:"
        yield from (f"{margin}      - {text}" for text in member)


def _are_texts(member: object) -> bool:
    return isinstance(member, list) and bool(member) and all(isinstance(m, str) for m in member)


def _flat(value: object) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_flat(member)}" for name, member in value.items())
    if isinstance(value, list):
        return "[" + ", ".join(map(_flat, value)) + "]"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)
