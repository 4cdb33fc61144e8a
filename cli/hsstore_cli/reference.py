"""Writes docs/cli.md from the commands themselves: ``python -m hsstore_cli.reference FILE``."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from hsstore_cli.main import COMMANDS, cli
from hsstore_cli.options import Command

HEAD = """\
# The commands

This page is written by `make docs` from the commands; change their help instead.

People read stderr or a terminal; with `--json`, stdout carries JSON and nothing else. An error is
one line on stderr: what, where, and what to do next; `hsstore --debug COMMAND` shows the traceback
too. `hsstore --version` prints the version.

A command is a pair of processes: one works, the other waits for it and never touches a store. When
the storage has not answered one call of the work for 60 seconds, the waiting one says so in a line
(which call, which file, where in the kernel it waits), kills the work, does not wait for it, and
exits with 75. `HSSTORE_STALL_SECONDS` in the environment sets another limit, at least 1; 0 means to
wait for ever. What was seen of the stall is in `$XDG_STATE_HOME/hsstore/stalled-*.json`
(`~/.local/state/hsstore`, where that is not set).
"""


def reference() -> str:
    """The whole page, in Markdown."""
    context = click.Context(cli, info_name="hsstore")
    pages = []
    for name in COMMANDS:
        command = cli.get_command(context, name)
        if not isinstance(command, Command):
            raise TypeError(f"the command of {name!r} is no hsstore_cli.options.Command")
        within = click.Context(command, parent=context, info_name=name)
        pages.append("\n".join(_section(command, within)))
    return "\n".join([HEAD, *pages])


def _section(command: Command, context: click.Context) -> Iterator[str]:
    usage = " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield from (f"## {context.info_name}", "", "```", usage, "```", "")
    yield from (_paragraphs(command.help or ""), "")
    for parameter in command.params:
        record = parameter.get_help_record(context)
        if record is not None and record[1]:
            yield f"- `{record[0]}`: {record[1]}"
    yield from ("", "Example:" if len(command.examples) == 1 else "Examples:", "")
    yield from ("```sh", *command.examples, "```", "", "| exit code | means |", "|---|---|")
    yield from (f"| {code} | {meaning} |" for code, meaning in command.exits.items())
    yield ""


def _paragraphs(text: str) -> str:
    """The help text without click's marks: backspace keeps line breaks, form feed ends it."""
    return inspect.cleandoc(text.partition("\f")[0]).replace("\b\n", "").strip()


def main() -> None:
    """Write the page to the file named on the command line."""
    Path(sys.argv[1]).write_text(reference(), encoding="utf-8")


if __name__ == "__main__":
    main()
