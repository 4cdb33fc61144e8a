"""A store under construction: a hidden folder beside its target, renamed into place when done.

The folder's hsstore.json is locked while its maker lives, which tells the leftover of a crash
from work in progress.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from hsstore.errors import OUT_OF_SPACE, StorageFailed, StoreExists
from hsstore.model import keys
from hsstore.storage.filesystem import Filesystem

# What says nothing about the abilities of a filesystem.
ELSEWHERE = OUT_OF_SPACE | {errno.EROFS, errno.EIO, errno.EACCES}


def free_target(path: Path, filesystem: Filesystem) -> Path:
    """The absolute path of a store to be; StoreExists or StorageFailed where none can be made."""
    try:
        target = path.resolve()
    except RuntimeError as error:  # a loop of symbolic links, before Python 3.13
        raise StorageFailed(str(error), place=str(path), remedy="choose another path") from None
    if not target.parent.is_dir():
        raise StorageFailed(
            "there is no such folder to create a store in",
            place=str(target.parent),
            remedy="make it first",
        )
    if target.is_mount():
        raise StorageFailed(
            "a mount point cannot become a store",
            place=str(target),
            remedy="choose a new name below it",
        )
    if filesystem.exists(target) and (not target.is_dir() or filesystem.names(target)):
        raise _taken(target)
    return target


@contextlib.contextmanager
def building(target: Path, identity: bytes, filesystem: Filesystem) -> Iterator[Path]:
    """A folder to build a store in, with its hsstore.json; gone at the end unless published.

    Removes what a killed create of the same store left. Raises StorageFailed on a filesystem
    that lacks what commits stand on.
    """
    _remove_leftovers(target, filesystem)
    root, held = _begun(target, identity, filesystem)
    with held:
        _probe(root, filesystem)
        yield root


def _begun(
    target: Path, identity: bytes, filesystem: Filesystem
) -> tuple[Path, contextlib.ExitStack]:
    """A folder with its hsstore.json, and what holds that locked and removes the folder at the end.

    Before it is locked another process may take it for abandoned, and remove it: then there is
    another.
    """
    while True:
        root = target.with_name(f".{target.name}.creating-{secrets.token_hex(4)}")
        root.mkdir()
        with contextlib.ExitStack() as stack:
            stack.callback(_discard, root)
            with contextlib.suppress(FileNotFoundError, BlockingIOError):
                _lock(root, identity, filesystem, stack)
                return root, stack.pop_all()


def _lock(root: Path, identity: bytes, filesystem: Filesystem, stack: contextlib.ExitStack) -> None:
    filesystem.write_new(root / keys.IDENTITY, identity)
    fd = stack.enter_context(filesystem.opened(root / keys.IDENTITY, os.O_RDWR))
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    filesystem.status(root / keys.IDENTITY)


def _discard(root: Path) -> None:
    # The error on its way is the one to see, not that of cleaning up behind it.
    with contextlib.suppress(OSError):
        _remove(root)


def publish(root: Path, target: Path, filesystem: Filesystem) -> None:
    """Give a finished store its name, durably; StoreExists where another was faster."""
    try:
        filesystem.rename(root, target)
    except OSError as error:
        if error.errno in {errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR}:
            raise _taken(target) from None
        raise
    filesystem.sync_folder(target.parent)


def _taken(target: Path) -> StoreExists:
    return StoreExists(
        "something is there already", place=str(target), remedy="choose another path or remove it"
    )


def _probe(root: Path, filesystem: Filesystem) -> None:
    """Refuse a filesystem that lacks an operation of the commit protocol, before it matters."""
    first, second, third = (root / f".probe-{n}" for n in range(3))
    filesystem.write_new(first, b"")
    steps: dict[str, Callable[[], None]] = {
        "hard links": lambda: filesystem.link(first, second),
        "rename": lambda: filesystem.rename(second, third),
        "syncing a folder": lambda: filesystem.sync_folder(root),
    }
    for ability, step in steps.items():
        try:
            step()
        except OSError as error:
            if error.errno in ELSEWHERE:
                raise
            raise StorageFailed(
                f"this filesystem has no {ability} ({error.strerror})",
                place=str(root.parent),
                remedy="choose one that has, such as ext4 or xfs",
            ) from error
    for probe in (first, third):
        filesystem.unlink(probe)


def abandoned(target: Path, filesystem: Filesystem) -> list[Path]:
    """Folders of creations of a store whose makers are gone; nothing is written. Raises OSError."""
    return [path for path in _leftovers(target, filesystem) if not _is_locked(path, filesystem)]


def remove_abandoned(leftover: Path, filesystem: Filesystem) -> None:
    """Remove the folder of a creation; OSError while its maker has it locked."""
    if not stat.S_ISDIR(filesystem.status(leftover).st_mode):
        return
    with contextlib.suppress(OSError):
        leftover.rmdir()
    try:
        with filesystem.opened(leftover / keys.IDENTITY, os.O_RDWR) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(leftover)
    except FileNotFoundError:
        # Its maker writes that file first and removes it last: a power cut lost it alone.
        if set(filesystem.names(leftover)) - {keys.IDENTITY} and not filesystem.exists(
            leftover / keys.IDENTITY
        ):
            _remove(leftover)


def _is_locked(leftover: Path, filesystem: Filesystem) -> bool:
    try:
        with filesystem.opened(leftover / keys.IDENTITY) as fd:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False


def _leftovers(target: Path, filesystem: Filesystem) -> list[Path]:
    pattern = re.compile(re.escape(f".{target.name}.creating-") + "[0-9a-f]{8}")
    return [target.parent / n for n in filesystem.names(target.parent) if pattern.fullmatch(n)]


def _remove_leftovers(target: Path, filesystem: Filesystem) -> None:
    for leftover in _leftovers(target, filesystem):
        # Another's, alive or gone meanwhile: not for us to remove, and no reason to fail.
        with contextlib.suppress(OSError):
            remove_abandoned(leftover, filesystem)


def _remove(root: Path) -> None:
    """Remove a folder, hsstore.json last: interrupted, it is still known for a leftover."""
    for child in root.iterdir():
        if child.name != keys.IDENTITY:
            shutil.rmtree(child, ignore_errors=True) if child.is_dir() else child.unlink()
    shutil.rmtree(root, ignore_errors=True)
