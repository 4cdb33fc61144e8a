"""The supervisor and its child: ends, signals and stalls, without a disk that really hangs."""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from hsstore.testing.stores import empty_store, filled_store

WAIT = 60
"""Seconds after which a test gives up; none of them takes long."""

PROGRAM = """
import os, signal, sys, time
from hsstore.storage.filesystem import LOCAL, Filesystem, _Call
from hsstore_cli.supervised import supervised

def say(text):
    os.write(1, f"{text}\\n".encode())

def work():
    say(os.getpid())
%s
    return 0

sys.exit(supervised(work, "extract", %s))
"""


def program(work: str, seconds: float = 30) -> list[str]:
    return [sys.executable, "-c", PROGRAM % (textwrap.indent(work, "    "), seconds)]


def environment(state: Path, **more: str) -> dict[str, str]:
    return os.environ | {"XDG_STATE_HOME": str(state)} | more


@pytest.fixture
def started(tmp_path: Path) -> Iterator["Started"]:
    running = Started(tmp_path / "state")
    yield running
    running.end()


class Started:
    """Programs in process groups of their own; whatever is left of one is killed at the end."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._all: list[tuple[subprocess.Popen[str], int]] = []

    def __call__(self, command: Sequence[str]) -> tuple[subprocess.Popen[str], int]:
        """The supervisor, and the pid of the work, which has begun."""
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(self._state),
            process_group=0,
        )
        assert process.stdout is not None
        child = int(process.stdout.readline())
        self._all.append((process, child))
        return process, child

    def end(self) -> None:
        for process, _ in self._all:
            process.kill()  # the child goes with it
            process.communicate(timeout=WAIT)


def run(command: Sequence[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
        env=os.environ | more,
    )


def state_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "gone"


def wait_for(process: int, *states: str) -> None:
    deadline = time.monotonic() + WAIT
    while (now := state_of(process)) not in states:
        assert time.monotonic() < deadline, now
        time.sleep(0.02)


# -- ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 2, 4, 8, 32])
def test_the_exit_code_is_that_of_the_work(code: int) -> None:
    assert run(program(f"return {code}")).returncode == code


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_ended_the_work_ends_the_supervisor(number: int) -> None:
    work = f"signal.signal({number}, signal.SIG_DFL)\n" if number != signal.SIGKILL else ""
    done = run(program(f"{work}os.kill(os.getpid(), {number})\ntime.sleep({WAIT})"))
    assert (done.returncode, done.stderr) == (-number, "")


def test_real_commands_end_as_they_did(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", shards=range(1)).root
    hsstore = [sys.executable, "-m", "hsstore_cli"]
    assert run([*hsstore, "status", str(store)]).returncode == 0
    assert run([*hsstore, "status", str(store), "--bogus"]).returncode == 2
    assert run([*hsstore, "status", str(tmp_path)]).returncode == 8
    data = next(store.glob("states.zarr/hidden_states/c/*/0/0"))
    data.write_bytes(data.read_bytes()[:-1])
    done = run([*hsstore, "fsck", "--json", str(store)])
    assert done.returncode == 4
    assert json.loads(done.stdout.splitlines()[-1])["type"] == "summary"


def test_output_into_a_closed_pipe_is_no_stall(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", shards=range(1)).root
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "hsstore_cli", "status", str(store)],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
        timeout=WAIT,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (8, b"")


@pytest.mark.parametrize("typed", ["abc", "-1", "nan", "inf", "0.5"])
def test_a_wrong_limit_is_wrong_usage(typed: str) -> None:
    done = run([sys.executable, "-m", "hsstore_cli", "status", "x"], HSSTORE_STALL_SECONDS=typed)
    assert done.returncode == 2
    assert done.stderr.startswith(f"hsstore: error: HSSTORE_STALL_SECONDS is {typed!r}: give")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("limit", "command", "pair"), [("0", "status", False), ("", "status", True), ("", "-h", False)]
)
def test_only_commands_have_a_supervisor_and_only_with_a_limit(
    limit: str, command: str, *, pair: bool
) -> None:
    program = (
        "import os, sys\n"
        "from hsstore_cli import supervised\n"
        "before = os.getpid()\n"
        f"sys.argv = ['hsstore', {command!r}]\n"
        "supervised._work = lambda: int(os.getpid() != before)\n"
        "sys.exit(supervised.main())"
    )
    assert run([sys.executable, "-c", program], HSSTORE_STALL_SECONDS=limit).returncode == pair


def test_the_supervisor_is_light() -> None:
    heavy = "{'numpy', 'torch', 'click', 'httpx', 'xxhash', 'zarr'}"
    code = f"import sys, hsstore_cli.supervised; sys.exit(bool({heavy} & set(sys.modules)))"
    assert run([sys.executable, "-c", code]).returncode == 0


# -- signals -----------------------------------------------------------------------------------

COUNTING = """
count = []
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, frame: count.append(number))
say("ready")
while not count:
    time.sleep(0.01)
time.sleep(0.6)
say(len(count))
return 32
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
@pytest.mark.parametrize("to", ["the supervisor", "both"])
def test_a_signal_reaches_the_work_once(started: Started, number: int, to: str) -> None:
    process, _ = started(program(COUNTING))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    (os.killpg if to == "both" else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=WAIT)
    assert (process.returncode, out, err) == (32, "1\n", "")


def test_a_second_signal_is_a_second_one(started: Started) -> None:
    work = COUNTING.replace("while not count:", "while len(count) < 2:")
    process, child = started(program(work))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(child, signal.SIGINT)  # which the supervisor is not told of
    time.sleep(4)  # until it has looked again
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=WAIT)
    assert (process.returncode, out) == (32, "2\n")


def test_a_signal_to_both_and_to_the_supervisor_is_one(started: Started) -> None:
    """As timeout(1) sends it; as two of them, it would end an extraction at once."""
    process, _ = started(program(COUNTING))
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.killpg(process.pid, signal.SIGTERM)
    time.sleep(0.05)
    os.kill(process.pid, signal.SIGTERM)
    out, _ = process.communicate(timeout=WAIT)
    assert (process.returncode, out) == (32, "1\n")


def test_a_handler_of_the_work_hears_what_a_shell_ignores_in_the_background(
    started: Started,
) -> None:
    process, _ = started(["sh", "-c", 'trap "" INT; exec "$@"', "sh", *program(COUNTING)])
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    os.kill(process.pid, signal.SIGINT)
    out, _ = process.communicate(timeout=WAIT)
    assert (process.returncode, out) == (32, "1\n")


def test_without_a_handler_a_signal_ends_both(started: Started) -> None:
    process, child = started(program(f"time.sleep({WAIT})"))
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(WAIT) == -signal.SIGTERM
    assert state_of(child) == "gone"


def test_what_is_ignored_from_the_start_stays_so(started: Started) -> None:
    command = program("say('ready')\nos.kill(os.getppid(), signal.SIGHUP)\ntime.sleep(1)\nreturn 4")
    process, _ = started(["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *command])
    assert process.wait(WAIT) == 4


def test_a_killed_supervisor_takes_the_work_with_it(started: Started) -> None:
    process, child = started(program(f"time.sleep({WAIT})"))
    process.kill()
    process.wait(WAIT)
    wait_for(child, "gone", "Z")


def test_a_killed_supervisor_takes_work_with_it_that_can_open_nothing(started: Started) -> None:
    work = f"while True:\n    try: os.dup(1)\n    except OSError: break\ntime.sleep({WAIT})"
    process, child = started(["prlimit", "--nofile=30", *program(work)])
    time.sleep(0.5)
    process.kill()
    process.wait(WAIT)
    wait_for(child, "gone", "Z")


def test_both_stop_and_go_on_together(started: Started) -> None:
    process, child = started(program("say('ready')\ntime.sleep(2)\nreturn 4"))
    os.kill(process.pid, signal.SIGTSTP)
    for each in (process.pid, child):
        wait_for(each, "T")
    os.kill(process.pid, signal.SIGCONT)
    assert process.wait(WAIT) == 4


WAITING = """
import signal
from hsstore_cli.signal_wait import SignalWait
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
waiting = SignalWait({signal.SIGUSR1})
print(__import__("os").getpid(), flush=True)
for seconds in (0.3, 30, 0):
    print(waiting.received(seconds), flush=True)
"""


def test_who_was_stopped_for_longer_than_it_waits_hears_what_was_sent_and_no_more(
    started: Started,
) -> None:
    """A batch system may suspend a job."""
    process, waiting = started([sys.executable, "-c", WAITING])
    wait_for(waiting, "S")
    os.kill(waiting, signal.SIGSTOP)
    wait_for(waiting, "T")
    time.sleep(0.4)
    os.kill(waiting, signal.SIGCONT)
    assert process.stdout is not None
    assert process.stdout.readline() == "None\n"
    os.kill(waiting, signal.SIGUSR1)
    assert process.communicate(timeout=WAIT)[0] == f"{int(signal.SIGUSR1)}\nNone\n"


def test_under_timeout_both_end(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    work = f"open({str(told)!r}, 'w').write(str(os.getpid()))\ntime.sleep({WAIT})"
    assert run(["timeout", "3", *program(work)]).returncode == 124
    wait_for(int(told.read_text()), "gone", "Z")


# -- stalls ------------------------------------------------------------------------------------

LINE = re.compile(
    r"hsstore: error: storage stalled: (?P<call>\w+) of (?P<path>\S+) has not returned for "
    r"(?P<seconds>\d+) s( \(state (?P<state>\w)(, kernel: \w+)?\))?; nothing more is written .*; "
    r"(no log: .*|log: (?P<log>\S+))\n"
)


def stalled(
    store: Path, call: str, state: Path, *, seconds: float = WAIT, limit: str = "1"
) -> subprocess.CompletedProcess[str]:
    module = [sys.executable, "-m", "hsstore.testing.stalled_command", call, str(seconds)]
    return run(
        [*module, "status", str(store)], XDG_STATE_HOME=str(state), HSSTORE_STALL_SECONDS=limit
    )


@pytest.mark.parametrize("call", ["listdir", "open"])
def test_a_call_that_does_not_return_is_named(tmp_path: Path, call: str) -> None:
    store = empty_store(tmp_path / "store", [3]).root
    done = stalled(store, call, tmp_path / "state")
    line = LINE.fullmatch(done.stderr)
    assert (done.returncode, done.stdout) == (75, "")
    assert line is not None, done.stderr
    assert line["call"] == call
    assert line["path"].startswith(str(store))
    assert line["state"] == "S"
    log = json.loads(Path(line["log"]).read_text())
    assert log["command"] == "status"
    [told] = log["stalled"]
    assert (told["operation"], told["path"]) == (line["call"], line["path"])
    assert 1 <= told["seconds"] < WAIT
    # What was typed may hold a password.
    assert "stalled_command" not in Path(line["log"]).read_text()


def test_a_slow_call_is_none(tmp_path: Path) -> None:
    store = empty_store(tmp_path / "store", [3]).root
    done = stalled(store, "listdir", tmp_path / "state", seconds=2, limit="8")
    assert (done.returncode, done.stderr) == (0, "")
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize(
    "work",
    [
        "end = time.monotonic() + 3\nwhile time.monotonic() < end: pass",
        "time.sleep(3)",
        "import threading\nfor n in range(300):\n    with _Call('fsync', '/x'): time.sleep(0.01)",
        "with _Call('fdatasync', '/moving'):\n    for n in range(30): time.sleep(0.1)",
    ],
    ids=["computing", "waiting for a server", "many calls", "a call that moves"],
)
def test_what_is_no_stall(work: str) -> None:
    done = run(program(work, seconds=1))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.sweep
def test_a_call_that_moves_for_ever_is_a_stall_in_the_end(tmp_path: Path) -> None:
    work = "with _Call('fdatasync', '/moving'):\n    while True: time.sleep(0.1)"
    done = run(program(work, seconds=1), XDG_STATE_HOME=str(tmp_path))
    line = LINE.fullmatch(done.stderr)
    assert done.returncode == 75
    assert line is not None
    assert int(line["seconds"]) >= 10


def test_of_several_threads_the_stuck_one_is_told(tmp_path: Path) -> None:
    work = (
        "import threading\n"
        "def stuck():\n"
        "    with _Call('utime', '/store/claim/0'): time.sleep(1000)\n"
        "threading.Thread(target=stuck, daemon=True).start()\n"
        "while True:\n"
        "    with _Call('pwrite', '/store/stage'): time.sleep(0.01)"
    )
    done = run(program(work, seconds=1), XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 75
    assert "storage stalled: utime of /store/claim/0 has" in done.stderr


@pytest.mark.sweep
def test_time_while_stopped_does_not_count(started: Started) -> None:
    process, child = started(program("with _Call('read', '/x'): time.sleep(5)\nreturn 4", 4))
    wait_for(child, "S")  # it is within the call
    os.kill(child, signal.SIGSTOP)
    wait_for(child, "T")
    time.sleep(6)
    assert process.poll() is None
    os.kill(child, signal.SIGCONT)
    assert process.wait(WAIT) == 4


@pytest.mark.parametrize("folder", ["hanging", "full", "none"])
def test_a_log_that_cannot_be_written_is_told_and_not_waited_for(
    tmp_path: Path, folder: str
) -> None:
    store = empty_store(tmp_path / "store", [3]).root
    state = {"hanging": tmp_path, "full": Path("/dev/full"), "none": Path("relative")}[folder]
    module = ["-c", HANGING_LOG] if folder == "hanging" else ["-m"]
    done = run(
        [
            sys.executable,
            *module,
            "hsstore.testing.stalled_command",
            "listdir",
            "60",
            "status",
            str(store),
        ],
        XDG_STATE_HOME=str(state),
        HSSTORE_STALL_SECONDS="1",
        HOME="",
    )
    assert done.returncode == 75
    assert done.stderr.startswith("hsstore: error: storage stalled: listdir of ")
    assert "; no log: " in done.stderr


HANGING_LOG = """
import runpy, sys, time
from hsstore_cli import stall_report
stall_report._write = lambda path, text: time.sleep(1000)
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def test_whoever_reads_the_output_is_not_kept_waiting(tmp_path: Path) -> None:
    """Killed in a call that never returns, a process keeps its output open; so it lets go first."""
    work = (
        "lifeline.os.kill = lambda pid, number: None\n"  # a kill that never takes effect
        "with _Call('fsync', '/x'): time.sleep(8)"
    )
    imports = "from hsstore_cli import lifeline\nimport hsstore_cli.supervisor as supervisor\n"
    never = "real = os.kill\nsupervisor.os.kill = lambda pid, number: None\n"
    command = program(work, seconds=1)
    command[-1] = imports + command[-1].replace("def say", f"{never}def say", 1)
    before = time.monotonic()
    done = run(command, XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 75
    assert time.monotonic() - before < 8
    child = int(done.stdout.split()[0])
    os.kill(child, signal.SIGKILL)


def test_nor_by_a_log_that_goes_to_the_same_storage(tmp_path: Path) -> None:
    command = program("with _Call('fsync', '/x'): time.sleep(8)", seconds=1)
    hanging = (
        "from hsstore_cli import stall_report\n"
        "stall_report.os.kill = lambda pid, number: None\n"  # killed, it would still hang
        "stall_report.Path.mkdir = lambda *_, **__: time.sleep(8)\n"
    )
    command[-1] = command[-1].replace("def say", f"{hanging}def say", 1)
    before = time.monotonic()
    done = run(command, XDG_STATE_HOME=str(tmp_path))
    assert (done.returncode, "no log" in done.stderr) == (75, True)
    assert time.monotonic() - before < 8


def test_without_room_for_another_process_the_exit_code_tells(tmp_path: Path) -> None:
    refusing = (
        "import errno\n"
        "from hsstore_cli import stall_report\n"
        "def refuse(): raise BlockingIOError(errno.EAGAIN, 'no more processes')\n"
        "fork, forked = os.fork, []\n"
        "os.fork = lambda: refuse() if forked else (forked.append(1), fork())[1]\n"
    )
    command = program(f"with _Call('fsync', '/x'): time.sleep({WAIT})", seconds=1)
    command[-1] = command[-1].replace("def say", f"{refusing}def say", 1)
    done = run(command, XDG_STATE_HOME=str(tmp_path))
    assert (done.returncode, done.stderr) == (75, "")


# -- elsewhere ---------------------------------------------------------------------------------


def root_only() -> None:
    if os.geteuid():
        pytest.skip("makes namespaces: needs root")


@pytest.mark.root
@pytest.mark.parametrize(
    ("work", "code"),
    [
        ("return 4", 4),
        ("os.kill(os.getpid(), 9)", 128 + 9),
        ("os.kill(os.getpid(), 15)", 128 + 15),
        ("with _Call('fsync', '/x'): time.sleep(60)", 75),
    ],
)
def test_as_the_first_process_of_a_container(tmp_path: Path, work: str, code: int) -> None:
    root_only()
    container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    done = run([*container, *program(work, seconds=1)], XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == code, done.stderr
    assert done.stdout == "2\n"


@pytest.mark.root
def test_without_proc_the_announced_calls_decide(tmp_path: Path) -> None:
    root_only()
    hidden = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /proc; exec "$@"', "sh"]
    work = "with _Call('fsync', '/x'): time.sleep(60)"
    done = run([*hidden, *program(work, seconds=1)], XDG_STATE_HOME=str(tmp_path))
    assert done.returncode == 75
    assert "storage stalled: fsync of /x has not returned for " in done.stderr
    assert "(state" not in done.stderr
    done = run([*hidden, *program("time.sleep(2.5)\nreturn 4", seconds=1)])
    assert (done.returncode, done.stderr) == (4, "")
