import contextlib
import errno
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from hsstore.errors import ClaimedByAnother, StoreError
from hsstore.model import keys
from hsstore.storage import claim as claims
from hsstore.storage.claim import Claim, Holder, acquire, claimed
from hsstore.storage.filesystem import LOCAL
from hsstore.testing.faults import Crash, FaultyFilesystem

STORE, ONE, TWO = "0" * 32, "a" * 16, "b" * 16


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / keys.CLAIM).mkdir()
    return tmp_path


def names(root: Path) -> list[str]:
    return LOCAL.names(root / keys.CLAIM)


def take(root: Path, writer: str = ONE, shard: int = 3) -> Claim:
    return acquire(LOCAL, root, STORE, shard, writer)


def test_a_held_shard_is_refused_and_others_are_not(root: Path) -> None:
    claim = take(root)
    with pytest.raises(ClaimedByAnother, match=r"shard 3 is held .*heartbeat is \d+ s old"):
        take(root, TWO)
    take(root, TWO, shard=4).release()
    claim.verify()
    claim.release()
    assert names(root) == []
    take(root, TWO).release()


def test_a_claim_is_released_whatever_happens(root: Path) -> None:
    with pytest.raises(KeyError), claimed(LOCAL, root, STORE, 3):
        raise KeyError
    assert names(root) == []


def test_a_stale_claim_is_taken_over_by_the_next_turn(root: Path) -> None:
    old = take(root)
    os.utime(root / keys.claim(3, 0), (0, time.time() - 61))
    new = take(root, TWO)
    assert names(root) == ["00000003-000001.json"]
    with pytest.raises(ClaimedByAnother, match="taken over"):
        old.verify()
    old.release()
    new.verify()
    new.release()
    assert names(root) == []


def test_a_heartbeat_keeps_a_claim(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "HEARTBEAT_SECONDS", 0.01)
    claim = take(root)
    os.utime(root / keys.claim(3, 0), (0, time.time() - 61))
    time.sleep(0.1)
    with pytest.raises(ClaimedByAnother):
        take(root, TWO)
    claim.release()


@pytest.mark.parametrize("raw", [b"", b"\0" * 300, b"{}\n"])
def test_a_damaged_claim_is_judged_by_its_age(root: Path, raw: bytes) -> None:
    path = root / keys.claim(3, 5)
    path.write_bytes(raw)
    with pytest.raises(ClaimedByAnother, match="heartbeat"):
        take(root)
    os.utime(path, (0, time.time() - 61))
    take(root).release()
    assert names(root) == []


@pytest.mark.parametrize("target", ["kept", "nowhere"])
def test_a_link_in_place_of_a_claim_is_judged_by_its_age_and_not_followed(
    root: Path, target: str
) -> None:
    (root / "kept").write_bytes(b"not a claim")
    path = root / keys.claim(3, 5)
    path.symlink_to(root / target)
    with pytest.raises(ClaimedByAnother, match="heartbeat"):
        take(root)
    os.utime(path, (0, time.time() - 61), follow_symlinks=False)
    take(root).release()
    assert names(root) == []
    assert (root / "kept").read_bytes() == b"not a claim"


@pytest.mark.parametrize("turn", [0, 5])
def test_a_folder_in_place_of_a_claim_is_refused_and_kept(root: Path, turn: int) -> None:
    """Also below the turn that counts: whoever takes over would have to remove it."""
    (root / keys.claim(3, turn) / "kept").mkdir(parents=True)
    if not turn:
        (root / keys.claim(3, 1)).touch()
        os.utime(root / keys.claim(3, 1), (0, 0))
    before = names(root)
    with pytest.raises(StoreError, match=r"a folder is in place of this claim.*move it away"):
        take(root)
    assert names(root) == before
    take(root, shard=4).release()


def test_of_many_rivals_one_wins(root: Path) -> None:
    won: list[Claim] = []
    start = threading.Barrier(8)

    def rival(n: int) -> None:
        start.wait()
        with contextlib.suppress(ClaimedByAnother):
            won.append(take(root, f"{n:016x}"))

    threads = [threading.Thread(target=rival, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    won[0].verify()
    won[0].release()
    assert names(root) == []


def test_a_turn_that_is_no_longer_the_highest_is_given_back(root: Path) -> None:
    class Slow(FaultyFilesystem):
        def publish(self, path: Path, data: bytes, *, within: Path | None = None) -> None:
            (root / keys.claim(3, 7)).write_bytes(b"a rival's")
            super().publish(path, data, within=within)

    with pytest.raises(ClaimedByAnother, match="came first"):
        acquire(Slow(), root, STORE, 3, ONE)
    assert names(root) == ["00000003-000007.json"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_claim_that_could_not_be_made_durable_holds_nobody_up(root: Path, code: int) -> None:
    for n in range(5):
        filesystem = FaultyFilesystem(frozenset({"create", "write", "sync", "link"}))
        filesystem.fail(n, code)
        with pytest.raises(OSError, match=r"No space|Input/output"):
            acquire(filesystem, root, STORE, 3, ONE)
        assert names(root) == []
        take(root, TWO).release()


def test_what_a_crash_left_of_a_claim_is_cleared_by_the_next(root: Path) -> None:
    filesystem = FaultyFilesystem()
    for n in range(6):
        filesystem.crash(n)
        with pytest.raises(Crash):
            acquire(filesystem, root, STORE, 3, ONE)
        filesystem.heal()
        take(root, TWO).release()
        assert names(root) == []


HERE = Holder.this_process(ONE)


def test_a_live_process_is_not_dead(root: Path) -> None:
    claim = take(root)
    assert not HERE.provably_dead()
    claim.release()


def test_another_boot_or_namespace_proves_nothing() -> None:
    gone = replace(HERE, pid=2**22 + 1)
    assert gone.provably_dead()
    assert not replace(gone, boot="another").provably_dead()
    assert not replace(gone, pid_namespace="pid:[1]").provably_dead()


def test_a_reused_pid_is_another_process() -> None:
    assert replace(HERE, started=HERE.started - 1).provably_dead()


def test_a_process_that_waits_to_be_reaped_is_dead() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = claims._started(process.pid)
    assert started is not None
    holder = replace(HERE, pid=process.pid, started=started)
    assert not holder.provably_dead()
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert holder.provably_dead()
    process.communicate()
    assert holder.provably_dead()


def test_a_process_that_proc_hides_is_not_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    holder = replace(HERE, pid=os.getppid(), started=1)
    monkeypatch.setattr(claims, "_started", lambda pid: None if pid == os.getppid() else 1)
    assert not holder.provably_dead()

    def refuse(pid: int, signal: int) -> None:
        raise PermissionError(pid, signal)

    monkeypatch.setattr(os, "kill", refuse)
    assert not holder.provably_dead()
