"""What there is of a shard that no true marker vouches for."""

import contextlib
from collections.abc import Iterator

import xxhash

from hsstore.integrity.checks import chunks
from hsstore.integrity.checks.manifests import inconsistencies
from hsstore.integrity.checks.shard_file import is_in_place
from hsstore.integrity.plain_file import Trouble, plain_status
from hsstore.integrity.subject import ShardCase
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.model.manifest import Chunk, Manifest
from hsstore.model.marker import Marker
from hsstore.storage.roll_forward import provable, valid_manifests
from hsstore.storage.waivers import waived


def finding(case: ShardCase) -> Finding:
    """The finding of a shard without any marker."""
    subject, path = case.subject, keys.shard_file(case.shard)
    samples = subject.samples(case.shard)
    try:
        there = subject.filesystem.exists(subject.root / path)
    except OSError as error:
        case.lose(samples)
        detail = f"{error.strerror or error}; whether there is a shard file cannot be told"
        return case.finding("data-unreadable", detail, samples=samples, path=path, source=True)
    if not there:
        case.lose(samples)
        # Naming them takes the token file of every missing shard, which quick does not read.
        named = samples if subject.at_least("manifest") else None
        return case.finding("shard-missing", _never_extracted(samples), samples=named, source=True)
    detail = judge(case)
    return case.finding(
        "marker-missing", detail, samples=samples, path=path, source=bool(case.lost)
    )


def _never_extracted(samples: range) -> str:
    if not samples:
        return "its samples were never extracted"
    return f"{len(samples)} samples were never extracted: #{samples[0]} to #{samples[-1]}"


def later(case: ShardCase) -> Iterator[Marker]:
    """The markers that later generations than the marked one would have, newest first.

    Of those only whose manifest is whole, and names the size and the index of the file in place.
    """
    marked, listed = case.marker, case.subject.manifests.get(case.shard, [])
    if marked is None or not any(version > marked.version for version in listed):
        return
    with contextlib.suppress(OSError):
        for manifest, raw in valid_manifests(case.subject.store, case.shard):
            marker = Marker.of(manifest, xxhash.xxh3_128_hexdigest(raw))
            if marker.version > marked.version and is_in_place(case, marker):
                yield marker


def overtaken(case: ShardCase, marker: Marker) -> Finding:
    """The finding of a shard whose file is of a later generation than its marker."""
    detail = f"the shard file is that of generation {marker.version.generation}"
    if case.subject.at_least("data"):
        detail += ": its manifest proves every byte, and only its commit marker must be written"
    else:
        detail += "; whether it is whole shows at level data"
    return case.finding(
        "marker-missing",
        f"{detail} (the intent that decided it is lost, or the marker)",
        samples=case.subject.samples(case.shard),
        path=keys.shard_file(case.shard),
    )


def judge(case: ShardCase) -> str:
    """Hold the shard file against the manifests that there are; the verdict in words.

    Sets ``case.provable``, or ``case.manifest`` to the one that saves most and ``case.lost`` to
    what even that one cannot save.
    """
    subject = case.subject
    if not subject.at_least("data"):
        return "whether its shard file is whole shows at level data"
    try:
        status = plain_status(subject.filesystem, subject.root, keys.shard_file(case.shard))
    except Trouble as trouble:
        case.lose(subject.samples(case.shard))
        return f"and of the shard file: {trouble.detail}"
    case.file_bytes = status.st_size
    if _provable(case):
        case.provable = True
        return "the shard file is whole: only its commit marker must be written again"
    _choose(case)
    if case.manifest is None:
        return "no manifest says what the shard file holds"
    return f"{len(case.lost)} of its samples are damaged too"


def _provable(case: ShardCase) -> bool:
    try:
        return provable(case.subject.store, case.shard) is not None
    except (OSError, OverflowError, ValueError, IndexError):
        return False


def _manifests(case: ShardCase) -> list[Manifest]:
    try:
        return [manifest for manifest, _ in valid_manifests(case.subject.store, case.shard)]
    except OSError:
        return []


def _choose(case: ShardCase) -> None:
    best: tuple[int, Manifest, dict[int, list[Chunk]]] | None = None
    for manifest in _manifests(case):
        if any(True for _ in inconsistencies(case, manifest)):
            continue
        accepted = waived(case.subject.waivers, manifest.absent)
        case.manifest = manifest
        case.lost = {s.sample: [] for s in manifest.absent if s.sample not in accepted}
        chunks.lost_by_truncation(case, manifest)
        for _ in chunks.check(case):
            pass
        if best is None or len(case.lost) < best[0]:
            best = len(case.lost), manifest, case.lost
    if best is None:
        case.manifest = None
        case.lose(case.subject.samples(case.shard))
    else:
        _, case.manifest, case.lost = best
