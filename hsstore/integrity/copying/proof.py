"""What was written is on the disk: read back past the page cache, before a marker says so."""

from hsstore.errors import StorageFailed
from hsstore.model import keys
from hsstore.model.manifest import Manifest
from hsstore.storage.roll_forward import is_whole
from hsstore.storage.store import Store
from hsstore.storage.writer import StagedShard


def prove(store: Store, staged: StagedShard, manifest: Manifest) -> None:
    """StorageFailed unless the staged file is, read from the disk, what the manifest says.

    Raises OSError.
    """
    path = staged.folder / keys.STAGED_DATA
    if not is_whole(store, path, manifest):
        raise StorageFailed(
            "what was written and synced reads back otherwise",
            place=str(path),
            remedy="do not trust this disk: check it and its memory, then run the same command "
            "again",
        )
