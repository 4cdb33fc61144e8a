"""Writing a shard (states, hashes, statistics, fsync, commit) against pwrite and fsync alone."""

import os
import shutil
from pathlib import Path
from typing import Any

from measure import States, interleaved, result
from stores import fill, planned

from hsstore.storage.store import Store


def measure(folder: Path, states: States, samples: int, *, label: str) -> dict[str, Any]:
    """Both in turn, on the filesystem of ``folder``."""
    root, plain = folder / "store", folder / "plain"

    def prepare() -> None:
        shutil.rmtree(root, ignore_errors=True)
        plain.unlink(missing_ok=True)
        planned(root, states, samples)
        os.sync()

    def raw() -> None:
        descriptor = os.open(plain, os.O_WRONLY | os.O_CREAT)
        for sample in range(samples):
            write_all(descriptor, states.data.cast("B"), sample * states.nbytes)
        os.fsync(descriptor)
        os.close(descriptor)

    seconds = interleaved(
        {"pwrite + fsync": raw, "hsstore": lambda: fill(Store.open(root), states)}, before=prepare
    )
    return result(f"write, {label}", seconds, "pwrite + fsync", states.nbytes * samples)


def write_all(descriptor: int, data: memoryview, offset: int) -> None:
    """Pwrite over short writes."""
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
