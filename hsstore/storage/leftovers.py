"""What killed writers left of work that is done: replacements to finish, folders and names to drop.

Everything happens under the shard's claim, so that no live writer loses anything.
"""

import contextlib
import re
from pathlib import Path

from hsstore.errors import ClaimedByAnother
from hsstore.model import keys
from hsstore.storage.claim import Claim, claimed
from hsstore.storage.commit import pending_intents, replay_intents, staged_folders
from hsstore.storage.journal import read_journal
from hsstore.storage.stage import fence
from hsstore.storage.store import Store

_PUBLISHED = (keys.COMMIT, keys.INTENT, keys.MANIFEST)
_TEMPORARY = re.compile(r"\.(\d{8})-.*")


def clear_leftovers(store: Store) -> None:
    """Finish decided replacements, then remove what is of no use beside a committed generation.

    Shards that a live writer holds are passed over; work that is not committed yet stays.
    """
    for shard in sorted(_shards(store)):
        with (
            contextlib.suppress(ClaimedByAnother),
            claimed(store.filesystem, store.root, store.identity.uuid, shard) as claim,
        ):
            replay_intents(store.filesystem, store.root, store.identity.geometry, shard)
            _remove_staged(store, shard, claim)
            _remove_temporaries(store, shard)


def _shards(store: Store) -> set[int]:
    """Shards with an intent, a temporary name, or a folder or claim beside their marker."""
    committed, names = store.committed(), store.filesystem.names
    stages = map(keys.read_stage, names(store.root / keys.STAGE))
    claims = map(keys.read_claim, names(store.root / keys.CLAIM))
    shards = {found[0] for found in (*stages, *claims) if found and found[0] in committed}
    shards |= {version.shard for version in pending_intents(store.filesystem, store.root)}
    for folder in _PUBLISHED:
        temporaries = map(_TEMPORARY.fullmatch, names(store.root / folder))
        shards |= {int(found[1]) for found in temporaries if found}
    return shards


def _remove_staged(store: Store, shard: int, claim: Claim) -> None:
    found = store.committed().get(shard)
    folders = staged_folders(store.filesystem, store.root, shard)
    if found is None or any(_generation(store, f) > found[0].generation for f in folders):
        return
    store.filesystem.sync_folder(store.root / keys.COMMIT)
    fence(store.filesystem, store.root, shard, claim)
    for folder in staged_folders(store.filesystem, store.root, shard):
        store.filesystem.remove_folder(folder)


def _generation(store: Store, folder: Path) -> int:
    """The generation that a staging folder has work for, 0 for none."""
    try:
        return read_journal(store.filesystem.read(folder / keys.STAGED_JOURNAL)).generation or 0
    except FileNotFoundError:
        return 0


def _remove_temporaries(store: Store, shard: int) -> None:
    for folder in _PUBLISHED:
        for name in store.filesystem.names(store.root / folder):
            if (found := _TEMPORARY.fullmatch(name)) and int(found[1]) == shard:
                store.filesystem.unlink(store.root / folder / name)
