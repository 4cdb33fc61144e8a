"""What is in a staging folder, where anything may lie in place of its files.

Links are not followed, and what is no plain file is not opened.
"""

import contextlib
import stat
from pathlib import Path

from hsstore.model import keys
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.journal import Journal, read_journal

_GONE = (FileNotFoundError, NotADirectoryError)


def staged_journal(filesystem: Filesystem, folder: Path) -> Journal:
    """The journal of a staging folder; an empty one where no plain file has its name.

    Raises OSError.
    """
    path = folder / keys.STAGED_JOURNAL
    with contextlib.suppress(*_GONE):
        if stat.S_ISREG(filesystem.status(path).st_mode):
            return read_journal(filesystem.read(path))
    return Journal()


def strange(filesystem: Filesystem, folder: Path) -> list[Path]:
    """What makes that nobody can go on with a staging folder: all in it that is no plain file.

    It is the folder itself where that is none. Raises OSError.
    """
    with contextlib.suppress(*_GONE):
        if not stat.S_ISDIR(filesystem.status(folder).st_mode):
            return [folder]
        paths = [folder / name for name in filesystem.names(folder)]
        return [path for path in paths if _is_strange(filesystem, path)]
    return []


def _is_strange(filesystem: Filesystem, path: Path) -> bool:
    with contextlib.suppress(*_GONE):
        return not stat.S_ISREG(filesystem.status(path).st_mode)
    return False
