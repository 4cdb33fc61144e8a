"""What the shard file of a store may be, by documents that are whole, and reading it verified."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hsstore.errors import Stopped
from hsstore.integrity.checks import manifests, markers
from hsstore.integrity.copying.meter import Meter
from hsstore.integrity.examine import Listing
from hsstore.integrity.plain_file import Trouble, plain_status, read_plain, translated
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model import keys
from hsstore.model.manifest import Chunk, Manifest
from hsstore.model.marker import INTENT_KIND, Marker
from hsstore.storage import digest
from hsstore.storage.filesystem import Filesystem

Stop = Callable[[], bool]


class Damaged(Exception):
    """What is to be copied is not whole; the words say how that showed."""


@dataclass(frozen=True, slots=True)
class Version:
    """A generation of a shard: marker or intent, manifest, and the bytes of the manifest."""

    marker: Marker
    manifest: Manifest
    raw: bytes


def versions(subject: Subject, shard: int, listing: Listing) -> list[Version]:
    """What the file in place may be: what is committed, then what pending intents replace it by.

    Only what whole documents prove; none where there is no such document.
    """
    case = ShardCase(subject, shard, *listing.of(shard))
    for _ in markers.check(case):
        pass
    found = [case.marker] if case.marker else []
    for intended in sorted(case.intents):
        if case.marker is None or intended > case.marker.version:
            with contextlib.suppress(Trouble):
                found.append(markers.read_marker(case, keys.intent(intended), INTENT_KIND))
    return [version for marker in found if (version := _version(case, marker))]


def _version(case: ShardCase, marker: Marker) -> Version | None:
    subject = case.subject
    try:
        manifest = manifests.read(case, marker)
        raw = read_plain(subject.filesystem, subject.root, marker.manifest_name)
    except Trouble:
        return None
    return Version(marker, manifest, raw)


@contextlib.contextmanager
def opened_shard(subject: Subject, shard: int) -> Iterator[int]:
    """A descriptor of a shard file; Damaged where it is no plain file that can be opened."""
    filesystem, root, name = subject.filesystem, subject.root, keys.shard_file(shard)
    try:
        plain_status(filesystem, root, name)
        with translated():
            fd = filesystem.open(root / name)
    except Trouble as trouble:
        raise Damaged(trouble.detail) from None
    try:
        yield fd
    finally:
        filesystem.close(fd)


def whole_chunks(
    filesystem: Filesystem,
    fd: int,
    path: Path,
    chunks: Iterable[Chunk],
    *,
    meter: Meter,
    stop: Stop,
) -> Iterator[tuple[Chunk, bytearray]]:
    """Each chunk with its bytes, whose hash is right.

    What looks wrong is read once more, past the page cache. Raises Damaged, and Stopped once
    ``stop`` says so.
    """
    for chunk in chunks:
        go_on(stop)
        yield chunk, _whole(filesystem, fd, path, chunk)
        meter.copied(chunk.length)


def go_on(stop: Stop) -> None:
    """Stopped once that was asked for."""
    if stop():
        raise Stopped("stopped; what was copied is kept", remedy="run the same command again")


def _whole(filesystem: Filesystem, fd: int, path: Path, chunk: Chunk) -> bytearray:
    stored = bytearray(chunk.length)
    try:
        with translated():
            filesystem.read_at(fd, stored, chunk.offset, path)
            if digest.chunk_digest(stored) != chunk.xxh3_64:
                filesystem.forget_cached(fd)
                stored[:] = bytes(chunk.length)
                filesystem.read_at(fd, stored, chunk.offset, path)
    except Trouble as trouble:
        raise Damaged(f"chunk {chunk.chunk}: {trouble.detail}") from None
    if digest.chunk_digest(stored) != chunk.xxh3_64:
        raise Damaged(f"chunk {chunk.chunk} is not what was stored")
    return stored
