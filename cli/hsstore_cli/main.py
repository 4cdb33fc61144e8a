"""The program ``hsstore``: finds the command, runs it, and turns every error into its exit code."""

import importlib
import keyword
import os
import sys
import traceback
from collections.abc import Sequence

import click

from hsstore import __version__
from hsstore.errors import HsstoreError, Stopped, StorageFailed
from hsstore_cli import exit_codes, render

COMMANDS = {
    "plan": "Say what a run needs, against what the target has.",
    "create": "Make an empty store for a tokenised dataset.",
    "server-flags": "Print the launch line of the SGLang server that a store needs.",
    "extract": "Fill a store with hidden states.",
    "import": "Move hidden states that another tool wrote into a store.",
    "export": "Make a tree of a store that another trainer reads.",
    "extend": "Add the samples of another dataset to a store.",
    "status": "Say how far a store is.",
    "inspect": "Show what is in a store, a shard or a sample.",
    "fsck": "Check a store and name what is damaged; writes nothing.",
    "fsck-merge": "Make one verdict of the reports of many checks.",
    "repair": "Mend a store; shows what it would do unless told to apply it.",
    "copy": "Copy a store to another disk, or make another of a part of it.",
    "gc": "Show what a store has no need of, or remove it.",
    "survey": "Say what is there of a tree of loose files, and what is lost.",
    "demo": "Walk the whole path on a small model.",
}
"""Every command and its line in the help; the module of a command has its name.

Where that is a word of Python, the module has an underscore behind it.
"""


class LazyGroup(click.Group):
    """Imports the module of a command only when that command is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """The commands, in the order of a store's life."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        """The command of that name, None where there is none."""
        if cmd_name not in COMMANDS:
            return None
        word = cmd_name.replace("-", "_")
        module = importlib.import_module(f"hsstore_cli.{word}{'_' * keyword.iskeyword(word)}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - click's signature
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup)
@click.version_option(__version__, prog_name="hsstore", message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
def cli(*, debug: bool) -> None:
    """Store the hidden states of language models, prove them whole, train on them.

    A command that waits 60 seconds for one answer of the storage is given up with exit code 75;
    the environment variable HSSTORE_STALL_SECONDS sets another limit, 0 none.
    """


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``hsstore`` and return its exit code; ``arguments`` without the program's name."""
    typed = sys.argv[1:] if arguments is None else list(arguments)
    context: click.Context | None = None
    code = exit_codes.OK
    try:
        try:
            context = cli.make_context("hsstore", typed)
            with context:
                cli.invoke(context)
        except click.exceptions.Exit as end:
            code = end.exit_code
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - the outermost frame
        if context is not None and context.params["debug"]:
            traceback.print_exc()
        return report(error)
    return code


def report(error: BaseException) -> int:
    """Say what went wrong in one line on stderr, and return the exit code for it."""
    if isinstance(error, BrokenPipeError):
        _discard_stdout()
        return exit_codes.FAILED
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        error.show()
        return exit_codes.USAGE
    if isinstance(error, OSError):
        error = StorageFailed.from_os(error)
    line, code = _verdict(error)
    render.tell(f"hsstore: error: {' '.join(line.split())}")
    return code


def _verdict(error: BaseException) -> tuple[str, int]:
    match error:
        case click.UsageError():
            where = error.ctx.command_path if error.ctx else "hsstore"
            said = error.format_message().rstrip(".")
            return f"{said}; see '{where} --help'", exit_codes.USAGE
        case click.ClickException():
            return error.format_message(), exit_codes.FAILED
        case KeyboardInterrupt() | click.Abort():
            return "interrupted", exit_codes.STOPPED
        case Stopped():
            return str(error), exit_codes.STOPPED
        case HsstoreError():
            return str(error), exit_codes.FAILED
        case _:
            said = f"{type(error).__name__}: {error}"
            return f"{said}; unforeseen: 'hsstore --debug' shows where", exit_codes.FAILED


def _discard_stdout() -> None:
    """Let the interpreter's last flush fail silently: whoever read the output is gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
