import click
import pytest

from hsstore_cli.options import Command, max_duration_option, shards_option


@pytest.mark.parametrize(
    ("typed", "shards"),
    [([], None), (["--shards", "3"], range(3, 4)), (["--shards", "3-7"], range(3, 8))],
)
def test_shards(typed: list[str], shards: range | None) -> None:
    command = click.command(shards_option(click.pass_context(lambda _, shards: shards)))
    assert command.main(typed, standalone_mode=False) == shards


@pytest.mark.parametrize("typed", ["", "x", "-1", "3-", "7-3", "1-2-3", "²"])
def test_no_shards(typed: str) -> None:
    command = click.command(shards_option(lambda shards: shards))
    with pytest.raises(click.BadParameter, match=r"no shard number|empty range"):
        command.main(["--shards", typed], standalone_mode=False)


@pytest.mark.parametrize("typed", ["nan", "inf"])
def test_no_duration(typed: str) -> None:
    command = click.command(max_duration_option(lambda max_duration: max_duration))
    with pytest.raises(click.BadParameter, match="is no finite number"):
        command.main(["--max-duration", typed], standalone_mode=False)


def test_help_ends_with_examples_and_exit_codes() -> None:
    command = Command("x", examples=["hsstore x A", "hsstore x B"], exits={4: "it does not fit"})
    tail = command.get_help(click.Context(command, info_name="x")).partition("Examples:")[2]
    assert tail.split("\n")[1:3] == ["  hsstore x A", "  hsstore x B"]
    assert [line.split()[0] for line in tail.partition("Exit codes:\n")[2].splitlines()] == [
        "2", "4", "8", "32", "75",
    ]  # fmt: skip
