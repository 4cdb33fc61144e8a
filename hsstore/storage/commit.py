"""Making a staged shard exist, and replacing one that does: the commit protocol.

The numbered steps are those of docs/format.md. Every publication goes through the staging folder,
so that a writer whose folder was renamed away can publish nothing more.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import xxhash

from hsstore.errors import ClaimedByAnother, StoreError
from hsstore.model import keys
from hsstore.model.document import seal, unseal
from hsstore.model.geometry import Geometry
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import COMMIT_KIND, INTENT_KIND, Marker
from hsstore.storage.claim import Claim
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.writer import StagedShard


def committed_versions(filesystem: Filesystem, root: Path) -> dict[int, tuple[ShardVersion, bool]]:
    """The highest committed generation of every shard and whether samples are absent in it.

    One listing; no marker is opened.
    """
    newest: dict[int, tuple[ShardVersion, bool]] = {}
    for name in filesystem.names(root / keys.COMMIT):
        found = keys.read_marker(name)
        if found and (found[0].shard not in newest or found[0] >= newest[found[0].shard][0]):
            newest[found[0].shard] = found
    return newest


def read_marker(filesystem: Filesystem, path: Path, kind: str = COMMIT_KIND) -> Marker:
    """A commit marker or an intent; InvalidDocument where it is not whole."""
    place = str(path)
    return Marker.from_document(unseal(filesystem.read(path), kind, place=place), place=place)


def pending_intents(filesystem: Filesystem, root: Path) -> list[ShardVersion]:
    """The replacements that were decided but not finished."""
    versions = map(keys.read_intent, filesystem.names(root / keys.INTENT))
    return [version for version in versions if version is not None]


def staged_folders(filesystem: Filesystem, root: Path, shard: int) -> list[Path]:
    """The staging folders of a shard, whoever made them."""
    names = ((name, keys.read_stage(name)) for name in filesystem.names(root / keys.STAGE))
    return [root / keys.STAGE / name for name, stage in names if stage and stage[0] == shard]


def commit_new(filesystem: Filesystem, root: Path, staged: StagedShard, claim: Claim) -> None:
    """Commit the first generation of a shard.

    ClaimedByAnother where another writer took over or came first; nothing is lost then.
    """
    with _fenced(filesystem, staged):
        _commit_new(filesystem, root, staged, claim)


def _commit_new(filesystem: Filesystem, root: Path, staged: StagedShard, claim: Claim) -> None:
    marker, within = staged.marker, staged.folder
    claim.verify()
    if marker.version.shard in committed_versions(filesystem, root):
        raise overtaken(marker.version.shard)
    filesystem.publish(root / marker.manifest_name, staged.manifest, within=within)
    target = root / keys.shard_file(marker.version.shard)
    filesystem.make_folders(target.parent, below=root)
    _link_once(filesystem, within / keys.STAGED_DATA, target)
    filesystem.sync_folder(target.parent)
    try:
        filesystem.publish(root / marker.name, seal(marker.to_document()), within=within)
    except FileExistsError:
        # Somebody may have finished this very commit for us while we were stalled.
        if read_marker(filesystem, root / marker.name).writer != marker.writer:
            raise overtaken(marker.version.shard) from None
        filesystem.sync_folder(root / keys.COMMIT)
    filesystem.remove_folder(within)


def commit_replacement(
    filesystem: Filesystem, root: Path, staged: StagedShard, claim: Claim, geometry: Geometry
) -> None:
    """Replace a committed shard by its next generation; publishing the intent decides it.

    ClaimedByAnother where another writer took over or came first.
    """
    marker, within = staged.marker, staged.folder
    with _fenced(filesystem, staged):
        claim.verify()
        shard, generation = marker.version.shard, marker.version.generation
        found = committed_versions(filesystem, root).get(shard)
        if found is None or found[0].generation != generation - 1:
            raise overtaken(shard)
        filesystem.publish(root / marker.manifest_name, staged.manifest, within=within)
        intent = root / keys.intent(marker.version)
        filesystem.publish(intent, seal(marker.to_document(INTENT_KIND)), within=within)
    finish_replacement(filesystem, root, marker, geometry)


def replay_intents(
    filesystem: Filesystem, root: Path, geometry: Geometry, shard: int | None = None
) -> list[ShardVersion]:
    """Finish every decided replacement (of one shard, or of all); the versions finished."""
    finished = [v for v in pending_intents(filesystem, root) if shard in (None, v.shard)]
    if finished:
        # Whoever published them may have been killed before this.
        filesystem.sync_folder(root / keys.INTENT)
    for version in finished:
        intent = read_marker(filesystem, root / keys.intent(version), INTENT_KIND)
        finish_replacement(filesystem, root, intent, geometry)
    return finished


def finish_replacement(
    filesystem: Filesystem, root: Path, marker: Marker, geometry: Geometry
) -> None:
    """The redo of an intent: every step may be repeated after a crash."""
    version = marker.version
    target = root / keys.shard_file(version.shard)
    stage = _stage_of(filesystem, root, marker, geometry)
    if stage is not None:
        filesystem.make_folders(target.parent, below=root)
        filesystem.rename(stage / keys.STAGED_DATA, target)
    elif not _is(filesystem, target, marker, geometry):
        raise StoreError(
            f"shard {version.shard}: a decided replacement has lost its staged file",
            place=str(root / keys.intent(version)),
            remedy=f"run: hsstore fsck {root}",
        )
    # Even if an earlier run did the rename or the marker: it may have been killed before the sync.
    filesystem.sync_folder(target.parent)
    left = stage or root / keys.stage(version.shard, marker.writer)
    within = left if filesystem.exists(left) else None
    try:
        filesystem.publish(root / marker.name, seal(marker.to_document()), within=within)
    except FileExistsError:
        filesystem.sync_folder(root / keys.COMMIT)
    _remove_superseded(filesystem, root, version)
    with contextlib.suppress(FileNotFoundError):
        filesystem.unlink(root / keys.intent(version))
    filesystem.sync_folder(root / keys.INTENT)
    filesystem.remove_folder(left)


@contextlib.contextmanager
def _fenced(filesystem: Filesystem, staged: StagedShard) -> Iterator[None]:
    """Name the reason when a takeover renamed the staging folder away under us."""
    try:
        yield
    except FileNotFoundError:
        if filesystem.exists(staged.folder):
            raise
        raise overtaken(staged.marker.version.shard) from None


def overtaken(shard: int) -> ClaimedByAnother:
    """What a writer is told whose shard somebody else committed."""
    return ClaimedByAnother(
        f"shard {shard} was committed by another writer meanwhile",
        remedy="run the same command again",
    )


def _link_once(filesystem: Filesystem, source: Path, target: Path) -> None:
    """Link, taking an earlier success of the same writer for what it is."""
    try:
        filesystem.link(source, target)
    except FileExistsError:
        if filesystem.status(source).st_ino != filesystem.status(target).st_ino:
            raise


def _stage_of(
    filesystem: Filesystem, root: Path, marker: Marker, geometry: Geometry
) -> Path | None:
    """The folder that still holds an intent's file; a takeover may have renamed it."""
    own = root / keys.stage(marker.version.shard, marker.writer)
    others = staged_folders(filesystem, root, marker.version.shard)
    # The writer's own folder first: another attempt at the shard may have the same index.
    for folder in (own, *others):
        if _is(filesystem, folder / keys.STAGED_DATA, marker, geometry):
            return folder
    return None


def _is(filesystem: Filesystem, target: Path, marker: Marker, geometry: Geometry) -> bool:
    """Whether a file is, by size and index, the one that a marker names."""
    try:
        with filesystem.opened(target) as fd:
            size = filesystem.size(fd)
            index = bytearray(geometry.index_bytes)
            filesystem.read_at(fd, index, max(size - len(index), 0), target)
    except FileNotFoundError:
        return False
    return size == marker.data_bytes and xxhash.xxh3_64_hexdigest(index) == marker.index_xxh3_64


def _remove_superseded(filesystem: Filesystem, root: Path, version: ShardVersion) -> None:
    """Remove markers, then manifests, of older generations of a shard."""
    for folder, read in ((keys.COMMIT, keys.read_marker), (keys.MANIFEST, keys.read_manifest)):
        for name in filesystem.names(root / folder):
            found = read(name)
            if found and found[0].shard == version.shard and found[0] < version:
                with contextlib.suppress(FileNotFoundError):
                    filesystem.unlink(root / folder / name)
