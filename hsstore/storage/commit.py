"""Making a staged shard exist, and replacing one that does: the commit protocol.

The numbered steps are those of docs/format.md. Every publication goes through the staging folder,
so that a writer whose folder was renamed away can publish nothing more.
"""

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

import xxhash

from hsstore.errors import ClaimedByAnother, InvalidDocument, StoreError
from hsstore.model import commands, keys
from hsstore.model.document import seal, unseal
from hsstore.model.geometry import Geometry
from hsstore.model.identity import StoreIdentity
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import COMMIT_KIND, INTENT_KIND, Marker
from hsstore.storage.claim import Claim
from hsstore.storage.filesystem import NO_PLAIN_FILE, Filesystem
from hsstore.storage.staged_files import staged_journal, strange
from hsstore.storage.writer import StagedShard


def committed_versions(
    filesystem: Filesystem, root: Path, *, only: int | None = None
) -> dict[int, tuple[ShardVersion, bool]]:
    """The highest committed generation of every shard and whether samples are absent in it.

    One listing; no marker is opened. ``only`` is the one shard that is asked for.
    """
    newest: dict[int, tuple[ShardVersion, bool]] = {}
    names = filesystem.names(root / keys.COMMIT)
    for name in names if only is None else keys.of_shard(names, only):
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


def commit(
    filesystem: Filesystem,
    root: Path,
    staged: StagedShard,
    claim: Claim,
    identity: StoreIdentity,
    *,
    replaces: ShardVersion | None = None,
) -> None:
    """Commit a shard: by an intent over what is in place, and by a link where nothing is.

    Raises as ``commit_new`` and ``commit_replacement`` do.
    """
    target = root / keys.shard_file(staged.marker.version.shard)
    if replaces or filesystem.exists(target):
        commit_replacement(filesystem, root, staged, claim, identity, replaces=replaces)
    else:
        commit_new(filesystem, root, staged, claim)


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
    _publish_manifest(filesystem, root, staged)
    target = root / keys.shard_file(marker.version.shard)
    filesystem.make_folders(target.parent, below=root)
    try:
        filesystem.link(within / keys.STAGED_DATA, target)
    except FileExistsError:
        raise overtaken(marker.version.shard) from None
    filesystem.sync_folder(target.parent)
    try:
        filesystem.publish(root / marker.name, seal(marker.to_document()), within=within)
    except FileExistsError:
        # Somebody may have finished this very commit for us while we were stalled.
        if read_marker(filesystem, root / marker.name).writer != marker.writer:
            raise overtaken(marker.version.shard) from None
        filesystem.sync_folder(root / keys.COMMIT)
    filesystem.remove_folder(within)


def _publish_manifest(filesystem: Filesystem, root: Path, staged: StagedShard) -> None:
    """Publish the manifest; an earlier attempt at the same copy may have done that."""
    path = root / staged.marker.manifest_name
    try:
        filesystem.publish(path, staged.manifest, within=staged.folder)
    except FileExistsError:
        if filesystem.read(path) != staged.manifest:
            raise InvalidDocument(
                "another manifest has this name",
                place=str(path),
                remedy=f"run: {commands.hsstore('gc', root, '--apply')}",
            ) from None
        filesystem.sync_folder(path.parent)


def commit_replacement(
    filesystem: Filesystem,
    root: Path,
    staged: StagedShard,
    claim: Claim,
    identity: StoreIdentity,
    *,
    replaces: ShardVersion | None,
) -> None:
    """Replace what is in place of a shard; publishing the intent decides it.

    ``replaces`` is the committed version that the replacement was made from, None where there was
    no true marker. ClaimedByAnother where another writer took over or came first.
    """
    marker, within = staged.marker, staged.folder
    with _fenced(filesystem, staged):
        claim.verify()
        found = committed_versions(filesystem, root).get(marker.version.shard)
        committed = found[0] if found else None
        if committed != replaces or (committed is not None and marker.version <= committed):
            raise overtaken(marker.version.shard)
        _publish_manifest(filesystem, root, staged)
        intent = root / keys.intent(marker.version)
        try:
            filesystem.publish(intent, seal(marker.to_document(INTENT_KIND)), within=within)
        except FileExistsError:
            raise overtaken(marker.version.shard) from None
        # A rival with the same intent may have begun and ended since we looked; then its marker is
        # here, for an intent goes after that.
        found = committed_versions(filesystem, root).get(marker.version.shard)
        if found is not None and found[0] >= marker.version:
            _remove_intent(filesystem, root, marker.version)
            raise overtaken(marker.version.shard)
    # From here whoever holds the claim finishes it; a writer that lost it must not touch the file.
    claim.verify()
    with _fenced(filesystem, staged):
        _finish(filesystem, root, marker, identity.geometry)


def read_intent(
    filesystem: Filesystem, root: Path, identity: StoreIdentity, version: ShardVersion
) -> Marker:
    """An intent that decides something; InvalidDocument unless all that it names is whole."""
    path = root / keys.intent(version)
    with _plain("the intent is no plain file", path):
        intent = read_marker(filesystem, path, INTENT_KIND)
    if (intent.store, intent.version) != (identity.uuid, version):
        raise InvalidDocument("the intent is of another store or shard", place=str(path))
    try:
        with _plain("the intent names a manifest that is no plain file", path):
            manifest = filesystem.read(root / intent.manifest_name)
    except FileNotFoundError:
        raise InvalidDocument("the intent names a manifest that is gone", place=str(path)) from None
    if xxhash.xxh3_128_hexdigest(manifest) != intent.manifest_xxh3_128:
        raise InvalidDocument("the intent names another manifest", place=str(path))
    return intent


@contextlib.contextmanager
def _plain(otherwise: str, place: Path) -> Iterator[None]:
    """InvalidDocument where what is read is a link, a folder or a socket."""
    try:
        yield
    except OSError as error:
        if error.errno not in NO_PLAIN_FILE:
            raise
        raise InvalidDocument(otherwise, place=str(place)) from None


def replay_intents(
    filesystem: Filesystem, root: Path, identity: StoreIdentity, shard: int
) -> list[ShardVersion]:
    """Finish every decided replacement of a claimed shard; the versions finished.

    Raises InvalidDocument, StoreError for an intent that cannot be carried out; nothing that is
    committed was touched then.
    """
    decided = [v for v in pending_intents(filesystem, root) if v.shard == shard]
    for version in sorted(decided):
        replay_intent(filesystem, root, identity, version)
    return decided


def replay_intent(
    filesystem: Filesystem, root: Path, identity: StoreIdentity, version: ShardVersion
) -> None:
    """Finish one decided replacement; an intent older than what is committed is only removed."""
    # Whoever published it may have been killed before this.
    filesystem.sync_folder(root / keys.INTENT)
    found = committed_versions(filesystem, root).get(version.shard)
    if found is not None and found[0] > version:
        _remove_intent(filesystem, root, version)
        return
    try:
        intent = read_intent(filesystem, root, identity, version)
        _finish(filesystem, root, intent, identity.geometry)
    except FileNotFoundError:
        # Its writer was alive after all, and has finished it meanwhile.
        if filesystem.exists(root / keys.intent(version)):
            raise


def _finish(filesystem: Filesystem, root: Path, marker: Marker, geometry: Geometry) -> None:
    """The redo of an intent: every step may be repeated after a crash."""
    version = marker.version
    target = root / keys.shard_file(version.shard)
    stage = _stage_of(filesystem, root, marker, geometry)
    if stage is not None:
        filesystem.make_folders(target.parent, below=root)
        _rename_into_place(filesystem, stage, target)
    elif not is_file_of(filesystem, target, marker, geometry):
        raise StoreError(
            f"shard {version.shard}: a decided replacement has lost its staged file",
            place=str(root / keys.intent(version)),
            remedy=f"run: {commands.hsstore('fsck', root)}",
        )
    # Even if an earlier run did the rename or the marker: it may have been killed before the sync.
    filesystem.sync_folder(target.parent)
    try:
        filesystem.publish(root / marker.name, seal(marker.to_document()), within=stage)
    except FileExistsError:
        filesystem.sync_folder(root / keys.COMMIT)
    newest = committed_versions(filesystem, root)[version.shard][0]
    if newest > version:
        # A successor went on while we were stalled, and our marker came after its own.
        filesystem.sync_folder(root / keys.COMMIT)
    remove_superseded(filesystem, root, newest)
    _remove_intent(filesystem, root, version)
    for folder in _folders_of(filesystem, root, marker):
        # One with other things in it is for the holder of the claim to set aside.
        if not strange(filesystem, folder):
            filesystem.remove_folder(folder)


def _rename_into_place(filesystem: Filesystem, stage: Path, target: Path) -> None:
    """Rename a second name of the staged file, which stays where the intent needs it.

    Of a rename to another folder, a power cut may keep the going and lose the coming.
    """
    spare = stage / keys.STAGED_SPARE
    filesystem.link(stage / keys.STAGED_DATA, spare)
    filesystem.rename(spare, target)


def _remove_intent(filesystem: Filesystem, root: Path, version: ShardVersion) -> None:
    with contextlib.suppress(FileNotFoundError):
        filesystem.unlink(root / keys.intent(version))
    filesystem.sync_folder(root / keys.INTENT)


@contextlib.contextmanager
def _fenced(filesystem: Filesystem, staged: StagedShard) -> Iterator[None]:
    """Name the reason when a takeover renamed the staging folder away under us.

    What such a writer then finds, or misses, is its successor's work half done.
    """
    try:
        yield
    except (FileNotFoundError, StoreError):
        if filesystem.exists(staged.folder):
            raise
        raise overtaken(staged.marker.version.shard) from None


def overtaken(shard: int) -> ClaimedByAnother:
    """What a writer is told whose shard somebody else committed."""
    return ClaimedByAnother(
        f"shard {shard} was committed by another writer meanwhile",
        remedy="run the same command again",
    )


def _stage_of(
    filesystem: Filesystem, root: Path, marker: Marker, geometry: Geometry
) -> Path | None:
    """The folder that still holds an intent's file, fenced by a takeover or not."""
    for folder in _folders_of(filesystem, root, marker):
        if is_file_of(filesystem, folder / keys.STAGED_DATA, marker, geometry):
            return folder
    return None


def _folders_of(filesystem: Filesystem, root: Path, marker: Marker) -> list[Path]:
    """The staging folders of a marker's own writer: another's file may have the same index.

    The folder of a copy has a name of its own, and its journal that of the writer.
    """
    folders = staged_folders(filesystem, root, marker.version.shard)
    return [path for path in folders if marker.writer in _writers_of(filesystem, path)]


def _writers_of(filesystem: Filesystem, folder: Path) -> set[str]:
    """The writers that the name and the journal of a staging folder name."""
    found = keys.read_stage(folder.name)
    named = {found[1]} if found else set()
    return named | staged_journal(filesystem, folder).writers


def is_file_of(filesystem: Filesystem, target: Path, marker: Marker, geometry: Geometry) -> bool:
    """Whether a file is, by size and index, the one that a marker names; no link is followed."""
    index = bytearray(geometry.index_bytes)
    try:
        if not stat.S_ISREG(filesystem.status(target).st_mode):
            return False
        with filesystem.opened(target) as fd:
            size = filesystem.size(fd)
            filesystem.read_at(fd, index, max(size - len(index), 0), target)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return size == marker.data_bytes and xxhash.xxh3_64_hexdigest(index) == marker.index_xxh3_64


def remove_superseded(filesystem: Filesystem, root: Path, version: ShardVersion) -> None:
    """Remove markers, then manifests, of generations of a shard older than the committed one."""
    for folder, read in ((keys.COMMIT, keys.read_marker), (keys.MANIFEST, keys.read_manifest)):
        for name in filesystem.names(root / folder):
            found = read(name)
            if found and found[0].shard == version.shard and found[0] < version:
                with contextlib.suppress(FileNotFoundError):
                    filesystem.unlink(root / folder / name)
