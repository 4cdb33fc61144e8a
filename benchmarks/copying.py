"""hsstore copy beside what people do without it: cp that keeps holes, then fsck of the copy.

Both begin with a source that is not in the page cache, and end with proven bytes on the disk. cp
alone, synced, is the raw limit: it verifies nothing.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from fsck import clean, forget
from measure import States, interleaved, result
from stores import fill, planned

from hsstore.integrity.copying.copy import copy_store
from hsstore.model import keys


def measure(folder: Path, states: States, samples: int, *, label: str) -> dict[str, Any]:
    """All in turn, on the filesystem of ``folder``."""
    root, copy = folder / "store", folder / "copy"
    shutil.rmtree(root, ignore_errors=True)
    store = planned(root, states, samples)
    fill(store, states)
    payload = root / keys.shard_file(0)

    def prepare() -> None:
        shutil.rmtree(copy, ignore_errors=True)
        os.sync()
        forget(payload)

    def plain() -> None:
        subprocess.run(["/bin/cp", "-a", "--sparse=always", root, copy], check=True)
        subprocess.run(["/bin/sync", "--file-system", copy], check=True)

    def checked() -> None:
        plain()
        clean(copy, "data")

    def verified() -> None:
        if not copy_store(store, copy).complete:
            raise SystemExit("the store to measure on is damaged")

    contenders = {"cp + sync": plain, "cp + sync + fsck": checked, "hsstore copy": verified}
    seconds = interleaved(contenders, before=prepare, rounds=5)
    prepare()
    return result(f"copy, cold, {label}", seconds, "cp + sync", payload.stat().st_size)
