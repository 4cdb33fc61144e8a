"""The reference of the commands says what the commands say."""

from pathlib import Path

import click
import pytest

from hsstore_cli.main import COMMANDS, cli
from hsstore_cli.options import Command
from hsstore_cli.reference import reference

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"


def test_reference_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == reference(), "run: make docs"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_documented(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, Command)
    assert command.help
    assert f"\n## {name}\n" in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_an_example_and_its_exit_codes(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, Command)
    assert command.examples
    assert all(example.startswith(f"hsstore {name}") for example in command.examples)
    assert {0, 2, 8, 32} <= command.exits.keys()
    assert command.exits.keys() <= {0, 1, 2, 4, 8, 32, 75}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert isinstance(command, Command)
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    assert [option.name for option in options if not option.help and not option.hidden] == []
