"""Reading files of a store without trusting that they are files."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hsstore.storage.filesystem import Filesystem

# All files of a folder of the format, or of an array, lie within so many.
SHARED_DEPTH = 3

State = Literal["missing", "damaged", "unreadable"]


class Trouble(Exception):
    """A file that cannot be had: ``state`` says in which way, ``detail`` in words."""

    def __init__(self, state: State, detail: str) -> None:
        super().__init__(detail)
        self.state = state
        self.detail = detail


class RealFolders:
    """Folders that many files lie in, and were seen to be real: not asked again by one run."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, Path] = {}

    def path(self, filesystem: Filesystem, root: Path, folder: str) -> Path:
        """The folder, or Trouble where it is none. Raises OSError."""
        path = self._known.get(folder)
        if path is None:
            path = self._known[folder] = _below(filesystem, root, root, folder)
        return path


def plain_status(
    filesystem: Filesystem, root: Path, name: str, folders: RealFolders | None = None
) -> os.stat_result:
    """The status of a plain file that is reached through real folders only, or Trouble."""
    *within, file = name.split("/")
    shared, own = "/".join(within[:SHARED_DEPTH]), "/".join(within[SHARED_DEPTH:])
    with translated():
        path = (folders or RealFolders()).path(filesystem, root, shared)
        status = filesystem.status(_below(filesystem, root, path, own) / file)
    if not stat.S_ISREG(status.st_mode):
        raise Trouble("damaged", f"{name} is {_what(status.st_mode)}")
    return status


def _below(filesystem: Filesystem, root: Path, path: Path, folder: str) -> Path:
    """A folder below ``path``, with real ones between, or Trouble."""
    for part in folder.split("/") if folder else ():
        path /= part
        mode = filesystem.status(path).st_mode
        if not stat.S_ISDIR(mode):
            raise Trouble("damaged", f"{path.relative_to(root)} is {_what(mode)}")
    return path


def read_plain(
    filesystem: Filesystem, root: Path, name: str, folders: RealFolders | None = None
) -> bytes:
    """All bytes of a plain file, or Trouble."""
    plain_status(filesystem, root, name, folders)
    with translated():
        return filesystem.read(root / name)


def names_in(filesystem: Filesystem, root: Path, folder: str) -> list[str]:
    """The names in a real folder; none where there is no such folder."""
    try:
        if stat.S_ISDIR(filesystem.status(root / folder).st_mode):
            return filesystem.names(root / folder)
    except OSError:
        pass
    return []


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turn the system's errors into Trouble."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise Trouble("missing", "there is no such file") from None
    except OSError as error:
        raise Trouble("unreadable", error.strerror or str(error)) from None


def _what(mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    if stat.S_ISDIR(mode):
        return "a folder"
    return "a file" if stat.S_ISREG(mode) else "a special file"
