"""What every store must satisfy after trouble: right where it is committed, and tidy."""

from pathlib import Path

import numpy as np

from hsstore.model import keys
from hsstore.storage.journal import read_journal
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.testing.sources import seeded_states


def assert_exact(root: Path) -> int:
    """Every sample of every committed shard verifies and equals its seed; how many there are."""
    store = Store.open(root)
    reader, samples = Reader(store), 0
    for shard in store.committed():
        tokens = store.tokens(shard)
        for sample in store.samples.shard_samples(shard):
            ids = tokens.sample(sample - tokens.first_sample)[1]
            states = reader.read(sample, verify=True)
            np.testing.assert_array_equal(states, seeded_states(store.identity, ids), strict=True)
            samples += 1
    return samples


def assert_complete(root: Path) -> None:
    """All samples are committed, and nothing of how that came about is left."""
    store = Store.open(root)
    assert assert_exact(root) == store.plan.samples
    assert_tidy(root)


class Litter(AssertionError):
    """Something was left that a later command or gc removes: untidy, but nothing is wrong."""


def assert_tidy(root: Path) -> None:
    """Nothing of how the store came about is left; Litter otherwise."""
    if left := leftovers(root):
        raise Litter(f"left behind: {', '.join(left)}")


def leftovers(root: Path) -> list[str]:
    """Staged files, claims, intents and temporary files, relative to the store."""
    files = [path for path in root.rglob("*") if path.name.startswith(".")]
    for folder in (keys.STAGE, keys.CLAIM, keys.INTENT):
        files += (root / folder).iterdir()
    return sorted({str(path.relative_to(root)) for path in files})


def journalled(root: Path) -> set[int]:
    """The samples that staged journals settle."""
    journals = (root / keys.STAGE).glob(f"*/{keys.STAGED_JOURNAL}")
    return {s for path in journals for s in read_journal(path.read_bytes()).settled()}
