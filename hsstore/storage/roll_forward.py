"""A shard file in place without a commit marker: finish the commit, or set the file aside.

That is what a crash between the last two steps of a commit leaves, and what a lost marker looks
like. The caller holds the shard's claim.
"""

import contextlib
from pathlib import Path

import xxhash

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.model import keys
from hsstore.model.document import seal, unseal
from hsstore.model.manifest import KIND, Manifest
from hsstore.model.marker import Marker
from hsstore.storage.commit import staged_folders
from hsstore.storage.shard_file import encode_index
from hsstore.storage.store import Store
from hsstore.storage.writer import chunks_are_whole

# Errors that say what is there, not that it cannot be told now.
_ABSENT = (FileNotFoundError, IsADirectoryError, NotADirectoryError)


def roll_forward(store: Store, shard: int) -> Marker | None:
    """Commit the shard file that is in place, if a manifest proves every byte of it.

    Otherwise the file, if any, goes to quarantine/ and None is returned. OSError where the file or
    a manifest cannot be read: that proves nothing, and the file stays where it is.
    """
    path = store.root / keys.shard_file(shard)
    if not store.filesystem.exists(path):
        return None
    for manifest, raw in valid_manifests(store, shard, unreadable=_ABSENT):
        if _is_whole(store, path, manifest):
            return _publish(store, manifest, raw)
    _set_aside(store, shard, path)
    return None


def provable(store: Store, shard: int) -> Manifest | None:
    """The manifest that proves the shard file in place, if there is one; nothing is written."""
    path = store.root / keys.shard_file(shard)
    found = (m for m, _ in valid_manifests(store, shard) if _is_whole(store, path, m))
    return next(found, None)


def valid_manifests(
    store: Store, shard: int, *, unreadable: tuple[type[OSError], ...] = (OSError,)
) -> list[tuple[Manifest, bytes]]:
    """The valid manifests of a shard, newest generation first.

    Those that give one of the ``unreadable`` errors are left out.
    """
    found: list[tuple[Manifest, bytes]] = []
    for name in store.filesystem.names(store.root / keys.MANIFEST):
        version = keys.read_manifest(name)
        if version is None or version[0].shard != shard:
            continue
        path = store.root / keys.MANIFEST / name
        with contextlib.suppress(InvalidDocument, UnsupportedFormat, *unreadable):
            raw = store.filesystem.read(path)
            manifest = Manifest.from_document(unseal(raw, KIND, place=str(path)), place=str(path))
            if manifest.store == store.identity.uuid and manifest.version == version[0]:
                found.append((manifest, raw))
    return sorted(found, key=lambda f: f[0].version, reverse=True)


def _is_whole(store: Store, path: Path, manifest: Manifest) -> bool:
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
    except (*_ABSENT, IndexError):
        return False


def _publish(store: Store, manifest: Manifest, raw: bytes) -> Marker:
    marker = Marker.of(manifest, xxhash.xxh3_128_hexdigest(raw))
    # Who linked them may have been killed before these syncs.
    path = store.root / keys.shard_file(manifest.version.shard)
    store.filesystem.make_folders(path.parent, below=store.root)
    store.filesystem.sync_folder(path.parent)
    store.filesystem.sync_folder(store.root / keys.MANIFEST)
    store.filesystem.publish(store.root / marker.name, seal(marker.to_document()))
    for folder in staged_folders(store.filesystem, store.root, manifest.version.shard):
        store.filesystem.remove_folder(folder)
    return marker


def _set_aside(store: Store, shard: int, path: Path) -> None:
    status = store.filesystem.status(path)
    target = store.root / keys.quarantined_file(shard, status.st_ino)
    # Of a rename to another folder, a power cut may keep the going and lose the coming.
    store.filesystem.link(path, target)
    store.filesystem.sync_folder(target.parent)
    store.filesystem.unlink(path)
    store.filesystem.sync_folder(path.parent)
