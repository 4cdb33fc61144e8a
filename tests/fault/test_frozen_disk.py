"""A disk that stops answering, for real: a frozen ext4 makes every writer sleep uninterruptibly."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsstore.storage import writer
from hsstore.testing import slow_extraction
from hsstore.testing.stores import empty_store
from hsstore.testing.verdicts import assert_complete, assert_exact, journalled
from hsstore_cli.main import main

pytestmark = pytest.mark.root

WAIT = 60
LENGTHS = [9, 13, 5, 16, 7, 11, 3, 14] * 5


class Disk:
    """An ext4 of its own, which can be frozen and thawed."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "disk"
        self.path.mkdir()
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(300 << 20)
        self._run("mkfs.ext4", "-q", "-F", str(image))
        self._run("mount", "-o", "loop", str(image), str(self.path))
        self._frozen = False

    def freeze(self) -> None:
        self._run("fsfreeze", "--freeze", str(self.path))
        self._frozen = True

    def thaw(self) -> None:
        if self._frozen:
            self._run("fsfreeze", "--unfreeze", str(self.path))
            self._frozen = False

    def remove(self) -> None:
        self.thaw()
        self._run("umount", "--lazy", str(self.path))

    def files(self) -> dict[str, str]:
        """A hash of every file, by its path."""
        files = [path for path in self.path.rglob("*") if path.is_file()]
        return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}

    def _run(self, *command: str) -> None:
        subprocess.run(command, check=True, timeout=WAIT)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if os.geteuid():
        pytest.skip("mounts a filesystem: needs root")
    made = Disk(tmp_path)
    try:
        yield made
    finally:
        made.remove()


LINE = re.compile(
    r"hsstore: error: storage stalled: (?P<call>\w+) of (?P<path>\S+) has not returned for "
    r"(?P<seconds>\d+) s \(state D, kernel: (?P<channel>\w+)\); .*; log: (?P<log>\S+)\n"
)


def started(command: list[str], state: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"HSSTORE_STALL_SECONDS": "3", "XDG_STATE_HOME": str(state)},
    )


def stalled(
    process: "subprocess.Popen[str]", disk: Disk
) -> tuple[re.Match[str], dict[str, object]]:
    """The line that a process ends with, and its log; all that it must have is checked."""
    out, err = process.communicate(timeout=WAIT)
    assert err.count("hsstore: error: ") == 1
    line = LINE.fullmatch(err.splitlines(keepends=True)[-1])
    assert process.returncode == 75, (out, err)
    assert line is not None, err
    assert line["path"].startswith(str(disk.path))
    assert 3 <= int(line["seconds"]) <= 30
    log = json.loads(Path(line["log"]).read_text())
    assert (log["command"], log["stalled"][0]["operation"]) == ("extract", line["call"])
    assert log["stalled"][0]["wait_channel"] == line["channel"]
    return line, log


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_until_gone(process: int) -> None:
    deadline = time.monotonic() + WAIT
    while alive(process):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_command_on_a_disk_that_stopped_answering(
    disk: Disk, tmp_path: Path, demo_model: Path
) -> None:
    store, dataset = disk.path / "store", tmp_path / "dataset.jsonl"
    lines = [json.dumps({"input_ids": list(range(n, n + 20))}) for n in range(6)]
    dataset.write_text("\n".join(lines) + "\n")
    capture = ["--dataset", str(dataset), "--model", str(demo_model), "--layers", "1,final"]
    assert main(["create", str(store), *capture, "--shard-rows", "64", "--chunk-rows", "16"]) == 0
    typed = ["extract", str(store), "--source", f"transformers:{demo_model}"]
    disk.freeze()
    process = started([sys.executable, "-m", "hsstore_cli", *typed], tmp_path / "state")
    line, log = stalled(process, disk)
    child = log["process"]
    assert isinstance(child, int)
    assert alive(child)
    print(f"stalled in {line['call']} at {line['channel']}, told after {line['seconds']} s")  # noqa: T201 - counts for the log of CI
    disk.thaw()
    wait_until_gone(child)
    assert main(typed) == 0
    assert main(["fsck", str(store)]) == 0


PROGRAM = """
import sys
from hsstore.testing import slow_extraction
from hsstore_cli.supervised import supervised

def work():
    slow_extraction.main(*sys.argv[1:])
    return 0

sys.exit(supervised(work, "extract", 3))
"""


@pytest.mark.parametrize("samples", [3, pytest.param(17, marks=pytest.mark.sweep)])
def test_an_extraction_whose_disk_stops_answering(
    disk: Disk, tmp_path: Path, samples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, computed = empty_store(disk.path / "store", LENGTHS, shard_rows=64), tmp_path / "log"
    typed = [str(store.root), str(computed), "0.02"]
    process = started([sys.executable, "-c", PROGRAM, *typed], tmp_path / "state")
    while not computed.exists() or len(computed.read_text().split()) < samples:
        assert process.poll() is None
        time.sleep(0.01)
    disk.freeze()
    _, log = stalled(process, disk)
    child, stuck = log["process"], log["stalled"]
    assert isinstance(child, int)
    assert isinstance(stuck, list)
    asked, before = len(computed.read_text().split()), disk.files()
    safe = journalled(store.root)
    disk.thaw()
    wait_until_gone(child)
    # The calls that were on their way may have gone through, and nothing behind them.
    after = disk.files()
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert len(changed) <= len(stuck), changed
    assert len(computed.read_text().split()) == asked
    exact = assert_exact(store.root)
    # It is made for a process of its own, and changes this.
    monkeypatch.setattr(writer, "SYNC_SECONDS", writer.SYNC_SECONDS)
    slow_extraction.main(str(store.root), str(computed), "0")
    assert_complete(store.root)
    # Nothing that was journalled before the stall was asked for again.
    again = set(map(int, computed.read_text().split()[asked:]))
    assert not again & safe
    print(f"{asked} computed, {exact} committed and {len(safe)} journalled when it stalled")  # noqa: T201 - counts for the log of CI


@pytest.mark.sweep
def test_the_work_can_be_stopped_before_the_limit_only_by_the_storage(
    disk: Disk, tmp_path: Path
) -> None:
    """SIGTERM is passed on; a call that does not return keeps the work, until the limit is up."""
    store, computed = empty_store(disk.path / "store", LENGTHS[:4], shard_rows=64), tmp_path / "log"
    disk.freeze()
    typed = [str(store.root), str(computed), "0.02"]
    process = started([sys.executable, "-c", PROGRAM, *typed], tmp_path / "state")
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(WAIT) == 75
    # Killed before it could let go of its output, the work keeps that open until now.
    disk.thaw()
    stalled(process, disk)


OUTSIDE = """
import os, sys
from hsstore_cli.supervised import supervised

def work():
    fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
    print("ready", flush=True)
    sys.stdin.readline()
    os.ftruncate(fd, 10)
    return 0

sys.exit(supervised(work, "extract", 3))
"""


def test_calls_that_nobody_announced_are_found_by_their_sleep(disk: Disk, tmp_path: Path) -> None:
    file = disk.path / "file"
    process = subprocess.Popen(
        [sys.executable, "-c", OUTSIDE, str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"XDG_STATE_HOME": str(tmp_path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    disk.freeze()
    _, err = process.communicate("go\n", timeout=WAIT)
    line = LINE.fullmatch(err)
    assert process.returncode == 75
    assert line is not None, err
    assert (line["call"], line["path"]) == ("ftruncate", str(file))
