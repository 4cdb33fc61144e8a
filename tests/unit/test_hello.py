import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hsstore.capture.hello import Hello, HelloFile, remove_dead_hellos
from hsstore.capture.recorder import first_hello

BOOT = "00112233445566778899aabbccddeeff"


def hello(rank: int = 0) -> Hello:
    return replace(first_hello(BOOT, "0.5.23", "0.1.0"), rank=rank, layers=(1, "final"))


def test_a_hello_is_one_sorted_object_and_is_replaced_whole(tmp_path: Path) -> None:
    file = HelloFile(tmp_path)
    file.publish(hello())
    file.publish(replace(hello(), checked=True))
    [path] = tmp_path.iterdir()
    assert path.name == f"hello.{BOOT}.0.json"
    document = json.loads(path.read_bytes())
    assert list(document) == sorted(document)
    assert document["format"] == 1
    assert document["kind"] == "hsstore-spool"
    assert document["layers"] == [1, "final"]
    assert document["checked"] is True
    assert document["pid"] == os.getpid()
    assert document["host"] == socket.gethostname()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_refusal_is_one_line() -> None:
    assert hello().refusing("no\n  room ").refused == "no room"


def test_only_hellos_of_processes_that_are_gone_are_removed(tmp_path: Path) -> None:
    alive = HelloFile(tmp_path)
    alive.publish(hello())
    alive.publish(hello())  # renamed over: the lock must be on the newest
    write = (
        "import sys; from pathlib import Path; from hsstore.capture.hello import HelloFile;"
        "from hsstore.capture.recorder import first_hello;"
        "HelloFile(Path(sys.argv[1])).publish(first_hello('f' * 32, '0.5.23', '0.1.0'))"
    )
    subprocess.run([sys.executable, "-c", write, tmp_path], check=True, env={**os.environ})
    (tmp_path / f"hello.{'e' * 32}.0.json").write_text('{"host": "elsewhere"}')
    (tmp_path / f"hello.{'d' * 32}.0.json").write_text("torn")
    (tmp_path / "hello.txt").write_text("foreign")
    assert remove_dead_hellos(tmp_path) == [f"hello.{'f' * 32}.0.json"]
    assert (tmp_path / hello().name).exists()
    assert len(list(tmp_path.iterdir())) == 4


def test_a_hello_that_is_replaced_meanwhile_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive = HelloFile(tmp_path)
    alive.publish(hello())
    lock = fcntl.flock

    def publish_first(descriptor: int, how: int) -> None:
        monkeypatch.setattr(fcntl, "flock", lock)
        alive.publish(replace(hello(), checked=True))  # lets go of the file that is open here
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", publish_first)
    assert remove_dead_hellos(tmp_path) == []
    assert json.loads((tmp_path / hello().name).read_bytes())["checked"] is True


def test_a_folder_that_takes_no_files_is_an_oserror(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        HelloFile(tmp_path / "missing").publish(hello())
