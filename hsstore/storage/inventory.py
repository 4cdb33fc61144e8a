"""The names in a store by shard, and whose claims there are: one listing of each folder."""

from collections.abc import Callable

from hsstore.model import keys
from hsstore.storage.claim import is_abandoned
from hsstore.storage.store import Store


class Names:
    """One listing of the folders of shards, by shard; those that the plan lacks are left out.

    With ``only``, so are all other shards. ``shards`` are those of which there may be something
    that nothing needs.
    """

    def __init__(self, store: Store, only: int | None = None) -> None:
        self._filesystem, self._root = store.filesystem, store.root
        self._found: dict[str, dict[int, list[str]]] = {}
        self.temporaries: dict[int, list[str]] = {}
        # In the order in which a commit makes and removes them, so that none looks left behind.
        for folder, read in _READ.items():
            listed = self._found[folder] = {}
            names = self._filesystem.names(self._root / folder)
            for name in names if only is None else keys.of_shard(names, only):
                shard, temporary = read(name), keys.read_temporary(name)
                if shard is not None and shard < store.plan.shards:
                    listed.setdefault(shard, []).append(name)
                elif temporary is not None and temporary < store.plan.shards:
                    self.temporaries.setdefault(temporary, []).append(f"{folder}/{name}")
        self.shards = {*self.of(keys.STAGE), *self.temporaries}
        for folder in (keys.MANIFEST, keys.COMMIT):
            self.shards |= {shard for shard, listed in self.of(folder).items() if listed[1:]}
        self.shards |= self.of(keys.MANIFEST).keys() - self.of(keys.COMMIT).keys()

    def of(self, folder: str) -> dict[int, list[str]]:
        """The names in a folder by shard, each list sorted."""
        return self._found[folder]


class Claims:
    """Whose claims there are: ``held`` ones, and the names of those whose holder is gone."""

    def __init__(self, store: Store) -> None:
        self.held: set[int] = set()
        self.abandoned: dict[int, list[str]] = {}
        known = {*range(store.plan.shards), keys.GROWTH}
        by_shard: dict[int, list[str]] = {}
        for name in store.filesystem.names(store.root / keys.CLAIM):
            found = keys.read_claim(name)
            if found is not None and found[0] in known:
                by_shard.setdefault(found[0], []).append(name)
        for shard, turns in by_shard.items():
            if is_abandoned(store.filesystem, store.root / keys.CLAIM / turns[-1]):
                self.abandoned[shard] = turns
            else:
                self.held.add(shard)


def _shard(read: Callable[[str], tuple[object, object] | None]) -> Callable[[str], int | None]:
    """The reader of a name's shard, given one that answers with a version and more."""

    def shard(name: str) -> int | None:
        found = read(name)
        version = found[0] if found else None
        return version.shard if isinstance(version, keys.ShardVersion) else None

    return shard


def _staged_shard(name: str) -> int | None:
    found = keys.read_stage(name)
    return found[0] if found else None


def _intended_shard(name: str) -> int | None:
    found = keys.read_intent(name)
    return found.shard if found else None


_READ: dict[str, Callable[[str], int | None]] = {
    keys.MANIFEST: _shard(keys.read_manifest),
    keys.STAGE: _staged_shard,
    keys.INTENT: _intended_shard,
    keys.COMMIT: _shard(keys.read_marker),
}
