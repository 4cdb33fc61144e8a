"""Damage to stores, as disks, copies and people inflict it; times of files are put back.

Each entry of CORPUS damages one file of a filled store and says which finding must name it, at
which level it must show at the latest, and whether states have to be made again. It is what every
test of fsck and repair goes through; ``corpus.py`` has all of it.
"""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import xxhash

from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.finding import Level
from hsstore.model.marker import Marker
from hsstore.storage.store import Store

PAGE = 4096
LONG_AGO = 1_000_000_000
SHARD = 1

# -- on files --------------------------------------------------------------------------------------


@contextmanager
def times_kept(path: Path) -> Iterator[None]:
    """Put a file's times back afterwards; OSError for what is no file, such as a pipe."""
    if not path.is_file():
        raise FileNotFoundError(errno.ENOENT, "no file to damage", str(path))
    before = path.stat()
    yield
    if path.exists():
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def overwrite(path: Path, offset: int, data: bytes) -> None:
    """Write bytes into a file."""
    with times_kept(path), path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def flip_bit(path: Path, offset: int | None = None, bit: int = 3) -> None:
    """Flip one bit, by default in the middle."""
    with times_kept(path):
        raw = path.read_bytes()
    at = len(raw) // 2 if offset is None else offset
    overwrite(path, at, bytes([raw[at] ^ 1 << bit]))


def zero(path: Path, offset: int, length: int) -> None:
    """Zero a range, within the file."""
    overwrite(path, offset, bytes(max(min(length, path.stat().st_size - offset), 0)))


def resize(path: Path, change: int) -> None:
    """Truncate or extend by that many bytes."""
    with times_kept(path):
        os.truncate(path, max(path.stat().st_size + change, 0))


def swap(one: Path, other: Path) -> None:
    """Exchange two files."""
    aside = one.with_name("aside")
    one.rename(aside)
    other.rename(one)
    aside.rename(other)


def swap_ranges(path: Path, one: int, other: int, length: int) -> None:
    """Exchange two ranges of a file."""
    with times_kept(path):
        raw = path.read_bytes()
    overwrite(path, one, raw[other : other + length])
    overwrite(path, other, raw[one : one + length])


def to_symlink(path: Path) -> None:
    """Move a file away and put a symbolic link to it in its place."""
    elsewhere = path.parents[-2].joinpath(*path.parts[2:-1]) / f".{path.name}.moved"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)


def to_folder(path: Path) -> None:
    """Put a folder in place of a file."""
    path.unlink()
    path.mkdir()


def to_pipe(path: Path) -> None:
    """Put a named pipe, which nobody writes to, in place of a file."""
    path.unlink()
    os.mkfifo(path)


def age(path: Path) -> None:
    """Make a file look as if nobody had changed it for long."""
    os.utime(path, (LONG_AGO, LONG_AGO))


# -- on stores -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Damage:
    """One entry of the corpus.

    ``inflict`` damages shard SHARD of a store, or what its samples need, and returns the path
    (relative to the store) that the finding of ``kind`` must name. ``remade`` says whether states
    must be computed again.
    """

    name: str
    kind: str
    level: Level
    inflict: Callable[[Store], str]
    remade: bool = False


DATA = keys.shard_file(SHARD)


def _index(store: Store) -> int:
    return store.marker(SHARD).data_bytes - store.identity.geometry.index_bytes


def _marker(store: Store) -> str:
    return store.marker(SHARD).name


def _manifest(store: Store) -> str:
    return store.marker(SHARD).manifest_name


def _tokens(store: Store) -> str:
    return keys.tokens(store.plan.token_files[SHARD].generation, SHARD)


def on(
    name: str | Callable[[Store], str], damage: Callable[[Path], object]
) -> Callable[[Store], str]:
    """Damage to one file of a store, by its path or by what finds it."""

    def inflict(store: Store) -> str:
        path = name if isinstance(name, str) else name(store)
        damage(store.root / path)
        return path

    return inflict


def _swap_shards(store: Store) -> str:
    swap(store.root / keys.shard_file(SHARD), store.root / keys.shard_file(SHARD + 1))
    return keys.shard_file(SHARD)


def _swap_chunks(store: Store) -> str:
    one, other = store.manifest(store.marker(SHARD)).chunks[:2]
    path = store.root / DATA
    swap_ranges(path, one.offset, other.offset, min(one.length, other.length))
    return DATA


def _delete_marker(store: Store) -> str:
    (store.root / _marker(store)).unlink()
    return DATA


def _flip_index(store: Store) -> str:
    flip_bit(store.root / DATA, _index(store) + 5)
    return DATA


def _zero_tail(store: Store) -> str:
    zero(store.root / DATA, _index(store), 1 << 30)
    return DATA


def _duplicate_marker(store: Store) -> str:
    marker = store.marker(SHARD)
    twin = keys.marker(marker.version, absent=True)
    shutil.copy2(store.root / marker.name, store.root / twin)
    return twin


def _other_marker(store: Store) -> str:
    """The marker of the same shard of another store, whole and sealed."""
    marker = store.marker(SHARD)
    own = {name: getattr(marker, name) for name in Marker.__slots__}
    foreign = Marker(**{**own, "store": xxhash.xxh3_128_hexdigest(b"another store")})
    path = store.root / marker.name
    with times_kept(path):
        path.write_bytes(seal(foreign.to_document()))
    return marker.name


def _other_shard_marker(store: Store) -> str:
    marker = _marker(store)
    shutil.copy2(store.root / store.marker(SHARD + 1).name, store.root / marker)
    return marker


INPUT_IDS = keys.array_chunk(keys.INPUT_IDS, SHARD)


LOSS_MASK = keys.array_chunk(keys.LOSS_MASK, SHARD)


SAMPLE_LENGTH = keys.array_chunk(keys.SAMPLE_LENGTH, 0)


SAMPLE_DIGEST = keys.array_chunk(keys.SAMPLE_DIGEST, 0)


ROOT_METADATA = keys.zarr_metadata()


ARRAY_METADATA = keys.zarr_metadata(keys.HIDDEN_STATES)


def _edit_metadata(path: Path) -> None:
    with times_kept(path):
        edited = path.read_bytes().replace(b'"little"', b'"big"')
        path.write_bytes(edited)


CORPUS = (
    Damage("flip-data", "chunk-damaged", "data", on(DATA, lambda p: flip_bit(p, 100)), remade=True),
    Damage("zero-page", "chunk-damaged", "data", on(DATA, lambda p: zero(p, 0, PAGE)), remade=True),
    Damage("swap-chunks", "chunk-damaged", "data", _swap_chunks, remade=True),
    Damage("swap-shards", "data-size", "quick", _swap_shards, remade=True),
    Damage(
        "truncate-data", "data-size", "quick", on(DATA, lambda p: resize(p, -2000)), remade=True
    ),
    Damage("extend-data", "data-size", "quick", on(DATA, lambda p: resize(p, 1))),
    Damage(
        "empty-data", "data-size", "quick", on(DATA, lambda p: resize(p, -1 << 40)), remade=True
    ),
    Damage("delete-data", "data-missing", "quick", on(DATA, Path.unlink), remade=True),
    Damage("folder-data", "data-invalid", "quick", on(DATA, to_folder), remade=True),
    Damage("pipe-data", "data-invalid", "quick", on(DATA, to_pipe), remade=True),
    Damage("symlink-data", "data-invalid", "quick", on(DATA, to_symlink), remade=True),
    Damage(
        "zeros-data",
        "index-damaged",
        "manifest",
        on(DATA, lambda p: zero(p, 0, 1 << 40)),
        remade=True,
    ),
    Damage("flip-index", "index-damaged", "manifest", _flip_index),
    Damage("zero-index", "index-damaged", "manifest", _zero_tail),
    Damage("delete-marker", "marker-missing", "quick", _delete_marker),
    Damage("flip-marker", "marker-invalid", "quick", on(_marker, flip_bit)),
    Damage("empty-marker", "marker-invalid", "quick", on(_marker, lambda p: resize(p, -1 << 40))),
    Damage("folder-marker", "marker-invalid", "quick", on(_marker, to_folder)),
    Damage("symlink-marker", "marker-invalid", "quick", on(_marker, to_symlink)),
    Damage("other-store", "marker-invalid", "quick", _other_marker),
    Damage("other-shard", "marker-invalid", "quick", _other_shard_marker),
    Damage("duplicate-marker", "marker-invalid", "quick", _duplicate_marker),
    Damage(
        "delete-manifest", "manifest-missing", "manifest", on(_manifest, Path.unlink), remade=True
    ),
    Damage("flip-manifest", "manifest-invalid", "manifest", on(_manifest, flip_bit), remade=True),
    Damage(
        "folder-manifest", "manifest-invalid", "manifest", on(_manifest, to_folder), remade=True
    ),
    Damage("flip-tokens", "tokens-damaged", "manifest", on(_tokens, flip_bit)),
    Damage("delete-tokens", "tokens-missing", "manifest", on(_tokens, Path.unlink)),
    Damage("symlink-tokens", "tokens-damaged", "manifest", on(_tokens, to_symlink)),
    Damage("flip-ids", "array-damaged", "manifest", on(INPUT_IDS, flip_bit)),
    Damage("delete-ids", "array-missing", "manifest", on(INPUT_IDS, Path.unlink)),
    Damage("folder-ids", "array-damaged", "manifest", on(INPUT_IDS, to_folder)),
    Damage("flip-mask", "array-damaged", "manifest", on(LOSS_MASK, flip_bit)),
    Damage("flip-length", "array-damaged", "manifest", on(SAMPLE_LENGTH, lambda p: flip_bit(p, 4))),
    Damage("flip-length-tail", "array-damaged", "manifest", on(SAMPLE_LENGTH, flip_bit)),
    Damage("flip-digest", "array-damaged", "manifest", on(SAMPLE_DIGEST, lambda p: flip_bit(p, 4))),
    Damage(
        "truncate-digest", "array-damaged", "manifest", on(SAMPLE_DIGEST, lambda p: resize(p, -1))
    ),
    Damage("flip-root", "metadata-damaged", "manifest", on(ROOT_METADATA, flip_bit)),
    Damage("edit-array", "metadata-damaged", "manifest", on(ARRAY_METADATA, _edit_metadata)),
    Damage("delete-array", "metadata-missing", "manifest", on(ARRAY_METADATA, Path.unlink)),
    Damage("delete-folder", "folder-missing", "quick", on(keys.INTENT, Path.rmdir)),
)


def forge_manifest(store: Store, marker: Marker, document: dict[str, object]) -> None:
    """Put another manifest in place, with true seals and a marker that names it."""
    raw = seal(document)
    own = {name: getattr(marker, name) for name in Marker.__slots__}
    own["manifest_xxh3_128"] = xxhash.xxh3_128_hexdigest(raw)
    (store.root / marker.manifest_name).write_bytes(raw)
    (store.root / marker.name).write_bytes(seal(Marker(**own).to_document()))
