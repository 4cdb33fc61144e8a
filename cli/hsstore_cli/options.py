"""The options that commands share, and the kind of command that they all are."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from hsstore.errors import MalformedInput
from hsstore.model.assessment import parse_size
from hsstore.model.capture import CODECS
from hsstore_cli.exit_codes import ANY_COMMAND

FC = TypeVar("FC", bound=Callable[..., Any] | click.Command)


class Command(click.Command):
    """A command whose help ends with examples and the meaning of its exit codes.

    ``exits`` says what the codes of this command mean; those of any command are added.
    """

    def __init__(
        self,
        *args: Any,  # noqa: ANN401 - whatever click.Command takes
        examples: Sequence[str],
        exits: Mapping[int, str],
        **options: Any,  # noqa: ANN401 - whatever click.Command takes
    ) -> None:
        super().__init__(*args, **options)
        self.examples = tuple(examples)
        self.exits = dict(sorted((ANY_COMMAND | dict(exits)).items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples and exit codes below the options."""
        super().format_epilog(ctx, formatter)
        with formatter.section("Examples" if len(self.examples) > 1 else "Example"):
            for line in self.examples:
                formatter.write(f"{'':{formatter.current_indent}}{line}\n")
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in self.exits.items()])


def _shard_range(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    typed: str | None,
) -> range | None:
    """``3`` or ``3-7``, both ends included, as a range."""
    if typed is None:
        return None
    first, dash, last = typed.partition("-")
    numbers = (first, last if dash else first)
    if not all(number.isascii() and number.isdecimal() for number in numbers):
        raise click.BadParameter(f"{typed!r} is no shard number and no range like 3-7")
    shards = range(int(numbers[0]), int(numbers[1]) + 1)
    if not shards:
        raise click.BadParameter(f"{typed!r} is an empty range")
    return shards


def _size(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    typed: str | None,
) -> int | None:
    try:
        return None if typed is None else parse_size(typed)
    except MalformedInput as error:
        raise click.BadParameter(str(error)) from None


def size_option(name: str, text: str) -> Callable[[FC], FC]:
    """An option that takes a number of bytes, as ``10GB`` or ``10GiB``."""
    return click.option(name, metavar="SIZE", callback=_size, help=text)


class PathArgument(click.Path):
    """A path that is typed without an option before it.

    One that begins with a dash is made absolute: as ``./-x`` it is no option, but a Path drops the
    ``./``, and a command that is printed with it could not be typed.
    """

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def convert(
        self,
        value: Any,  # noqa: ANN401 - click's signature
        param: click.Parameter | None,
        ctx: click.Context | None,
    ) -> Path:
        """The path."""
        path = Path(os.fsdecode(super().convert(value, param, ctx)))
        return Path.cwd() / path if str(path).startswith("-") else path


def finite(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    typed: float | None,
) -> float | None:
    """The number that was typed; click.BadParameter for nan and inf, which every range takes."""
    if typed is not None and not math.isfinite(typed):
        raise click.BadParameter(f"{typed} is no finite number")
    return typed


store_argument = click.argument("store", type=PathArgument())

json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON on stdout and nothing else."
)

codec_option = click.option(
    "--codec",
    type=click.Choice(CODECS),
    default="none",
    show_default=True,
    help="How chunks are compressed.",
)

shards_option = click.option(
    "--shards",
    metavar="A-B",
    callback=_shard_range,
    help="Only these shards, both ends included.",
)

max_duration_option = click.option(
    "--max-duration",
    type=click.FloatRange(min=0, min_open=True),
    callback=finite,
    metavar="SECONDS",
    help="Stop in good order after this time.",
)
