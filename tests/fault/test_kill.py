"""Writers that die or stall at any moment: their journalled work is kept, their claims are not."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.errors import ClaimedByAnother
from hsstore.extraction.extractor import extract
from hsstore.model import keys
from hsstore.storage import claim, writer
from hsstore.storage.store import Store
from hsstore.testing.faults import Crash, FaultyFilesystem
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import contents, empty_store, fill
from hsstore.testing.verdicts import assert_complete, assert_exact, journalled

LENGTHS = random.Random(5).choices(range(1, 17), k=24)  # noqa: S311 - no secret


@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_a_crash_at_any_operation_costs_only_what_was_not_journalled(
    tmp_path: Path, codec: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SYNC_BYTES", 1)
    lengths = (3, 4, 16)
    template = empty_store(tmp_path / "template", lengths, codec=codec).root
    root, done, n = tmp_path / "store", False, 0
    while not done:
        shutil.copytree(template, root)
        filesystem = FaultyFilesystem()
        filesystem.crash(n)
        store = Store.open(root, filesystem=filesystem)
        try:
            extract(store, SeededSource(store.identity))
            done = True
        except Crash:
            pass
        assert_exact(root)
        kept = journalled(root)
        again = SeededSource(store.identity)
        filesystem.heal()
        assert extract(Store.open(root, filesystem=filesystem), again).complete, n
        assert not kept & set(again.asked), n
        assert_complete(root)
        shutil.rmtree(root)
        n += 1
    assert n > 60


def start(root: Path, log: Path, seconds: float = 0.004) -> subprocess.Popen[bytes]:
    """A process that extracts the store, past its imports."""
    command = [sys.executable, "-m", "hsstore.testing.slow_extraction"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command += [str(root), str(log), str(seconds)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


def kill_often(root: Path, log: Path, kills: int, seed: int) -> dict[int, int]:
    """How often each sample had been computed when it was first found to be safe."""
    safe: dict[int, int] = {}
    chance = random.Random(seed)  # noqa: S311
    for _ in range(kills):
        process = start(root, log)
        time.sleep(chance.uniform(0, 0.25))
        process.kill()
        process.wait()
        assert_exact(root)
        store = Store.open(root)
        computed = times_computed(log)
        for shard in store.committed():
            safe |= {s: computed[s] for s in store.samples.shard_samples(shard) if s not in safe}
        safe |= {s: computed[s] for s in journalled(root) if s not in safe}
    return safe


def times_computed(log: Path) -> Counter[int]:
    return Counter(map(int, log.read_text().split()))


@pytest.mark.parametrize(
    ("kills", "seed"),
    [(5, 1), *(pytest.param(20, seed, marks=pytest.mark.sweep) for seed in (2, 3, 4))],
)
@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_killed_again_and_again_it_ends_as_if_it_never_had_been(
    tmp_path: Path, kills: int, seed: int, codec: str
) -> None:
    whole = fill(empty_store(tmp_path / "whole", LENGTHS, codec=codec))
    root = empty_store(tmp_path / "killed", LENGTHS, codec=codec).root
    log = tmp_path / "computed"
    safe = kill_often(root, log, kills, seed)
    assert start(root, log, 0).wait() == 0
    assert_complete(root)
    assert contents(Store.open(root)) == contents(whole)
    computed = times_computed(log)
    assert {s: computed[s] for s in safe} == safe


def test_a_kill_costs_no_more_than_what_is_due_to_be_synced(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """A sync is due after the time of four samples: those, and the one being staged."""
    root = empty_store(tmp_path / "store", [2] * 200, shard_rows=1024).root
    log, chance, lost = tmp_path / "computed", random.Random(7), list[int]()  # noqa: S311
    for _ in range(5):
        process = start(root, log, 0.02)
        wait_for_samples(log, times_computed(log).total() + 3)
        time.sleep(chance.uniform(0, 0.2))
        process.kill()
        process.wait()
        lost.append(len(times_computed(log).keys() - journalled(root)))
    assert max(lost) <= 5
    record_property("samples lost to each kill", lost)


def wait_for_samples(log: Path, computed: int) -> None:
    end = time.monotonic() + 60
    while times_computed(log).total() < computed:
        assert time.monotonic() < end
        time.sleep(0.005)


def wait_for_journal(root: Path, samples: int) -> None:
    end = time.monotonic() + 20
    while len(journalled(root)) < samples:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture
def one_shard(tmp_path: Path) -> Store:
    return empty_store(tmp_path / "store", [2] * 40, shard_rows=256)


def test_a_killed_writers_file_is_adopted_in_place_even_before_it_is_reaped(
    tmp_path: Path, one_shard: Store
) -> None:
    process = start(one_shard.root, tmp_path / "log", 0.02)
    wait_for_journal(one_shard.root, 3)
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    (data,) = (one_shard.root / keys.STAGE).glob(f"*/{keys.STAGED_DATA}")
    inode, kept = data.stat().st_ino, journalled(one_shard.root)
    source = SeededSource(one_shard.identity)
    assert extract(one_shard, source).complete
    process.wait()
    assert (one_shard.root / keys.shard_file(0)).stat().st_ino == inode
    assert not kept & set(source.asked)
    assert_complete(one_shard.root)


def test_a_live_writer_keeps_its_shard(tmp_path: Path, one_shard: Store) -> None:
    process = start(one_shard.root, tmp_path / "log", 0.02)
    wait_for_journal(one_shard.root, 1)
    summary = extract(one_shard, SeededSource(one_shard.identity))
    assert (summary.shards_claimed_by_others, summary.samples_extracted) == ([0], 0)
    with pytest.raises(ClaimedByAnother, match="heartbeat"):
        claim.acquire(one_shard.filesystem, one_shard.root, one_shard.identity.uuid, 0, "a" * 16)
    assert process.wait() == 0
    assert_complete(one_shard.root)


def test_a_stalled_writer_that_wakes_up_harms_nobody(tmp_path: Path, one_shard: Store) -> None:
    process = start(one_shard.root, tmp_path / "log", 0.02)
    wait_for_journal(one_shard.root, 3)
    process.send_signal(signal.SIGSTOP)
    (data,) = (one_shard.root / keys.STAGE).glob(f"*/{keys.STAGED_DATA}")
    (held,) = (one_shard.root / keys.CLAIM).iterdir()
    inode, kept = data.stat().st_ino, journalled(one_shard.root)
    os.utime(held, (0, time.time() - 61))
    source = SeededSource(one_shard.identity)
    assert extract(one_shard, source).complete
    assert (one_shard.root / keys.shard_file(0)).stat().st_ino != inode
    assert not kept & set(source.asked)
    process.send_signal(signal.SIGCONT)
    assert process.wait() == 0
    assert_complete(one_shard.root)


def test_two_processes_finish_a_store_together(tmp_path: Path) -> None:
    root = empty_store(tmp_path / "store", LENGTHS).root
    log = tmp_path / "log"
    processes = [start(root, log), start(root, log)]
    assert [process.wait() for process in processes] == [0, 0]
    assert_complete(root)
    assert times_computed(log) == Counter(range(len(LENGTHS)))
