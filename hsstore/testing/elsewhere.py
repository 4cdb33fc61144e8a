"""Claims as if their holders were on another machine, or from before a reboot of this one."""

import contextlib
import os
import time
from pathlib import Path

from hsstore.model import keys
from hsstore.model.document import seal, unseal
from hsstore.storage.claim import KIND, STALE_SECONDS, read_holder
from hsstore.storage.filesystem import LOCAL

BOOT = "00000000-0000-4000-8000-000000000000"


def move_holders_elsewhere(root: Path) -> int:
    """Give every claim and every staged file of a store a holder of another boot; how many.

    Such a holder cannot be proven dead, so its staged file must be copied. The claims are made
    stale, as by a writer that has been silent for long.
    """
    documents = [*claims(root), *(root / keys.STAGE).glob(f"*/{keys.STAGED_HOLDER}")]
    for path in documents:
        document = unseal(path.read_bytes(), KIND, place=str(path))
        own = {name: document[name] for name in document if name != "seal"}
        path.write_bytes(seal({**own, "boot": BOOT}))
    make_stale(root)
    return len(documents)


def make_stale(root: Path, *, pid: int | None = None) -> None:
    """Set the heartbeats of all claims, or of those of one process, back past the limit."""
    before = time.time() - STALE_SECONDS - 1
    for path in claims(root):
        holder = read_holder(LOCAL, path)
        if pid is None or (holder is not None and holder.pid == pid):
            with contextlib.suppress(FileNotFoundError):
                os.utime(path, (before, before))


def claims(root: Path) -> list[Path]:
    """The claims that a store has, without those that are being written."""
    return sorted((root / keys.CLAIM).glob("[0-9]*.json"))
