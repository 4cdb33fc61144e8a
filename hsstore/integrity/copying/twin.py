"""The documents of a store once more at another place: all that is there before the first shard."""

import contextlib
from collections.abc import Callable, Iterator

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.errors import InvalidDocument, StoreError, StoreExists, UnsupportedFormat
from hsstore.integrity.copying.place import Place
from hsstore.integrity.copying.version import Stop, go_on
from hsstore.integrity.plain_file import Trouble, names_in, read_plain
from hsstore.integrity.subject import Subject
from hsstore.model import commands, keys
from hsstore.model.document import unseal
from hsstore.model.progress import Progress
from hsstore.storage.builder import StoreFiles
from hsstore.storage.building import building, free_target, publish
from hsstore.storage.catch_up import catch_up
from hsstore.storage.growing import growing
from hsstore.storage.store import Store, read_plan
from hsstore.storage.token_file import decode, token_digest
from hsstore.storage.zarr_arrays import (
    TABLE_CHUNK,
    ArrayChunk,
    metadata_documents,
    shard_chunks,
    table_chunks,
)

LeaveOut = Callable[[str], None]

# Folders of documents that belong to the whole store, and the kind of those.
KEPT = {keys.CALIBRATION: "calibration", keys.WAIVER: "waiver"}


def build_twin(place: Place, leave_out: LeaveOut) -> None:
    """Make the same store at a place, without its shards; ``leave_out`` hears what is damaged.

    What follows from identity, plan and token files is not copied but written anew, so nothing
    that is damaged at the source comes along. Raises StoreExists, StorageFailed, Stopped, OSError.
    """
    subject, filesystem = place.subject, place.filesystem
    target = free_target(place.target, filesystem)
    identity = subject.filesystem.read(subject.root / keys.IDENTITY)
    with building(target, identity, filesystem) as root:
        files = StoreFiles(filesystem, root)
        files.begin()
        _Twin(subject, files, leave_out).write(place.progress, place.stop)
        publish(root, target, filesystem)


class _Twin:
    """Writes the documents of one store into the folder that becomes another."""

    def __init__(self, subject: Subject, files: StoreFiles, leave_out: LeaveOut) -> None:
        self._subject = subject
        self._store = subject.store
        self._files = files
        self._leave_out = leave_out
        # None once the tokens of a shard are not whole.
        self._digests: list[bytes] | None = []

    def write(self, progress: Progress, stop: Stop) -> None:
        plan = self._store.plan
        progress.start(plan.shards, 0, "token files")
        for shard in range(plan.shards):
            go_on(stop)
            self._tokens(shard)
            progress.advance(1)
        self._tables()
        for key, document in metadata_documents(self._store.identity, plan).items():
            self._files.write(key, document)
        for name, raw in documents(self._subject, self._leave_out):
            self._files.write(name, raw)
        for generation in range(plan.generation + 1):
            self._plan(generation)
        self._files.finish()

    def _plan(self, generation: int) -> None:
        """Copy a plan, if it is whole; the newest is."""
        store = self._store
        try:
            read_plan(store.filesystem, store.root, store.identity.uuid, generation)
        except (InvalidDocument, UnsupportedFormat, OSError):
            self._leave_out(keys.plan(generation))
        else:
            self._copy(keys.plan(generation))

    def _tokens(self, shard: int) -> None:
        name = keys.tokens(self._store.plan.token_files[shard].generation, shard)
        raw = self._token_file(shard, name)
        if raw is None:
            # The arrays, and the keys in the manifest, have what proves it: a repair rebuilds it.
            self._leave_out(name)
            self._digests = None
            for array in (keys.INPUT_IDS, keys.LOSS_MASK):
                self._copy(keys.array_chunk(array, shard))
            return
        self._files.write(name, raw)
        tokens = decode(raw, name, proven=True)
        for chunk in shard_chunks(shard, tokens, self._store.identity.geometry):
            self._files.write_chunk(chunk)
        if self._digests is not None:
            self._digests += [token_digest(ids) for _, ids, _ in tokens.samples()]

    def _token_file(self, shard: int, name: str) -> bytes | None:
        """The bytes of a token file, None unless they are those of the plan."""
        try:
            raw = read_plain(self._subject.filesystem, self._subject.root, name)
        except Trouble:
            return None
        planned = self._store.plan.token_files[shard].xxh3_128
        return raw if xxhash.xxh3_128_hexdigest(raw) == planned else None

    def _tables(self) -> None:
        table = self._store.samples
        if self._digests is None:
            for number in range(-(-len(table) // TABLE_CHUNK)):
                self._copy(keys.array_chunk(keys.SAMPLE_DIGEST, number))
        for chunk in table_chunks(table.start, table.length, _matrix(self._digests, len(table))):
            if self._digests is not None or not _is_digest(chunk):
                self._files.write_chunk(chunk)

    def _copy(self, name: str) -> None:
        """Copy a file as it is, of which a check of the copy must tell what it is worth."""
        subject = self._subject
        try:
            raw = read_plain(subject.filesystem, subject.root, name)
        except Trouble:
            self._leave_out(name)
        else:
            self._files.write(name, raw)


def _matrix(digests: list[bytes] | None, samples: int) -> NDArray[np.uint8]:
    raw = bytes(16 * samples) if digests is None else b"".join(digests)
    return np.frombuffer(raw, np.uint8).reshape(samples, 16)


def _is_digest(chunk: ArrayChunk) -> bool:
    return chunk.key.startswith(f"{keys.ZARR}/{keys.SAMPLE_DIGEST}/")


def documents(subject: Subject, leave_out: LeaveOut) -> Iterator[tuple[str, bytes]]:
    """The whole documents in ``KEPT``, by path; ``leave_out`` hears of the others."""
    for folder, kind in KEPT.items():
        for name in names_in(subject.filesystem, subject.root, folder):
            path = f"{folder}/{name}"
            if name.startswith("."):
                continue
            try:
                raw = read_plain(subject.filesystem, subject.root, path)
                owner = unseal(raw, kind).get("store")
            except (Trouble, InvalidDocument, UnsupportedFormat):
                owner = None
            if owner == subject.store.identity.uuid:
                yield path, raw
            else:
                leave_out(path)


def add_documents(subject: Subject, store: Store, leave_out: LeaveOut) -> None:
    """Add the documents of ``KEPT`` that a copy lacks; what it has stays. Raises OSError."""
    for path, raw in documents(subject, leave_out):
        target = store.root / path
        if not store.filesystem.exists(target):
            store.filesystem.make_folder(target.parent)
            with contextlib.suppress(FileExistsError):
                store.filesystem.publish(target, raw)


def lacking(copy: Store) -> Iterator[str]:
    """The plans and token files that a copy does not have. Raises OSError.

    They were not whole at the source when it was made; whatever the source is by now, and whoever
    goes on with the copy, it is not complete without them.
    """
    names = map(keys.plan, range(copy.plan.generation))
    files = enumerate(copy.plan.token_files)
    for name in (*names, *(keys.tokens(file.generation, shard) for shard, file in files)):
        if not copy.filesystem.exists(copy.root / name):
            yield name


def refuse_another(place: Place) -> None:
    """StoreExists unless the store at a place is the same one, and its plans are, as far as known.

    Raises InvalidDocument, OSError.
    """
    source, theirs = place.source, place.opened()
    known = min(source.plan.generation, theirs.plan.generation)
    if source.identity != theirs.identity or _seal(source, known) != _seal(theirs, known):
        raise StoreExists(
            "another store is there already",
            place=str(place.target),
            remedy="choose another path; nothing was written",
        )


def _seal(store: Store, generation: int) -> str:
    if generation == store.plan.generation:
        return store.plan.seal
    return read_plan(store.filesystem, store.root, store.identity.uuid, generation).seal


def grow(source: Store, copy: Store, progress: Progress) -> Store:
    """Let a copy follow the growths of its source; the copy as it is then.

    Raises ClaimedByAnother while another process grows the copy, InvalidDocument where a plan or a
    token file of the source is not whole, OSError.
    """
    if copy.plan.generation >= source.plan.generation:
        return copy
    with growing(copy) as held:
        for generation in range(held.store.plan.generation + 1, source.plan.generation + 1):
            plan = read_plan(source.filesystem, source.root, source.identity.uuid, generation)
            if plan.previous != held.store.plan.seal:
                raise StoreError(
                    f"plan {generation} of the source does not go on where the copy's ends",
                    place=str(copy.root),
                    remedy=f"run: {commands.hsstore('fsck', source.root)}",
                )
            held.begin()
            for shard in range(held.store.plan.shards, plan.shards):
                held.add_tokens(shard, _token_file(source, shard))
            held.decide(plan)
            held.withdraw()
            held.store = Store(copy.root, copy.identity, plan, copy.filesystem)
        catch_up(held.store, progress, held.verify)
        return held.store


def _token_file(source: Store, shard: int) -> bytes:
    source.tokens(shard)
    file = source.plan.token_files[shard]
    return source.filesystem.read(source.root / keys.tokens(file.generation, shard))
