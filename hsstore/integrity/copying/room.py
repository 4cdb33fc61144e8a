"""Whether a copy fits, before it is begun and before each of its shards."""

from dataclasses import dataclass
from pathlib import Path

from hsstore.errors import OutOfSpace
from hsstore.model import keys
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.space import STATUS_BLOCK_BYTES, available, usual_reserve
from hsstore.storage.store import Store

# A manifest with its marker and the folders of a shard file take a few blocks each.
BESIDE_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class Room:
    """The space at a destination; ``min_free_bytes`` None is 1 % of the disk, at most 1 GiB."""

    place: Path
    min_free_bytes: int | None = None

    def require(self, needed: int, what: str) -> None:
        """OutOfSpace where ``needed`` bytes more would leave less free than is to stay free."""
        space = available(self.place)
        reserve = usual_reserve(space) if self.min_free_bytes is None else self.min_free_bytes
        missing = needed + reserve - space.available_bytes
        if missing > 0:
            raise OutOfSpace(
                f"{what} takes {needed} bytes and {reserve} are to stay free, of which "
                f"{space.available_bytes} are available: {missing} are missing",
                place=str(self.place),
                remedy="free space, or lower --min-free, then run the same command again to go on",
            )


def allocated(filesystem: Filesystem, path: Path) -> int:
    """The bytes that a file takes on its disk, holes left out; 0 where there is none.

    Raises OSError.
    """
    try:
        return filesystem.status(path).st_blocks * STATUS_BLOCK_BYTES
    except (FileNotFoundError, NotADirectoryError):
        return 0


def staged_bytes(store: Store) -> dict[int, int]:
    """What staged files of each shard take already. Raises OSError."""
    found: dict[int, int] = {}
    for name in store.filesystem.names(store.root / keys.STAGE):
        stage = keys.read_stage(name)
        if stage is not None:
            path = store.root / keys.STAGE / name / keys.STAGED_DATA
            found[stage[0]] = found.get(stage[0], 0) + allocated(store.filesystem, path)
    return found
