"""What killed writers left of work that is done: replacements to finish, folders and names to drop.

Everything happens under the shard's claim, so that no live writer loses anything.
"""

import contextlib
from pathlib import Path

from hsstore.errors import ClaimedByAnother, StoreError
from hsstore.model import keys
from hsstore.model.keys import ShardVersion
from hsstore.model.progress import Progress
from hsstore.storage.catch_up import catch_up, planned, reached
from hsstore.storage.claim import Claim, claimed
from hsstore.storage.commit import pending_intents
from hsstore.storage.growing import growing, is_begun
from hsstore.storage.stage import earlier_folders, take_over
from hsstore.storage.staged_files import staged_journal
from hsstore.storage.store import Store

_PUBLISHED = (keys.COMMIT, keys.INTENT, keys.MANIFEST)


def clear_leftovers(store: Store, progress: Progress) -> None:
    """Finish what was decided, then remove what is of no use beside a committed generation.

    Shards that a live writer holds are passed over, and a shard whose leftovers cannot be cleared
    is noted; work that is not committed yet stays.
    """
    try:
        finish_growth(store, progress)
    except StoreError as error:
        progress.note(str(error))
    for shard in sorted(_shards(store)):
        try:
            with claimed(store.filesystem, store.root, store.identity.uuid, shard) as claim:
                _clear(store, claim)
        except ClaimedByAnother:
            continue
        except StoreError as error:
            progress.note(str(error))


def finish_growth(store: Store, progress: Progress) -> bool:
    """Have the arrays follow the newest plan, and drop what no plan was made of; whether any did.

    Nothing is done while another process grows the store: it does so itself. Raises StoreError
    where the arrays are as no plan says, OSError.
    """
    secure_plan(store)
    grown = store.plan.generation > 0
    if not is_begun(store) and not (grown and reached(store) != planned(store)):
        return False
    with contextlib.suppress(ClaimedByAnother), growing(store) as held:
        return catch_up(held.store, progress, held.verify)
    return False


def secure_plan(store: Store) -> None:
    """Make the newest plan durable, before anything goes beyond the one that it extends.

    Whoever published it may be alive and not have come to that yet. Raises OSError.
    """
    if store.plan.generation > 0:
        store.filesystem.sync_folder(store.root / keys.PLAN)


def _clear(store: Store, claim: Claim) -> None:
    committed = take_over(store, claim)
    if committed is not None:
        _remove_staged(store, committed[0], claim)
    _remove_temporaries(store, claim)


def _shards(store: Store) -> set[int]:
    """Shards with an intent, a temporary name, or a folder or claim beside their marker."""
    committed, names = store.committed(), store.filesystem.names
    claim_names = names(store.root / keys.CLAIM)
    stages = map(keys.read_stage, names(store.root / keys.STAGE))
    claims = map(keys.read_claim, claim_names)
    begun = {found[0] for found in (*stages, *claims) if found}
    # Those of other shards go when the shard is claimed.
    begun |= {shard for shard in map(keys.read_temporary, claim_names) if shard is not None}
    shards = begun & committed.keys()
    shards |= {version.shard for version in pending_intents(store.filesystem, store.root)}
    for folder in _PUBLISHED:
        temporaries = map(keys.read_temporary, names(store.root / folder))
        shards |= {shard for shard in temporaries if shard is not None}
    return shards


def _remove_staged(store: Store, committed: ShardVersion, claim: Claim) -> None:
    store.filesystem.sync_folder(store.root / keys.COMMIT)
    for folder in earlier_folders(store.filesystem, store.root, claim):
        if _generation(store, folder) <= committed.generation:
            store.filesystem.remove_folder(folder)


def _generation(store: Store, folder: Path) -> int:
    """The generation that a staging folder has work for, 0 for none."""
    return staged_journal(store.filesystem, folder).generation or 0


def _remove_temporaries(store: Store, claim: Claim) -> None:
    found = [
        store.root / folder / name
        for folder in _PUBLISHED
        for name in store.filesystem.names(store.root / folder)
        if keys.read_temporary(name) == claim.shard
    ]
    if found:
        # After the listing: none of them is a successor's then.
        claim.verify()
    for path in found:
        with contextlib.suppress(FileNotFoundError):
            store.filesystem.unlink(path)
