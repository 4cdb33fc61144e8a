"""Housekeeping: removing what no marker, intent or live claim needs.

First, with nothing but renames and unlinks, so that it works on a full disk, what is of no use
whoever comes; then, under the claim of its shard, what is of no use to anybody but a writer of it.
"""

import contextlib
import errno
import os
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from hsstore.errors import OUT_OF_SPACE, ClaimedByAnother, StorageFailed, StoreError
from hsstore.model import keys
from hsstore.model.litter import Cleared, Litter, Sighting
from hsstore.storage import ballast
from hsstore.storage.building import remove_abandoned
from hsstore.storage.claim import Claim, claimed, is_abandoned
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.growing import growing, remove_growth
from hsstore.storage.litter import (
    UNTOUCHED_SECONDS,
    look,
    look_at_growth,
    look_at_shard,
    place_of,
)
from hsstore.storage.lost_plan import refuse_lost_plan
from hsstore.storage.stage import fence_folder, take_over
from hsstore.storage.store import Store


def needless(store: Store, *, quarantine: bool = False) -> Sighting:
    """What ``clear`` would remove; nothing is written.

    Raises InvalidDocument where the store has lost a plan, and OSError.
    """
    refuse_lost_plan(store)
    return look(store, quarantine=quarantine)


def clear(store: Store, *, quarantine: bool = False) -> Cleared:
    """Remove what nothing needs; with ``quarantine`` also all that was put aside there.

    Whatever the system refuses stays and is told. Replacements that were decided by writers that
    are gone are finished on the way, as by whoever takes a claim. Raises InvalidDocument where the
    store has lost a plan, and OSError where it cannot be looked at.
    """
    refuse_lost_plan(store)
    run = _Run(store)
    run.clear(look(store, quarantine=quarantine))
    return run.cleared()


@dataclass(slots=True)
class _Run:
    """One run; ``found`` are the items, named as first seen, by their names before any fencing."""

    store: Store
    found: dict[str, Litter] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    secured: bool = False
    unsecured: OSError | None = None

    def clear(self, sight: Sighting) -> None:
        """Without claims, then under them, and again where space was freed meanwhile."""
        self._note(sight.items)
        for item in sight.items:
            if item.claim is None:
                self._try(item)
        waiting = {item.claim for item in sight.items if item.claim is not None}
        left = sorted(waiting | set(sight.held))
        while left:
            lacking = [claim for claim in left if self._lacks_space(claim)]
            freed = bool(lacking) and ballast.release(self.store.filesystem, self.store.root)
            left = lacking if freed or len(lacking) < len(left) else []

    def cleared(self) -> Cleared:
        """The account of it."""
        done = Cleared(held=sorted(self.held), notes=self.notes)
        there = self._there()
        for path, item in self.found.items():
            if place_of(self.store, item) not in there:
                done.removed.append(item)
            elif reason := self.refused.get(path) or self._refusal(item):
                done.kept.append((item, reason))
        return done

    def _refusal(self, item: Litter) -> str | None:
        return None if item.claim is None else self.refused.get(str(item.claim))

    def _note(self, items: list[Litter]) -> None:
        for item in items:
            name = _unfenced(item)
            # A takeover renames what whoever typed the command has seen under its own name.
            known = self.found.get(name, item)
            self.found[name] = replace(item, path=known.path)

    def _there(self) -> set[Path]:
        """What there is beside the items, also by the names from before a takeover."""
        there = set()
        for folder in {place_of(self.store, item).parent for item in self.found.values()}:
            with contextlib.suppress(FileNotFoundError):
                for name in self.store.filesystem.names(folder):
                    there |= {folder / name, folder / _without_mark(name)}
        return there

    # -- under claims --------------------------------------------------------------------------

    def _lacks_space(self, claim: int) -> bool:
        """Clear what one claim guards; True where there is no space for that."""
        self.refused.pop(str(claim), None)
        try:
            if claim == keys.GROWTH:
                self._clear_growth()
            else:
                self._clear_shard(claim)
        except ClaimedByAnother:
            self.held.add(claim)
        except StoreError as error:
            self.refused[str(claim)] = str(error)
            self.notes.append(str(error))
        except OSError as error:
            self.refused[str(claim)] = str(StorageFailed.from_os(error))
            return error.errno in OUT_OF_SPACE
        return False

    def _clear_growth(self) -> None:
        with growing(self.store) as held:
            items = look_at_growth(held.store)
            self._note(items)
            for item in items:
                held.verify()
                self._try(item)

    def _clear_shard(self, shard: int) -> None:
        store = self.store
        with claimed(store.filesystem, store.root, store.identity.uuid, shard) as claim:
            take_over(store, claim)
            items = look_at_shard(store, shard)
            self._note(items)
            with Bin(store, claim) as bin_:
                for item in items:
                    claim.verify()
                    self._try(item, bin_)

    # -- one item ------------------------------------------------------------------------------

    def _try(self, item: Litter, bin_: "Bin | None" = None) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                self._remove(item, place_of(self.store, item), bin_)
            self.refused.pop(_unfenced(item), None)
        except OSError as error:
            self.refused[_unfenced(item)] = str(StorageFailed.from_os(error))

    def _remove(self, item: Litter, place: Path, bin_: "Bin | None") -> None:
        filesystem = self.store.filesystem
        if item.kind in ("staged", "marker", "manifest"):
            self._secure()
        match item.kind:
            case "staged":
                filesystem.remove_folder(fence_folder(filesystem, place))
            case "manifest" if bin_ is not None and item.claim is not None:
                bin_.drop(place)
            case "growth":
                remove_growth(filesystem, place)
            case "creation":
                remove_abandoned(place, filesystem)
            case "quarantine":
                _remove_all(filesystem, place, self.store.root)
            case "temporary" if item.of is None:
                _remove_untouched(filesystem, place)
            case _:
                filesystem.unlink(place)

    def _secure(self) -> None:
        """Make the markers that speak against older generations durable, before those go."""
        if self.unsecured is not None:
            # A second sync might say that all is well, and be wrong.
            raise self.unsecured
        try:
            if not self.secured:
                self.store.filesystem.sync_folder(self.store.root / keys.COMMIT)
        except OSError as error:
            self.unsecured = error
            raise
        self.secured = True


class Bin:
    """Where a claim holder drops what only a holder may remove: into its own staging folder.

    A takeover renames that folder before it looks at anything, so whoever was overtaken without
    knowing can take away nothing more.
    """

    def __init__(self, store: Store, claim: Claim) -> None:
        self._filesystem = store.filesystem
        self._claim = claim
        self._folder = store.root / keys.stage(claim.shard, claim.writer)
        self._made = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._made:
            self._filesystem.remove_folder(self._folder)

    def drop(self, path: Path) -> None:
        """Remove a file for good; FileNotFoundError after a takeover."""
        if not self._made:
            self._filesystem.make_folder(self._folder)
            self._made = True
            # A takeover before this found no folder to rename; a later one will.
            self._claim.verify()
        self._filesystem.rename(path, self._folder / f".{path.name}")


def _unfenced(item: Litter) -> str:
    """An item's path without the mark that a takeover gave it."""
    folder, slash, name = item.path.rpartition("/")
    return f"{folder}{slash}{_without_mark(name)}"


def _without_mark(name: str) -> str:
    return name[: -len(".00000000")] if keys.is_fenced(name) else name


def _remove_all(filesystem: Filesystem, path: Path, root: Path) -> None:
    """Remove a file, link or folder of the quarantine with all that is in it."""
    status = filesystem.status(path)
    if not stat.S_ISDIR(status.st_mode):
        filesystem.unlink(path)
        return
    if status.st_dev != filesystem.status(root.resolve()).st_dev:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))
    for name in filesystem.names(path):
        _remove_all(filesystem, path / name, root)
    filesystem.remove_folder(path)


def _remove_untouched(filesystem: Filesystem, path: Path) -> None:
    """Remove a temporary file that nobody's claim guards, unless somebody may be publishing it."""
    # The filesystem's now, whatever the clock here says.
    filesystem.touch(path.parent)
    now = filesystem.status(path.parent).st_mtime
    silent = now - filesystem.status(path).st_mtime > UNTOUCHED_SECONDS
    if silent or is_abandoned(filesystem, path):
        filesystem.unlink(path)
