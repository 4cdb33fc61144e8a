"""Taking over a claimed shard, and opening its staging folder with what earlier writers left there.

Renaming an earlier writer's folder fences it: all it could still publish goes through that
folder's name. Its file is written on only where certainly nobody has it open and nothing else
names it; otherwise the samples in it are verified and copied.
"""

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from hsstore.model import keys
from hsstore.model.identity import StoreIdentity
from hsstore.model.keys import ShardVersion
from hsstore.storage.claim import Claim, read_holder
from hsstore.storage.commit import committed_versions, replay_intents, staged_folders
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.journal import Journal
from hsstore.storage.staged_files import staged_journal, strange
from hsstore.storage.store import Store
from hsstore.storage.writer import ShardWriter, verified_chunks


def take_over(store: Store, claim: Claim) -> tuple[ShardVersion, bool] | None:
    """What every holder of a claim does first; the version of the shard that is committed then.

    With it comes whether samples are absent in that version; None where nothing is committed.
    In this order: earlier writers are fenced, what they decided is finished, what nobody can go on
    with is set aside, the markers are read. Raises StoreError for a decided replacement that cannot
    be finished.
    """
    fenced = fence(store.filesystem, store.root, claim)
    replay_intents(store.filesystem, store.root, store.identity, claim.shard)
    set_strange_aside(store, claim, fenced)
    found = committed_versions(store.filesystem, store.root, only=claim.shard)
    return found.get(claim.shard)


def fence(filesystem: Filesystem, root: Path, claim: Claim) -> list[Path]:
    """Rename the staging folders of a shard's earlier writers, so that they can publish no more.

    Returns where they are now.
    """
    fenced = []
    for path in earlier_folders(filesystem, root, claim):
        # Gone if its writer was alive and has finished its commit, or if nothing in it is needed.
        with contextlib.suppress(FileNotFoundError):
            fenced.append(fence_folder(filesystem, path))
    return fenced


def set_strange_aside(store: Store, claim: Claim, fenced: Iterable[Path]) -> list[str]:
    """Move fenced folders with a link, folder or pipe in them into quarantine/; what each was.

    Only once all that was decided is finished: an intent may need the file of such a folder.
    """
    filesystem, aside = store.filesystem, []
    for folder in fenced:
        if found := strange(filesystem, folder):
            place = keys.quarantined_stage(claim.shard, filesystem.status(folder).st_ino)
            claim.verify()
            # Nothing relies on where it is after a power cut, so nothing is synced.
            filesystem.rename(folder, store.root / place)
            names = ", ".join(path.name for path in found)
            aside.append(f"shard {claim.shard}: {folder.name} is set aside as {place}: "
                         f"no plain file is {names}")  # fmt: skip
    return aside


def fence_folder(filesystem: Filesystem, path: Path) -> Path:
    """Rename one staging folder, unless that was done before; what it is called from then on."""
    found = keys.read_stage(path.name)
    if found is None or keys.is_fenced(path.name):
        return path
    fenced = path.parents[1] / keys.fenced(*found, secrets.token_hex(4))
    filesystem.rename(path, fenced)
    return fenced


def earlier_folders(filesystem: Filesystem, root: Path, claim: Claim) -> list[Path]:
    """The staging folders of a shard's earlier writers; ClaimedByAnother if there is a later one.

    Listed before the claim is verified: whoever took it over meanwhile, while we were stalled, had
    no folder then, so that nothing of theirs is among these.
    """
    own = root / keys.stage(claim.shard, claim.writer)
    folders = [f for f in staged_folders(filesystem, root, claim.shard) if f != own]
    if folders:
        claim.verify()
    return folders


@contextlib.contextmanager
def staging(
    store: Store, version: ShardVersion, claim: Claim, *, named: str | None = None
) -> Iterator[ShardWriter]:
    """A writer over the claim holder's staging folder, for a with block, after ``take_over``.

    Journalled work of predecessors on the same generation is kept, and what is journalled in the
    block is kept whatever ends it. ``named`` is the writer that journal, manifest and marker name,
    where that is not the claim's: a copy bears the name of what it is a copy of.
    """
    writer = open_stage(store.filesystem, store.root, store.identity, version, claim, named=named)
    try:
        yield writer
    except BaseException:
        # The first error is the one to tell; what can still be kept is kept.
        with contextlib.suppress(OSError):
            writer.close()
        raise
    else:
        writer.close()


def open_stage(
    filesystem: Filesystem,
    root: Path,
    identity: StoreIdentity,
    version: ShardVersion,
    claim: Claim,
    *,
    named: str | None = None,
) -> ShardWriter:
    """The writer of ``staging``, to be closed by the caller."""
    folder = root / keys.stage(version.shard, claim.writer)
    fence(filesystem, root, claim)
    for path in earlier_folders(filesystem, root, claim):
        if not filesystem.exists(folder) and _may_continue(filesystem, path, identity, version):
            with contextlib.suppress(FileNotFoundError):
                filesystem.rename(path, folder)
    filesystem.make_folder(folder)
    filesystem.replace(folder / keys.STAGED_HOLDER, claim.document)
    filesystem.sync_folder(root / keys.STAGE)
    writer = ShardWriter(filesystem, folder, identity, version, named or claim.writer)
    try:
        writer.verify_journalled()
        for path in earlier_folders(filesystem, root, claim):
            _salvage(filesystem, path, identity, writer)
            # A successor reads either this folder or, since it fences it, the copy in ours.
            claim.verify()
            filesystem.remove_folder(path)
    except BaseException:
        with contextlib.suppress(OSError):
            writer.close()
        raise
    return writer


def _may_continue(
    filesystem: Filesystem, folder: Path, identity: StoreIdentity, version: ShardVersion
) -> bool:
    """Whether a folder's file is of this generation, nobody's, and nowhere else in the store."""
    holder_path = folder / keys.STAGED_HOLDER
    if filesystem.exists(holder_path):
        holder = read_holder(filesystem, holder_path)
        if holder is None or not holder.provably_dead():
            return False
    try:
        alone = filesystem.status(folder / keys.STAGED_DATA).st_nlink == 1
    except FileNotFoundError:
        return False
    return alone and _is_of(staged_journal(filesystem, folder), identity, version)


def _is_of(journal: Journal, identity: StoreIdentity, version: ShardVersion) -> bool:
    found = (journal.store, journal.shard, journal.generation)
    return found == (identity.uuid, version.shard, version.generation)


def _salvage(
    filesystem: Filesystem, folder: Path, identity: StoreIdentity, writer: ShardWriter
) -> None:
    """Copy the verified samples of a fenced folder that the writer lacks, durably."""
    journal, path = staged_journal(filesystem, folder), folder / keys.STAGED_DATA
    wanted = sorted(journal.samples.keys() - writer.journal.settled())
    if wanted and _is_of(journal, identity, writer.version):
        with contextlib.suppress(FileNotFoundError), filesystem.opened(path) as fd:
            filesystem.forget_cached(fd)
            for number in wanted:
                verified = verified_chunks(filesystem, fd, path, journal.chunks[number])
                if verified is not None:
                    sample = journal.samples[number]
                    writer.copy(sample, journal.origins[sample.origin], verified)
        writer.sync()
