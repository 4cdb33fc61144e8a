"""What in a store no marker, intent or live claim needs: a look that writes nothing.

Names are listed first and claims last. So whoever owned what was listed, and still has the right to
publish something of it, is seen to have a claim; what belongs to a claim whose holder is not
certainly gone is left out.
"""

import contextlib
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hsstore.model import keys
from hsstore.model.litter import Kind, Litter, Sighting
from hsstore.storage.building import abandoned
from hsstore.storage.claim import is_abandoned
from hsstore.storage.evidence import Evidence
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.growing import undecided
from hsstore.storage.inventory import Claims, Names
from hsstore.storage.journal import Journal, read_journal
from hsstore.storage.space import STATUS_BLOCK_BYTES
from hsstore.storage.store import Store
from hsstore.storage.zarr_arrays import TABLE_CHUNK

UNPUBLISHED = "what it was to become was never published"
_STAGED = frozenset({keys.STAGED_DATA, keys.STAGED_JOURNAL, keys.STAGED_HOLDER})


# A publication takes a moment; who needs longer than this for one has to begin again.
UNTOUCHED_SECONDS = 3600.0


def look(store: Store, *, quarantine: bool = False) -> Sighting:
    """Everything that nothing needs; with ``quarantine`` also what was put aside there.

    Raises OSError.
    """
    names = Names(store)
    sight = Sighting()
    growth = [*_growth(store)]
    aside = [*_quarantine(store)] if quarantine else []
    claims = Claims(store)
    sight.held = sorted(claims.held)
    sight.unfinished = sorted(names.of(keys.INTENT).keys() - claims.held)
    for shard in sorted(names.shards | claims.abandoned.keys() - {keys.GROWTH}):
        if shard not in claims.held:
            sight.items += _of_shard(store, names, shard)
            sight.items += _claims(store, claims, shard)
    if keys.GROWTH not in claims.held:
        sight.items += [*growth, *_claims(store, claims, keys.GROWTH)]
    sight.items += [item for item in aside if item.of not in claims.held]
    sight.items += [*_unguarded(store), *_creations(store)]
    return sight


def look_at_shard(store: Store, shard: int) -> list[Litter]:
    """What nothing needs of a shard, for whoever has taken its claim over. Raises OSError."""
    return [*_of_shard(store, Names(store, shard), shard)]


def look_at_growth(store: Store) -> list[Litter]:
    """What nothing needs of growths, for whoever has the right to grow the store."""
    return [*_growth(store)]


# -- shards ----------------------------------------------------------------------------------------


def _of_shard(store: Store, names: Names, shard: int) -> Iterator[Litter]:
    for path in names.temporaries.get(shard, []):
        yield from _item(store, "temporary", path, UNPUBLISHED,
                         of=shard, claim=shard)  # fmt: skip
    if shard in names.of(keys.INTENT):
        return
    evidence = Evidence.of(store, shard, names.of(keys.COMMIT).get(shard, []))
    if evidence is None:
        return
    for name in names.of(keys.STAGE).get(shard, []):
        yield from _staged(store, name, shard, evidence.generation)
    yield from _documents(store, names, shard, evidence)


def _staged(store: Store, name: str, shard: int, committed: int) -> Iterator[Litter]:
    path = f"{keys.STAGE}/{name}"
    journal = _journal(store, store.root / path)
    if journal is None:
        return
    if journal.generation is not None and journal.generation <= committed:
        reason = f"generation {committed} of the shard is committed"
        yield from _item(store, "staged", path, reason, of=shard)
    elif not journal.settled():
        reason = "no sample in it counts"
        yield from _item(store, "staged", path, reason, of=shard, claim=shard)
    else:
        for inner in store.filesystem.names(store.root / path):
            if inner.startswith("."):
                yield from _item(store, "temporary", f"{path}/{inner}",
                                 UNPUBLISHED,
                                 of=shard, claim=shard)  # fmt: skip


def _journal(store: Store, folder: Path) -> Journal | None:
    """The journal of a staging folder; None for one that is gone, foreign, or holds such things."""
    filesystem = store.filesystem
    try:
        if not _is_ours(filesystem, folder, store.root, stat.S_ISDIR):
            return None
        for name in filesystem.names(folder):
            known = name in _STAGED or name.startswith(".")
            if not known or not _is_ours(filesystem, folder / name, store.root, stat.S_ISREG):
                return None
        journal = read_journal(filesystem.read(folder / keys.STAGED_JOURNAL))
    except FileNotFoundError:
        return Journal() if filesystem.exists(folder) else None
    except OSError:
        # What cannot be read may be needed.
        return None
    shard, _ = keys.read_stage(folder.name) or (None, None)
    ours = (journal.store, journal.shard) in ((store.identity.uuid, shard), (None, None))
    return journal if ours else None


def _documents(store: Store, names: Names, shard: int, evidence: Evidence) -> Iterator[Litter]:
    """Older markers, then manifests that nothing names."""
    manifests = evidence.outdated(names.of(keys.MANIFEST).get(shard, []))
    for name in names.of(keys.COMMIT).get(shard, []):
        version, _ = keys.read_marker(name) or (None, None)
        if version is None or version.generation >= evidence.generation:
            continue
        stem = f"{shard:08d}-{version.generation:06d}."
        listed = [n for n in names.of(keys.MANIFEST).get(shard, []) if n.startswith(stem)]
        if set(listed) <= set(manifests):
            reason = f"generation {evidence.generation} replaced it"
            yield from _item(store, "marker", f"{keys.COMMIT}/{name}", reason, of=shard)
    for name, generation in manifests.items():
        older = generation < evidence.generation
        reason = (
            f"generation {evidence.generation} replaced it"
            if older
            else "no marker or intent names it"
        )
        yield from _item(store, "manifest", f"{keys.MANIFEST}/{name}", reason, of=shard,
                         claim=None if older else shard)  # fmt: skip


def _claims(store: Store, claims: Claims, shard: int) -> Iterator[Litter]:
    for name in claims.abandoned.get(shard, []):
        yield from _item(store, "claim", f"{keys.CLAIM}/{name}", "its process is gone",
                         of=shard, claim=shard)  # fmt: skip


# -- what belongs to no shard ----------------------------------------------------------------------


def _growth(store: Store) -> Iterator[Litter]:
    filesystem, root = store.filesystem, store.root
    folders = undecided(store)
    for name in filter(keys.is_growth, filesystem.names(root / keys.PLAN)):
        claim = None if keys.is_fenced(name) else keys.GROWTH
        yield from _item(store, "growth", f"{keys.PLAN}/{name}", "no plan was made of it",
                         of=keys.GROWTH, claim=claim)  # fmt: skip
    # Their plan may have come since they were listed.
    for path in set(folders) & set(undecided(store)):
        yield from _item(store, "growth", path, "no plan names it",
                         of=keys.GROWTH, claim=keys.GROWTH)  # fmt: skip
    for path in _growths_temporaries(store):
        yield from _item(store, "temporary", path, UNPUBLISHED,
                         of=keys.GROWTH, claim=keys.GROWTH)  # fmt: skip


def _growths_temporaries(store: Store) -> Iterator[str]:
    for folder in _array_folders(store):
        for name in _names(store.filesystem, store.root / folder):
            if name.startswith("."):
                yield f"{folder}/{name}"


def _array_folders(store: Store) -> list[str]:
    """The folders in which metadata and chunks of arrays are put in place by a rename."""
    arrays = (keys.HIDDEN_STATES, keys.INPUT_IDS, keys.LOSS_MASK,
              keys.SAMPLE_START, keys.SAMPLE_LENGTH, keys.SAMPLE_DIGEST)  # fmt: skip
    files = [keys.zarr_metadata(), *map(keys.zarr_metadata, arrays)]
    files += [keys.array_chunk(array, 0) for array in arrays[1:-1]]
    chunks = range(-(-store.plan.samples // TABLE_CHUNK))
    files += [keys.array_chunk(keys.SAMPLE_DIGEST, chunk) for chunk in chunks]
    return sorted({file.rpartition("/")[0] for file in files})


def _quarantine(store: Store) -> Iterator[Litter]:
    for name in _names(store.filesystem, store.root / keys.QUARANTINE):
        of = keys.GROWTH if name.startswith("derived.") else None
        if name[:8].isdecimal() and int(name[:8]) < store.plan.shards:
            of = int(name[:8])
        yield from _item(store, "quarantine", f"{keys.QUARANTINE}/{name}",
                         "it was put aside for people to look at", of=of)  # fmt: skip


def _unguarded(store: Store) -> Iterator[Litter]:
    """Temporary files whose makers hold no claim yet, and are gone or, by the clock here, silent.

    That clock decides nothing: their removal asks the filesystem's.
    """
    for folder in (keys.CALIBRATION, keys.CLAIM, keys.WAIVER):
        for name in _names(store.filesystem, store.root / folder):
            path = store.root / folder / name
            with contextlib.suppress(FileNotFoundError):
                silent = _is_old(store.filesystem, path)
                if name.startswith(".") and (silent or is_abandoned(store.filesystem, path)):
                    yield from _item(store, "temporary", f"{folder}/{name}", UNPUBLISHED)


def _is_old(filesystem: Filesystem, path: Path) -> bool:
    return time.time() - filesystem.status(path).st_mtime > UNTOUCHED_SECONDS


def _creations(store: Store) -> Iterator[Litter]:
    for folder in abandoned(store.root.resolve(), store.filesystem):
        yield from _item(store, "creation", f"../{folder.name}", "its process is gone")


# -- measuring -------------------------------------------------------------------------------------


def place_of(store: Store, item: Litter) -> Path:
    """Where an item is."""
    root = store.root.resolve() if item.kind == "creation" else store.root
    return root.parent / item.path[3:] if item.kind == "creation" else root / item.path


def _item(
    store: Store, kind: Kind, path: str, reason: str, *,
    of: int | None = None, claim: int | None = None,
) -> Iterator[Litter]:  # fmt: skip
    """The item, unless it is gone by now, a link, or on another filesystem than the store."""
    item = Litter(kind, path, 0, 0, reason, of, claim)
    place, filesystem = place_of(store, item), store.filesystem
    with contextlib.suppress(FileNotFoundError):
        status = filesystem.status(place)
        real = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
        here = filesystem.status(store.root.resolve()).st_dev == status.st_dev
        if here and (real or kind == "quarantine"):
            size, inodes = _freed(filesystem, place, status.st_dev)
            yield Litter(kind, path, size, inodes, reason, of, claim)


def _freed(filesystem: Filesystem, path: Path, device: int) -> tuple[int, int]:
    """Allocated bytes and inodes that the removal of a file or folder would free."""
    status = filesystem.status(path)
    if status.st_dev != device:
        return 0, 0
    own = (status.st_blocks * STATUS_BLOCK_BYTES, 1)
    if not stat.S_ISDIR(status.st_mode):
        return own if status.st_nlink == 1 else (0, 0)
    parts = [own, *(_freed(filesystem, path / name, device) for name in filesystem.names(path))]
    return sum(part[0] for part in parts), sum(part[1] for part in parts)


def _is_ours(
    filesystem: Filesystem, path: Path, root: Path, is_kind: Callable[[int], bool]
) -> bool:
    status = filesystem.status(path)
    return is_kind(status.st_mode) and status.st_dev == filesystem.status(root.resolve()).st_dev


def _names(filesystem: Filesystem, folder: Path) -> Iterable[str]:
    """The names in a real folder; none where there is no such folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        if stat.S_ISDIR(filesystem.status(folder).st_mode):
            return filesystem.names(folder)
    return []
