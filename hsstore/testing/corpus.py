"""The whole corpus of damage: each kind of file by each damage, and what is not of one file.

An entry says on which ground it is done, and what fsck must say of it: which kind, where, from
which level on. What nothing is said of, because it is worth nothing, must do no harm.
"""

import dataclasses
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import xxhash

from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.finding import Level
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import Marker
from hsstore.storage import token_file
from hsstore.storage.store import Store
from hsstore.storage.zarr_arrays import shard_chunks
from hsstore.testing import damage
from hsstore.testing.damage import PAGE, SHARD, times_kept
from hsstore.testing.grounds import BACKUP
from hsstore.testing.places import Place, Planted, in_shard_file, keys_of

Manner = Literal["content", "gone", "other", "unreadable"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One damage. ``mended`` says whether a repair with a source brings all of it back."""

    name: str
    ground: str
    inflict: Callable[[Store], Planted]
    mended: bool = True


# -- what can be done to one file ------------------------------------------------------------------


def _zero_tail(path: Path) -> None:
    written = len(path.read_bytes().rstrip(b"\0"))
    damage.zero(path, written // 2, 1 << 40)


CONTENT: dict[str, Callable[[Path], object]] = {
    "flip": damage.flip_bit,
    "zero-page": lambda path: damage.zero(path, 0, PAGE),
    "zero-tail": _zero_tail,
    "zeros": lambda path: damage.zero(path, 0, 1 << 40),
    "truncate": lambda path: damage.resize(path, -1),
    "extend": lambda path: damage.resize(path, 1),
    "empty": lambda path: damage.resize(path, -1 << 40),
}
OTHER: dict[str, Callable[[Path], object]] = {
    "symlink": damage.to_symlink,
    "folder": damage.to_folder,
    "pipe": damage.to_pipe,
}
HURTS: dict[str, tuple[Manner, Callable[[Path], object]]] = {
    **{name: ("content", hurt) for name, hurt in CONTENT.items()},
    **{name: ("other", hurt) for name, hurt in OTHER.items()},
    "delete": ("gone", Path.unlink),
    # Of everybody but its owner and root; the test is not root when it looks.
    "forbid": ("unreadable", lambda path: path.chmod(0)),
}


# -- kinds of files --------------------------------------------------------------------------------

DATA = keys.shard_file(SHARD)
Named = Callable[[Store], str]


def _numbers_of(store: Store, shard: int) -> tuple[str, ...]:
    return tuple(f"#{sample}" for sample in store.samples.shard_samples(shard))


_NAMED = {"keys": keys_of, "numbers": _numbers_of}


@dataclass(frozen=True, slots=True)
class FileKind:
    """A kind of file: where one is, and what is said of it by what was done to it.

    ``says`` maps a manner of damage to the kind of finding, None where nothing is promised.
    ``samples`` are the keys that it costs: those of SHARD, their numbers where the token file
    that has their keys is what is lost, or nothing.
    """

    name: str
    ground: str
    path: Named
    level: Level
    says: dict[Manner, str | None]
    of_shard: bool = False
    samples: Literal["keys", "numbers"] | None = None
    chunk: int | None = None
    mended: bool = True

    def place(self, store: Store, manner: Manner) -> tuple[Place, ...]:
        """What must be said of this file of a store that is whole yet."""
        kind = self.says[manner]
        if kind is None:
            return ()
        samples = self.samples and _NAMED[self.samples](store, SHARD)
        shard = SHARD if self.of_shard else None
        return (Place(kind, self.level, self.path(store), shard, samples, self.chunk),)

    def hurt(self, manner: Manner, hurt: Callable[[Path], object]) -> Callable[[Store], Planted]:
        """Damage to this file of a store."""

        def inflict(store: Store) -> Planted:
            path, places = self.path(store), self.place(store, manner)
            hurt(store.root / path)
            return Planted(places)

        return inflict


def _says(stem: str, broken: str, gone: str | None = "missing") -> dict[Manner, str | None]:
    """The kinds of findings about one sort of file, by the words that they use for each manner."""
    missing = None if gone is None else f"{stem}-{gone}"
    whole, unreadable = f"{stem}-{broken}", f"{stem}-unreadable"
    return {"content": whole, "other": whole, "gone": missing, "unreadable": unreadable}


HARMLESS: dict[Manner, str | None] = {
    "content": None, "other": None, "gone": None, "unreadable": None,
}  # fmt: skip

# Nothing is lost with it; what is no plain file is foreign.
STAGED: dict[Manner, str | None] = {**HARMLESS, "other": "foreign-file"}


def _marker(store: Store) -> str:
    return store.marker(SHARD).name


def _manifest(store: Store) -> str:
    return store.marker(SHARD).manifest_name


def _tokens(store: Store) -> str:
    return keys.tokens(store.plan.token_files[SHARD].generation, SHARD)


def _fixed(path: str) -> Named:
    return lambda _: path


def _only(folder: str, file: str = "") -> Named:
    """The one name in a folder, or a file in the folder of that name."""

    def find(store: Store) -> str:
        (name,) = store.filesystem.names(store.root / folder)
        return f"{folder}/{name}/{file}" if file else f"{folder}/{name}"

    return find


INTENT = keys.intent(ShardVersion(SHARD, 2))
ARRAYS = (keys.HIDDEN_STATES, keys.INPUT_IDS, keys.LOSS_MASK, keys.SAMPLE_START,
          keys.SAMPLE_LENGTH, keys.SAMPLE_DIGEST)  # fmt: skip
FILES = (
    FileKind("identity", "sound", _fixed(keys.IDENTITY), "quick",
             _says("identity", "invalid", "invalid"), mended=False),
    FileKind("plan", "sound", _fixed(keys.plan(0)), "quick", _says("plan", "invalid"),
             mended=False),
    FileKind("earlier-plan", "extended", _fixed(keys.plan(1)), "quick", _says("plan", "invalid")),
    FileKind("calibration", "sound", _fixed(keys.calibration(0)), "quick",
             _says("calibration", "invalid", None)),
    FileKind("tokens", "sound", _tokens, "manifest", _says("tokens", "damaged"),
             of_shard=True, samples="numbers"),
    FileKind("ids", "sound", _fixed(keys.array_chunk(keys.INPUT_IDS, SHARD)), "manifest",
             _says("array", "damaged"), of_shard=True, samples="keys", chunk=SHARD),
    FileKind("mask", "sound", _fixed(keys.array_chunk(keys.LOSS_MASK, SHARD)), "manifest",
             _says("array", "damaged"), of_shard=True, samples="keys", chunk=SHARD),
    *(FileKind(name, "sound", _fixed(keys.array_chunk(name, 0)), "manifest",
               _says("array", "damaged"), chunk=0)
      for name in (keys.SAMPLE_START, keys.SAMPLE_LENGTH, keys.SAMPLE_DIGEST)),
    *(FileKind(f"metadata-{name or 'root'}", "sound", _fixed(keys.zarr_metadata(name)), "manifest",
               _says("metadata", "damaged"))
      for name in (None, *ARRAYS)),
    FileKind("manifest", "sound", _manifest, "manifest", _says("manifest", "invalid"),
             of_shard=True, samples="keys"),
    FileKind("marker", "sound", _marker, "quick", _says("marker", "invalid"),
             of_shard=True, samples="keys"),
    FileKind("data", "sound", _fixed(DATA), "quick", _says("data", "invalid"),
             of_shard=True, samples="keys"),
    FileKind("intent", "decided", _fixed(INTENT), "quick", _says("intent", "invalid", None),
             of_shard=True),
    FileKind("intent-renamed", "renamed", _fixed(INTENT), "quick",
             _says("intent", "invalid", None), of_shard=True),
    FileKind("claim", "begun", _only(keys.CLAIM), "quick", HARMLESS),
    FileKind("staged-data", "begun", _only(keys.STAGE, keys.STAGED_DATA), "quick", STAGED),
    FileKind("journal", "begun", _only(keys.STAGE, keys.STAGED_JOURNAL), "quick", STAGED),
    FileKind("holder", "begun", _only(keys.STAGE, keys.STAGED_HOLDER), "quick", STAGED),
)  # fmt: skip


# -- where a file says more than that it is broken -------------------------------------------------


def to_data(hurt: Callable[[Path], object], shard: int = SHARD) -> Callable[[Store], Planted]:
    """Damage to the bytes of a shard file: each chunk that it changes is a place."""

    def inflict(store: Store) -> Planted:
        marker = store.marker(shard)
        manifest, path = store.manifest(marker), store.root / keys.shard_file(shard)
        with times_kept(path):
            hurt(path)
        return Planted(in_shard_file(store, marker, manifest))

    return inflict


def unread_index(store: Store) -> Planted:
    """What is said of a shard file of which no byte can be read, but for its size."""
    size = store.marker(SHARD).data_bytes
    span = (size - store.identity.geometry.index_bytes, size)
    samples = keys_of(store, SHARD)
    return Planted((Place("data-unreadable", "manifest", DATA, SHARD, samples, byte_range=span),))


def _forbid_data(store: Store) -> Planted:
    planted = unread_index(store)
    (store.root / DATA).chmod(0)
    return planted


def _delete_marker(store: Store) -> Planted:
    place = Place("marker-missing", "quick", DATA, SHARD, keys_of(store, SHARD))
    (store.root / _marker(store)).unlink()
    return Planted((place,))


def _delete_plan(store: Store) -> Planted:
    (store.root / keys.plan(0)).unlink()
    return Planted((Place("plan-invalid", "quick", keys.PLAN),))


def _delete_intent(store: Store) -> Planted:
    (store.root / INTENT).unlink()
    return without_intent(store, Planted(()))


def without_intent(store: Store, told: Planted) -> Planted:
    """For want of a decision, the file in place is held against the marker that there is."""
    marker = store.marker(SHARD)
    against = in_shard_file(store, marker, store.manifest(marker))
    return Planted((*told.places, *_later(store, against)))


def _later(store: Store, against: Sequence[Place]) -> tuple[Place, ...]:
    """What is said of a file of a later generation from where something speaks against it."""
    if (level := Planted((*against,)).level) is None:
        return ()
    return (Place("marker-missing", level, DATA, SHARD, keys_of(store, SHARD)),)


def _to_intent(inflict: Callable[[Store], Planted]) -> Callable[[Store], Planted]:
    return lambda store: without_intent(store, inflict(store))


def _to_newest_plan(hurt: Callable[[Path], object]) -> Callable[[Store], Planted]:
    """What is beyond the plan before shows that there was another."""

    def inflict(store: Store) -> Planted:
        newest = store.root / keys.plan(2)
        hurt(newest)
        lost = Place("plan-lost", "quick", keys.PLAN)
        broken = Place("plan-invalid", "quick", keys.plan(2))
        return Planted((lost, broken) if os.path.lexists(newest) else (lost,))

    return inflict


SPECIAL: dict[str, Callable[[Store], Planted]] = {
    **{f"{name}-data": to_data(hurt) for name, hurt in CONTENT.items()},
    "forbid-data": _forbid_data,
    "delete-marker": _delete_marker,
    "delete-plan": _delete_plan,
    "delete-intent": _delete_intent,
    "delete-intent-renamed": _delete_intent,
}


def _of_one_file() -> Iterator[Entry]:
    for file in FILES:
        for name, (manner, hurt) in HURTS.items():
            inflict = SPECIAL.get(f"{name}-{file.name}") or file.hurt(manner, hurt)
            if file.name == "intent-renamed" and manner != "gone":
                inflict = _to_intent(inflict)
            # Who finds something else in place of a claim asks a person.
            mended = file.mended and not (manner == "other" and file.name == "claim")
            yield Entry(f"{name}-{file.name}", file.ground, inflict, mended)
    for name, hurt in {**CONTENT, **OTHER, "delete": Path.unlink}.items():
        yield Entry(f"{name}-newest-plan", "extended", _to_newest_plan(hurt), mended=False)
    for folder in keys.FOLDERS:
        yield from _of_folder(folder)


def _of_folder(folder: str) -> Iterator[Entry]:
    """Something else in place of a folder, or one that nobody may look into."""
    if folder in {keys.INTENT, keys.CLAIM, keys.STAGE, keys.WAIVER, keys.QUARANTINE}:
        gone = Place("folder-missing", "quick", folder)
        yield Entry(f"delete-{folder}", "sound", _folder((gone,), folder, Path.rmdir))


def _folder(
    places: tuple[Place, ...], folder: str, hurt: Callable[[Path], object]
) -> Callable[[Store], Planted]:
    def inflict(store: Store) -> Planted:
        hurt(store.root / folder)
        return Planted(places)

    return inflict


# -- of two files, or of two stores ----------------------------------------------------------------


def _swap(one: int, other: int) -> Callable[[Store], Planted]:
    """Two shard files: of one size where nothing is compressed and they have as many chunks."""

    def inflict(store: Store) -> Planted:
        both = [(m, store.manifest(m)) for m in (store.marker(one), store.marker(other))]
        damage.swap(store.root / keys.shard_file(one), store.root / keys.shard_file(other))
        return Planted(tuple(place for m, its in both for place in in_shard_file(store, m, its)))

    return inflict


def _swap_chunks(store: Store) -> Planted:
    one, other = store.manifest(store.marker(SHARD)).chunks[:2]
    length = min(one.length, other.length)
    hurt = to_data(lambda path: damage.swap_ranges(path, one.offset, other.offset, length))
    return hurt(store)


def _to_index(hurt: Callable[[Path, int], object]) -> Callable[[Store], Planted]:
    def inflict(store: Store) -> Planted:
        start = store.marker(SHARD).data_bytes - store.identity.geometry.index_bytes
        return to_data(lambda path: hurt(path, start))(store)

    return inflict


def _marker_as(**changed: object) -> Callable[[Store], Planted]:
    """A whole and sealed marker in place of the true one, with other members."""

    def inflict(store: Store) -> Planted:
        marker, place = store.marker(SHARD), _MARKER.place(store, "content")
        own = {name: getattr(marker, name) for name in Marker.__slots__}
        with times_kept(store.root / marker.name):
            (store.root / marker.name).write_bytes(seal(Marker(**{**own, **changed}).to_document()))
        return Planted(place)

    return inflict


def _marker_of_next(store: Store) -> Planted:
    place, name = _MARKER.place(store, "content"), _marker(store)
    shutil.copy2(store.root / store.marker(SHARD + 1).name, store.root / name)
    return Planted(place)


def _two_markers(store: Store) -> Planted:
    """One marker under both of its names: the second says what its content does not."""
    marker = store.marker(SHARD)
    twin, samples = keys.marker(marker.version, absent=True), keys_of(store, SHARD)
    shutil.copy2(store.root / marker.name, store.root / twin)
    both = Place("marker-duplicate", "quick", min(marker.name, twin), SHARD)
    return Planted((Place("marker-invalid", "quick", twin, SHARD, samples), both))


def _edit_metadata(name: str | None, old: bytes, new: bytes) -> Callable[[Store], Planted]:
    def edit(path: Path) -> None:
        with times_kept(path):
            raw = path.read_bytes()
            if old not in raw:
                raise ValueError(f"nothing to edit in {path}")
            path.write_bytes(raw.replace(old, new, 1))

    return next(f for f in FILES if f.name == f"metadata-{name or 'root'}").hurt("content", edit)


# -- a generation that came back from a backup -----------------------------------------------------


def _backup(store: Store) -> tuple[Path, str, str]:
    """Where the files of the generation before are; the names of its marker and manifest."""
    backup = store.root.with_name(BACKUP)
    (marker,) = store.filesystem.names(backup / keys.COMMIT)
    (manifest,) = store.filesystem.names(backup / keys.MANIFEST)
    return backup, f"{keys.COMMIT}/{marker}", f"{keys.MANIFEST}/{manifest}"


def _restore(store: Store, *names: str) -> None:
    backup = store.root.with_name(BACKUP)
    for name in names:
        shutil.copy2(backup / name, store.root / name)


def _stale_data(store: Store) -> Planted:
    return to_data(lambda _: _restore(store, DATA))(store)


def _stale_marker(store: Store) -> Planted:
    """commit/ is of the day before: what its marker names was removed when it was replaced."""
    _, marker, manifest = _backup(store)
    newest, samples = _marker(store), keys_of(store, SHARD)
    _restore(store, marker)
    (store.root / newest).unlink()
    missing = Place("manifest-missing", "manifest", manifest, SHARD, samples)
    later = _later(store, in_shard_file(store, store.marker(SHARD), None))
    # With the same index it is the manifest alone that tells, by every byte.
    unseen = Place("marker-missing", "data", DATA, SHARD, samples)
    return Planted((missing, *(later or (unseen,))))


def _stale_manifest(store: Store) -> Planted:
    """manifest/ is of the day before."""
    _, _, manifest = _backup(store)
    place = _MANIFEST.place(store, "gone")
    (store.root / _manifest(store)).unlink()
    _restore(store, manifest)
    return Planted(place)


def _marker_again(store: Store) -> Planted:
    _, marker, _ = _backup(store)
    _restore(store, marker)
    return Planted((Place("marker-superseded", "quick", marker, SHARD),))


def _manifest_again(store: Store) -> Planted:
    """One that no marker names is a leftover."""
    _restore(store, _backup(store)[2])
    return Planted(())


def _all_again(store: Store) -> Planted:
    """All three, beside the newest marker and manifest."""
    told = _marker_again(store).places
    _restore(store, _backup(store)[2])
    # Of the newest generation, which still counts.
    return Planted((*told, *_stale_data(store).places))


def stale_generation(store: Store) -> Planted:
    """All three, and nothing of the newest generation: a store as it was, whole in itself."""
    newest = store.marker(SHARD)
    _, marker, manifest = _backup(store)
    for name in (newest.name, newest.manifest_name):
        (store.root / name).unlink()
    _restore(store, DATA, marker, manifest)
    return Planted(())


# -- wrong token ids -------------------------------------------------------------------------------


def wrong_ids(store: Store) -> bytes:
    """Give a sample other ids, in its token file and in the array; the token file's bytes."""
    known = store.tokens(SHARD)
    ids = known.input_ids.copy()
    ids[0] += 1
    false = dataclasses.replace(known, input_ids=ids)
    raw = token_file.encode(false)
    with times_kept(store.root / _tokens(store)):
        (store.root / _tokens(store)).write_bytes(raw)
    for chunk in shard_chunks(SHARD, false, store.identity.geometry):
        with times_kept(store.root / chunk.key):
            (store.root / chunk.key).write_bytes(chunk.data.ljust(chunk.size, b"\0"))
    return raw


def _wrong_ids(store: Store) -> Planted:
    """The two copies agree with each other; the plan's digest speaks against them."""
    place = _TOKENS.place(store, "content")
    wrong_ids(store)
    return Planted(place)


_MARKER, _MANIFEST, _TOKENS = (
    next(file for file in FILES if file.name == name) for name in ("marker", "manifest", "tokens")
)

_OTHERS = {
    ("swap-shards", "sound"): _swap(SHARD, SHARD + 1),
    ("swap-equal-shards", "sound"): _swap(0, 3),
    ("swap-chunks", "sound"): _swap_chunks,
    ("flip-index", "sound"): _to_index(lambda path, start: damage.flip_bit(path, start + 5)),
    ("zero-index", "sound"): _to_index(lambda path, start: damage.zero(path, start, 1 << 40)),
    ("cut-data", "sound"): to_data(lambda path: damage.resize(path, -2000)),
    ("marker-of-store", "sound"): _marker_as(store=xxhash.xxh3_128_hexdigest(b"another store")),
    ("marker-of-shard", "sound"): _marker_of_next,
    ("duplicate-marker", "sound"): _two_markers,
    ("edit-dtype", "sound"): _edit_metadata(keys.HIDDEN_STATES, b'"little"', b'"big"'),
    ("edit-ids", "sound"): _edit_metadata(keys.INPUT_IDS, b'"int32"', b'"uint32"'),
    ("stale-data", "replaced"): _stale_data,
    ("stale-marker", "replaced"): _stale_marker,
    ("stale-manifest", "replaced"): _stale_manifest,
    ("marker-again", "replaced"): _marker_again,
    ("manifest-again", "replaced"): _manifest_again,
    ("all-again", "replaced"): _all_again,
    ("wrong-ids", "sound"): _wrong_ids,
}
# A superseded marker harms nobody, and no copy of the true ids is left but in a replica.
_LEFT_ALONE = frozenset({"marker-again", "wrong-ids"})

WHOLE_CORPUS = (
    *_of_one_file(),
    *(
        Entry(name, ground, inflict, name not in _LEFT_ALONE)
        for (name, ground), inflict in _OTHERS.items()
    ),
)
