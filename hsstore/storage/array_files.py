"""Writing the files of ``states.zarr`` other than shard files: new ones, or in place of others."""

import contextlib
import os
import secrets
from pathlib import Path

from hsstore.storage.filesystem import Filesystem
from hsstore.storage.zarr_arrays import ArrayChunk


def write_chunk(filesystem: Filesystem, path: Path, chunk: ArrayChunk) -> None:
    """Write a new file and sync it; its folder's entry is left to the caller."""
    with filesystem.opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd:
        filesystem.write_at(fd, chunk.data, 0, path)
        filesystem.truncate(fd, chunk.size, path)
        filesystem.sync(fd, path)


def replace_chunk(filesystem: Filesystem, root: Path, chunk: ArrayChunk) -> None:
    """Put a file in its place in a store, durably: whoever looks sees the old one or the new."""
    path = root / chunk.key
    filesystem.make_folders(path.parent, below=root)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        write_chunk(filesystem, temporary, chunk)
        filesystem.rename(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            filesystem.unlink(temporary)
        raise
    filesystem.sync_folder(path.parent)
