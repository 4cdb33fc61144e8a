"""fsck of every chunk, and of all rows, against reading the same file with as many threads.

There is no warm figure: fsck drops a file from the page cache first, since it is the disk it asks.
"""

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from measure import States, interleaved, result
from stores import fill_distinct, planned

from hsstore.integrity.fsck import fsck
from hsstore.model import keys
from hsstore.model.finding import Level

THREADS = 2
PIECE_BYTES = 4 << 20


def measure(folder: Path, states: States, samples: int, *, label: str) -> list[dict[str, Any]]:
    """One result, for the cold page cache."""
    root = folder / "store"
    shutil.rmtree(root, ignore_errors=True)
    store = planned(root, states, samples)
    fill_distinct(store, states)
    payload = root / keys.shard_file(0)
    contenders = {
        "read": lambda: read_all(payload),
        "fsck --level data": lambda: clean(root, "data"),
        "fsck --level thorough": lambda: clean(root, "thorough"),
    }
    moved = payload.stat().st_size
    cold = interleaved(contenders, before=lambda: forget(payload), rounds=5)
    return [
        result(f"fsck, cold, {label}", cold, "read", moved),
    ]


def clean(root: Path, level: Level) -> None:
    """Fsck that must find nothing, or the time means nothing."""
    findings = list(fsck(root, level, threads=THREADS))
    if findings:
        raise SystemExit(f"the store to measure on is damaged: {findings[0]}")


def read_all(path: Path) -> None:
    """Read a file with ``THREADS`` threads, each into memory of its own that it reuses."""
    descriptor = os.open(path, os.O_RDONLY)
    size = os.fstat(descriptor).st_size
    share = -(-size // THREADS)

    def read(first: int) -> None:
        memory = bytearray(PIECE_BYTES)
        for at in range(first, min(first + share, size), PIECE_BYTES):
            os.preadv(descriptor, [memory], at)

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(read, range(0, size, share)))
    os.close(descriptor)


def forget(path: Path) -> None:
    """Drop a file's pages from the page cache."""
    descriptor = os.open(path, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
