"""A shard file in place without its commit marker: finish the commit, or set the file aside.

That is what a crash between the last two steps of a commit leaves, and what a lost marker looks
like; of a replacement whose intent is lost too, the marker of an older generation is there. The
caller holds the shard's claim.
"""

import contextlib
import stat
from collections.abc import Callable
from pathlib import Path

import xxhash

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.model import keys
from hsstore.model.document import seal, unseal
from hsstore.model.manifest import KIND, Manifest
from hsstore.model.marker import Marker
from hsstore.storage.claim import Claim
from hsstore.storage.commit import committed_versions, overtaken, remove_superseded
from hsstore.storage.filesystem import NO_PLAIN_FILE
from hsstore.storage.shard_file import encode_index
from hsstore.storage.stage import earlier_folders
from hsstore.storage.store import Store
from hsstore.storage.writer import chunks_are_whole


def roll_forward(store: Store, claim: Claim, *, known: Marker | None = None) -> Marker | None:
    """Commit the shard file that is in place, if a manifest proves every byte of it.

    If it is the manifest that ``known`` names, the marker of another copy, that is published.
    Where an older generation is committed, only later ones are tried, and it is superseded.
    Otherwise None is returned; where nothing is committed, what is in place, if anything, is kept
    in quarantine/, and a plain file stays in place too, for a commit to replace. ClaimedByAnother
    where the claim was lost. OSError where the file or a manifest cannot be read: that proves
    nothing.
    """
    path = store.root / keys.shard_file(claim.shard)
    if not store.filesystem.exists(path):
        return None
    found = committed_versions(store.filesystem, store.root, only=claim.shard)
    committed = found.get(claim.shard)
    for manifest, raw in valid_manifests(store, claim.shard, skip=_is_absent):
        if committed and manifest.version <= committed[0]:
            return None
        if is_whole(store, path, manifest):
            marker = Marker.of(manifest, xxhash.xxh3_128_hexdigest(raw))
            if known and known.manifest_xxh3_128 == marker.manifest_xxh3_128:
                marker = known
            return _supersede(store, marker, claim) if committed else _publish(store, marker, claim)
    if not committed:
        _set_aside(store, claim, path)
    return None


def provable(store: Store, shard: int) -> Manifest | None:
    """The manifest that proves the shard file in place, if there is one; nothing is written."""
    path = store.root / keys.shard_file(shard)
    found = (m for m, _ in valid_manifests(store, shard) if is_whole(store, path, m))
    return next(found, None)


def valid_manifests(
    store: Store, shard: int, *, skip: Callable[[OSError], bool] = lambda _: True
) -> list[tuple[Manifest, bytes]]:
    """The valid manifests of a shard, newest generation first.

    Those that give an error to ``skip`` are left out; any other is raised.
    """
    found: list[tuple[Manifest, bytes]] = []
    for name in keys.of_shard(store.filesystem.names(store.root / keys.MANIFEST), shard):
        version = keys.read_manifest(name)
        if version is None or version[0].shard != shard:
            continue
        path = store.root / keys.MANIFEST / name
        try:
            raw = store.filesystem.read(path)
        except OSError as error:
            if skip(error):
                continue
            raise
        with contextlib.suppress(InvalidDocument, UnsupportedFormat):
            manifest = Manifest.from_document(unseal(raw, KIND, place=str(path)), place=str(path))
            if manifest.store == store.identity.uuid and manifest.version == version[0]:
                found.append((manifest, raw))
    return sorted(found, key=lambda f: f[0].version, reverse=True)


def is_whole(store: Store, path: Path, manifest: Manifest) -> bool:
    """Whether a shard file, read past the page cache, is what a manifest says. Raises OSError."""
    filesystem, geometry = store.filesystem, store.identity.geometry
    try:
        with filesystem.opened(path) as fd:
            if filesystem.size(fd) != manifest.data_bytes:
                return False
            filesystem.forget_cached(fd)
            index = bytearray(geometry.index_bytes)
            filesystem.read_at(fd, index, manifest.data_bytes - len(index), path)
            if bytes(index) != encode_index(manifest.chunks, geometry):
                return False
            return chunks_are_whole(filesystem, fd, path, manifest.chunks)
    except IndexError:
        return False
    except OSError as error:
        if _is_absent(error):
            return False
        raise


def _is_absent(error: OSError) -> bool:
    """Whether an error says what is there, not that it cannot be told now."""
    nothing = isinstance(error, FileNotFoundError | NotADirectoryError)
    return nothing or error.errno in NO_PLAIN_FILE


def _supersede(store: Store, marker: Marker, claim: Claim) -> Marker:
    """Publish the marker of a later generation out of the own staging folder.

    Whoever has been overtaken can publish nothing: a successor may be about to give the same
    generation another file.
    """
    within = store.root / keys.stage(claim.shard, claim.writer)
    with contextlib.ExitStack() as after:
        store.filesystem.make_folder(within)
        after.callback(store.filesystem.remove_folder, within)
        # A takeover before this found no folder to rename; a later one will.
        claim.verify()
        _publish(store, marker, claim, within=within)
    remove_superseded(store.filesystem, store.root, marker.version)
    return marker


def _publish(store: Store, marker: Marker, claim: Claim, *, within: Path | None = None) -> Marker:
    # Who linked them may have been killed before these syncs.
    path = store.root / keys.shard_file(marker.version.shard)
    store.filesystem.make_folders(path.parent, below=store.root)
    store.filesystem.sync_folder(path.parent)
    store.filesystem.sync_folder(store.root / keys.MANIFEST)
    try:
        document = seal(marker.to_document())
        store.filesystem.publish(store.root / marker.name, document, within=within)
    except FileExistsError:
        raise overtaken(claim.shard) from None
    for folder in earlier_folders(store.filesystem, store.root, claim):
        store.filesystem.remove_folder(folder)
    return marker


def _set_aside(store: Store, claim: Claim, path: Path) -> None:
    """Keep what is in place under a second name: if we have stalled, it may be committed by now."""
    filesystem = store.filesystem
    status = filesystem.status(path)
    target = store.root / keys.quarantined_file(claim.shard, status.st_ino)
    if stat.S_ISREG(status.st_mode):
        # The name of a file that is there already is that of this very one.
        with contextlib.suppress(FileExistsError):
            filesystem.link(path, target)
    else:
        claim.verify()
        filesystem.rename(path, target)
        filesystem.sync_folder(path.parent)
    filesystem.sync_folder(target.parent)
