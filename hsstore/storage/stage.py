"""Opening the staging folder of a claimed shard, with what earlier writers left there.

Renaming an earlier writer's folder fences it: all it could still publish goes through that
folder's name. Its file is written on only where its holder is certainly gone; otherwise the samples
in it are verified and copied, since a stalled process may still hold the file open.
"""

import contextlib
import secrets
from pathlib import Path

from hsstore.model import keys
from hsstore.model.identity import StoreIdentity
from hsstore.model.keys import ShardVersion
from hsstore.storage.claim import Claim, read_holder
from hsstore.storage.commit import overtaken, replay_intents, staged_folders
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.journal import read_journal
from hsstore.storage.writer import ShardWriter, verified_chunks


def open_stage(filesystem: Filesystem, root: Path, identity: StoreIdentity, version: ShardVersion,
               claim: Claim) -> ShardWriter:  # fmt: skip
    """A writer over the claim holder's staging folder; journalled work of predecessors is kept.

    Intents of the shard must have been replayed before. ClaimedByAnother where a predecessor that
    was still alive decided a replacement in its last moment: it is finished, and stands.
    """
    folder = root / keys.stage(version.shard, claim.writer)
    left = fence(filesystem, root, version.shard, claim)
    if replay_intents(filesystem, root, identity.geometry, version.shard):
        raise overtaken(version.shard)
    filesystem.make_folder(folder)
    filesystem.replace(folder / keys.STAGED_HOLDER, claim.document)
    filesystem.sync_folder(root / keys.STAGE)
    writer = ShardWriter(filesystem, folder, identity, version, claim.writer)
    try:
        writer.verify_journalled()
        for path in left:
            _salvage(filesystem, path, writer)
    except BaseException:
        with contextlib.suppress(OSError):
            writer.close()
        raise
    return writer


def fence(filesystem: Filesystem, root: Path, shard: int, claim: Claim) -> list[Path]:
    """Rename the staging folders of a shard's earlier writers, so that they can publish no more.

    One that can be continued becomes the claim holder's own; the new names of the others.
    """
    folder = root / keys.stage(shard, claim.writer)
    fenced = []
    for path in staged_folders(filesystem, root, shard):
        if path == folder:
            continue
        if not filesystem.exists(folder) and _is_let_go(filesystem, path):
            filesystem.rename(path, folder)
        else:
            fenced.append(root / keys.stage(shard, secrets.token_hex(8)))
            filesystem.rename(path, fenced[-1])
    return fenced


def _is_let_go(filesystem: Filesystem, folder: Path) -> bool:
    """Whether certainly nobody has a folder's file open: closed in order, or the holder is dead."""
    path = folder / keys.STAGED_HOLDER
    if not filesystem.exists(path):
        return True
    holder = read_holder(filesystem, path)
    return holder is not None and holder.provably_dead()


def _salvage(filesystem: Filesystem, folder: Path, writer: ShardWriter) -> None:
    """Copy the verified samples of a fenced folder that the writer lacks, then remove it."""
    with contextlib.suppress(FileNotFoundError):
        journal = read_journal(filesystem.read(folder / keys.STAGED_JOURNAL))
        path = folder / keys.STAGED_DATA
        same = journal.generation == writer.version.generation
        with filesystem.opened(path) as fd:
            filesystem.forget_cached(fd)
            for number in sorted(journal.samples.keys() - writer.journal.settled()) if same else ():
                verified = verified_chunks(filesystem, fd, path, journal.chunks[number])
                if verified is not None:
                    sample = journal.samples[number]
                    writer.copy(sample, journal.origins[sample.origin], verified)
        writer.sync()
    filesystem.remove_folder(folder)
