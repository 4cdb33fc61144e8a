"""A file that is given up when the disk is full, so that what is done can still be told.

A journal line or a commit marker takes a few blocks. On a full disk the ballast has them.
"""

import contextlib
import os
from pathlib import Path

from hsstore.errors import OUT_OF_SPACE
from hsstore.model import keys
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.space import available

# The manifest of a shard of 2 GiB takes some 100 kB, its marker and a journal's tail less.
BALLAST_BYTES = 4 << 20
# Of a small disk, one part in so many.
LEAST_PART = 256


def keep(filesystem: Filesystem, root: Path) -> None:
    """Make the ballast of a store, unless there is one or the disk has no room for it.

    Raises OSError for what is no lack of space.
    """
    path = root / keys.BALLAST
    if filesystem.exists(path):
        return
    wanted = min(BALLAST_BYTES, available(root).total_bytes // LEAST_PART)
    try:
        # Bytes that no filesystem can compress or leave out.
        filesystem.write_new(path, os.urandom(wanted))
    except FileExistsError:
        return  # another extraction of this store was faster
    except OSError as error:
        release(filesystem, root)
        if error.errno not in OUT_OF_SPACE:
            raise


def release(filesystem: Filesystem, root: Path) -> bool:
    """Give the ballast up; whether there was one."""
    with contextlib.suppress(OSError):
        filesystem.unlink(root / keys.BALLAST)
        return True
    return False
