"""Reading files of a store without trusting that they are files."""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from hsstore.storage.filesystem import Filesystem

State = Literal["missing", "damaged", "unreadable"]


class Trouble(Exception):
    """A file that cannot be had: ``state`` says in which way, ``detail`` in words."""

    def __init__(self, state: State, detail: str) -> None:
        super().__init__(detail)
        self.state = state
        self.detail = detail


def plain_status(filesystem: Filesystem, root: Path, name: str) -> os.stat_result:
    """The status of a plain file that is reached through real folders only, or Trouble."""
    path = root
    with translated():
        for part in Path(name).parts:
            path /= part
            status = filesystem.status(path)
            if path == root / name and stat.S_ISREG(status.st_mode):
                return status
            if path == root / name or not stat.S_ISDIR(status.st_mode):
                raise Trouble("damaged", f"{path.relative_to(root)} is {_what(status.st_mode)}")
    raise Trouble("missing", "no name")


def read_plain(filesystem: Filesystem, root: Path, name: str) -> bytes:
    """All bytes of a plain file, or Trouble."""
    plain_status(filesystem, root, name)
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
