"""Copying a store, or going on with a copy of it."""

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from hsstore.errors import MalformedInput
from hsstore.integrity.copying.cut import Cut, refuse_unknown_codec
from hsstore.integrity.copying.cut_copy import CutCopy
from hsstore.integrity.copying.place import Place
from hsstore.integrity.copying.plain_copy import PlainCopy
from hsstore.integrity.copying.result import CopyResult
from hsstore.integrity.copying.room import Room
from hsstore.integrity.copying.selection import chosen_layers, chosen_samples
from hsstore.integrity.subject import Subject
from hsstore.model.capture import Layer
from hsstore.model.progress import Progress, Silent
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.lost_plan import refuse_lost_plan
from hsstore.storage.store import Store

PathLike = str | os.PathLike[str]


def copy_store(  # noqa: PLR0913 - what of it, where to, and who watches
    source: Store | PathLike,
    destination: PathLike,
    *,
    layers: str | Iterable[Layer] | None = None,
    samples: Sequence[str] = (),
    codec: str | None = None,
    min_free_bytes: int | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    filesystem: Filesystem = LOCAL,
) -> CopyResult:
    """Copy a store to ``destination``, or go on where an earlier copy ended.

    As a whole it is the same store, document by document: a replica. With other ``layers``,
    ``samples`` (as ``hsstore copy --samples`` takes them) or ``codec`` it is a new one. Every chunk
    is verified while it is read, and again, past the page cache, after it was written. What the
    source does not have whole is left out and told in the result; the source is never written to.
    ``min_free_bytes`` stay free at the destination, by default 1 % of it, at most 1 GiB;
    ``filesystem`` is that of the destination. Raises MalformedInput, StoreExists where something
    else is there, OutOfSpace, Stopped, StorageFailed, InvalidDocument, OSError; what was copied by
    then is kept.
    """
    opened = source if isinstance(source, Store) else Store.open(Path(source))
    target = _apart(opened, Path(destination))
    refuse_lost_plan(opened)
    cut = _cut(opened, layers, samples, codec)
    subject, target_room = Subject(opened, "data"), Room(target, min_free_bytes)
    place = Place(subject, target, filesystem, target_room, progress or Silent(), stop)
    try:
        return (PlainCopy(place) if cut.is_whole else CutCopy(place, cut)).run()
    finally:
        subject.chunks.close()


def _cut(
    store: Store, layers: str | Iterable[Layer] | None, samples: Sequence[str], codec: str | None
) -> Cut:
    codec = codec or store.identity.codec
    refuse_unknown_codec(codec)
    return Cut(store, chosen_layers(store, layers), chosen_samples(store, samples), codec)


def _apart(source: Store, path: Path) -> Path:
    """The path to copy to; MalformedInput where it is the source, or in it."""
    target, root = path.resolve(), source.root.resolve()
    if target == root or root in target.parents or _is_same(source, target):
        raise MalformedInput(
            "the destination is the store itself, or in it",
            place=str(path),
            remedy="choose a path elsewhere",
        )
    return target


def _is_same(source: Store, target: Path) -> bool:
    """Whether two paths lead to one store, by a mount for instance."""
    with contextlib.suppress(OSError):
        ours, theirs = (root.stat() for root in (source.root, target))
        return (ours.st_dev, ours.st_ino) == (theirs.st_dev, theirs.st_ino)
    return False
