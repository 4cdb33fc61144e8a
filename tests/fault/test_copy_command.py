"""``hsstore copy`` onto a real disk that fills up half-way, killed twice, and run to its end."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsstore.integrity.fsck import fsck
from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.power import disk, why_not
from hsstore.testing.stores import contents, empty_store, fill

ROOT = Path(__file__).parents[2]
LOST = [3, 11]
LEFT_FREE = 3 << 20
PATIENCE_SECONDS = 120.0


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """40 MiB in twenty shards, two of which are damaged."""
    lengths = np.random.default_rng(3).integers(1, 100, 200).tolist()
    made = fill(empty_store(tmp_path / "store", lengths, hidden_size=1024, shard_rows=512))
    for shard in LOST:
        damage.flip_bit(made.root / keys.shard_file(shard), 5000)
    return made


@pytest.fixture
def target() -> Iterator[Path]:
    if reason := why_not("ext4"):
        pytest.skip(reason)
    with disk("ext4") as mounted:
        yield mounted.mountpoint / "copy"


class Command:
    """The command in a process group of its own; it can be held and killed."""

    def __init__(self, store: Store, target: Path) -> None:
        typed = [sys.executable, "-m", "hsstore_cli", "copy", str(store.root)]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'cli'}"}
        self.target = target
        self.process = subprocess.Popen(
            [*typed, str(target), "--min-free", "0", "--json"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def hold_after(self, shards: int) -> None:
        """Stop the process once so many shards are committed."""
        end = time.monotonic() + PATIENCE_SECONDS
        while committed(self.target) < shards:
            assert time.monotonic() < end
            assert self.process.poll() is None, self.process.communicate()
        self.send(signal.SIGSTOP)

    def send(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        self.process.communicate()

    def end(self) -> tuple[int, list[dict[str, Any]], str]:
        out, err = self.process.communicate(timeout=PATIENCE_SECONDS)
        return self.process.returncode, [json.loads(line) for line in out.splitlines()], err


def committed(target: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return len([*(target / keys.COMMIT).glob("[!.]*")])
    return 0


def fill_up(path: Path) -> None:
    """Take the space of a disk, but for what the shard in work may take."""
    space = os.statvfs(path.parent)
    with path.open("xb") as file:
        os.posix_fallocate(file.fileno(), 0, space.f_bavail * space.f_frsize - LEFT_FREE)


@pytest.mark.root
def test_the_disk_swap_of_the_story(store: Store, target: Path) -> None:
    shards, healthy = store.plan.shards, contents(store)
    first = Command(store, target)
    first.hold_after(2)
    first.kill()
    kept = committed(target)

    second, filler = Command(store, target), target.parent / "somebody else's"
    second.hold_after(kept + 3)
    fill_up(filler)
    second.send(signal.SIGCONT)
    code, lines, err = second.end()
    assert (code, lines) == (8, [])
    assert "free space" in err.splitlines()[-1]
    full = committed(target)
    assert kept + 3 <= full < shards - len(LOST)
    assert {found.kind for found in fsck(target, threads=1)} == {"shard-missing"}

    code, _, err = Command(store, target).end()
    assert code == 8
    assert "are missing; free space" in err
    assert committed(target) == full

    filler.unlink()
    third = Command(store, target)
    third.hold_after(full + 2)
    third.kill()
    kept = committed(target)

    code, lines, _ = Command(store, target).end()
    *findings, summary = lines
    assert code == 4
    assert summary["damaged"] == sorted({found["shard"] for found in findings}) == LOST
    assert summary["before"] + summary["copied"] == shards - len(LOST)
    assert summary["before"] >= kept
    assert {found.shard for found in fsck(target, threads=1)} == {*LOST}
    copy = Store.open(target)
    assert sorted(copy.committed()) == sorted({*range(shards)} - {*LOST})
    whole = contents(copy)
    assert whole == {key: healthy[key] for key in whole}
    for shard in copy.committed():
        ours, theirs = (root / keys.shard_file(shard) for root in (target, store.root))
        assert ours.read_bytes() == theirs.read_bytes()
        assert ours.stat().st_blocks <= theirs.stat().st_blocks
    print(f"killed after {kept} shards, full after {full}; {summary}")  # noqa: T201


@pytest.mark.root
def test_a_source_on_a_read_only_mount_is_copied(
    store: Store, target: Path, tmp_path: Path
) -> None:
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    subprocess.run(["/bin/mount", "--bind", "-o", "ro", store.root, mounted], check=True)
    try:
        code, lines, _ = Command(Store.open(mounted), target).end()
    finally:
        subprocess.run(["/bin/umount", mounted], check=True)
    assert (code, lines[-1]["damaged"]) == (4, LOST)
