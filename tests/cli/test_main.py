"""The outermost frame: every way to end has its exit code and at most one line on stderr."""

import errno
import os
import shlex
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from hsstore import __version__
from hsstore.errors import ClaimedByAnother, HsstoreError, MalformedInput, NotAStore, Stopped
from hsstore_cli.main import COMMANDS, main

Install = Callable[[Callable[[], object]], None]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a function in the place of the command ``status``."""

    def put(body: Callable[[], object]) -> None:
        module = types.ModuleType("hsstore_cli.status")
        module.command = click.command()(body)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "hsstore_cli.status", module)

    return put


def raising(error: BaseException) -> Callable[[], object]:
    def command() -> None:
        raise error

    return command


FREE_SPACE = "free space, then run the same command again"
NO_SPACE = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/store/stage/0")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (HsstoreError("broken"), 8, "broken"),
        (NotAStore("no store", place="/x", remedy="create one"), 8, "/x: no store; create one"),
        (MalformedInput("is empty", place="d.jsonl:3"), 8, "d.jsonl:3: is empty"),
        (ClaimedByAnother("shard 3 is claimed"), 8, "shard 3 is claimed"),
        (Stopped("stopped after shard 2"), 32, "stopped after shard 2"),
        (HsstoreError("two\n  lines"), 8, "two lines"),
        (NO_SPACE, 8, f"{NO_SPACE.filename}: No space left on device; {FREE_SPACE}"),
        (OSError("no number"), 8, "no number"),
        (KeyboardInterrupt(), 32, "interrupted"),
        (click.Abort(), 32, "interrupted"),
        (click.ClickException("refused"), 8, "refused"),
        (click.UsageError("give one"), 2, "give one; see 'hsstore status --help'"),
        (
            KeyError("lost"),
            8,
            "KeyError: 'lost'; unforeseen: 'hsstore --debug' shows where",
        ),
        (EOFError("torn"), 8, "EOFError: torn; unforeseen: 'hsstore --debug' shows where"),
    ],
)
def test_error_is_one_line_and_its_code(
    install: Install, capfd: pytest.CaptureFixture[str], error: BaseException, code: int, line: str
) -> None:
    install(raising(error))
    assert main(["status"]) == code
    assert capfd.readouterr() == ("", f"hsstore: error: {line}\n")


@pytest.mark.parametrize("error", [KeyError("lost"), NotAStore("no store")])
def test_debug_shows_the_traceback(
    install: Install, capfd: pytest.CaptureFixture[str], error: BaseException
) -> None:
    install(raising(error))
    assert main(["--debug", "status"]) == 8
    shown = capfd.readouterr().err
    assert "Traceback (most recent call last)" in shown
    assert shown.splitlines()[-1].startswith("hsstore: error: ")


@pytest.mark.parametrize("code", [0, 1, 4, 75])
def test_command_chooses_its_exit_code(install: Install, code: int) -> None:
    install(lambda: click.get_current_context().exit(code))
    assert main(["status"]) == code


def test_what_a_command_returns_is_no_exit_code(install: Install) -> None:
    install(lambda: 4)
    assert main(["status"]) == 0


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["statsu"], "No such command 'statsu'; see 'hsstore --help'"),
        (["status", "--bogus"], "No such option '--bogus'; see 'hsstore status --help'"),
        (["--bogus"], "No such option '--bogus'; see 'hsstore --help'"),
        (["status", "extra"], "Got unexpected extra argument (extra)"),
    ],
)
def test_wrong_usage(
    install: Install, capfd: pytest.CaptureFixture[str], arguments: list[str], line: str
) -> None:
    install(lambda: None)
    assert main(arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert line in err
    assert err.count("\n") == 1


def test_nothing_typed_is_wrong_usage_and_shows_the_help(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "Commands:" in err


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capfd.readouterr().out == f"hsstore {__version__}\n"


def test_help_lists_every_command_without_importing_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for name in COMMANDS:
        monkeypatch.setitem(sys.modules, f"hsstore_cli.{name}", None)
    assert main(["--help"]) == 0
    listed = capfd.readouterr().out.partition("Commands:\n")[2]
    assert [line.split()[0] for line in listed.splitlines()] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_loads_and_shows_help(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    out = capfd.readouterr().out
    assert out.startswith(f"Usage: hsstore {name}")
    assert "\nExample" in out
    assert "\nExit codes:\n" in out


def test_reader_that_went_away_leaves_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "hsstore_cli", "--help"],
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
            timeout=60,
        )
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (8, b"")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_streams_that_the_caller_has_closed_change_nothing(closed: str) -> None:
    for typed, code in (("--help", 0), ("status --help", 0), ("status /nowhere", 8)):
        command = f"exec {shlex.quote(sys.executable)} -m hsstore_cli {typed} {closed}"
        done = subprocess.run(
            ["/bin/sh", "-c", command], capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == code
        lines = 0 if code == 0 or "2>&-" in closed else 1
        assert len(done.stderr.splitlines()) == lines, done.stderr


def test_no_file_takes_the_place_of_a_closed_stream(tmp_path: Path) -> None:
    code = (
        "import os; from hsstore_cli import standard_streams; standard_streams.ensure(); "
        f"file = os.open({str(tmp_path / 'file')!r}, os.O_CREAT | os.O_WRONLY); "
        "print('lost'); os.write(2, b'lost'); os.write(file, bytes([file]))"
    )
    command = f"exec {shlex.quote(sys.executable)} -c {shlex.quote(code)} <&- >&- 2>&-"
    subprocess.run(["/bin/sh", "-c", command], check=True, timeout=60)
    number = (tmp_path / "file").read_bytes()
    assert len(number) == 1
    assert number[0] > 2


def test_an_error_that_nobody_can_be_told_of_keeps_its_code() -> None:
    command = f"exec {shlex.quote(sys.executable)} -m hsstore_cli status /nowhere 2>/dev/full"
    assert subprocess.run(["/bin/sh", "-c", command], check=False, timeout=60).returncode == 8
