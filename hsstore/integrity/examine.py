"""Everything that is to be known of one shard, check by check."""

import threading
import time
from collections.abc import Set as AbstractSet

from hsstore.integrity.checks import (
    arrays,
    chunks,
    content,
    manifests,
    markers,
    shard_file,
    tokens,
    unmarked,
)
from hsstore.integrity.plain_file import Trouble, names_in
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model import keys
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import INTENT_KIND, Marker

# Within so much of each other, two changes of a folder may bear the same time.
SETTLED_NS = 2 * 10**9

UNTOUCHED = frozenset({"shard-missing", "sample-absent", "sample-waived", "marker-superseded",
                       "origin-contradicts"})  # fmt: skip
LACKING = frozenset({"sample-absent", "sample-waived"})

# What a file gives rise to that is of another generation than the marker. A manifest that is not
# there says nothing of the file, and stays so whatever that is.
OF_THE_FILE = frozenset({"data-size", "index-damaged"})
CONTRADICTIONS = OF_THE_FILE | {"chunk-damaged", "manifest-missing", "manifest-invalid"}
KEPT = frozenset({"manifest-missing", "manifest-invalid", "marker-superseded", "marker-duplicate"})


def examine(subject: Subject, shard: int, listing: "Listing | None" = None) -> ShardCase:
    """Examine a shard to the level of ``subject``.

    What looks damaged is looked at again if the shard's names changed meanwhile: it was being
    replaced. While a replacement is decided but unfinished, the old version or the new may be in
    place.
    """
    listing = listing or Listing(subject)
    case = _examine(subject, shard, listing)
    if any(_replacement_explains(finding.kind) for finding in case.findings):
        fresh = listing.now()
        if fresh.of(shard) != listing.of(shard):
            case = _examine(subject, shard, fresh)
    return case


def _replacement_explains(kind: str) -> bool:
    """Whether a finding may come of the shard being replaced since its names were listed."""
    return kind not in UNTOUCHED and not kind.startswith(("tokens-", "array-"))


class Listing:
    """The names in commit/ and intent/, by shard."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._newest = self
        self._lock = threading.Lock()
        self._settled_ns, self._times = time.time_ns() - SETTLED_NS, _changed_ns(subject)
        self._markers: dict[int, list[tuple[ShardVersion, bool]]] = {}
        self._intents: dict[int, list[ShardVersion]] = {}
        for name in names_in(subject.filesystem, subject.root, keys.COMMIT):
            found = keys.read_marker(name)
            if found and keys.marker(found[0], absent=found[1]).endswith(f"/{name}"):
                self._markers.setdefault(found[0].shard, []).append(found)
        for name in names_in(subject.filesystem, subject.root, keys.INTENT):
            intent = keys.read_intent(name)
            if intent and keys.intent(intent).endswith(f"/{name}"):
                self._intents.setdefault(intent.shard, []).append(intent)

    def now(self) -> "Listing":
        """The names as they are now: listed again only if a folder may have changed meanwhile.

        In a store with tens of thousands of damaged shards all would be listed for each of them.
        """
        with self._lock:
            if not self._newest.holds():
                self._newest = Listing(self._subject)
            return self._newest

    def holds(self) -> bool:
        """Whether both folders are certainly as they were when they were listed."""
        settled = all(changed is not None and changed < self._settled_ns for changed in self._times)
        return settled and self._times == _changed_ns(self._subject)

    @property
    def marked(self) -> AbstractSet[int]:
        """The shards that have a marker."""
        return self._markers.keys()

    def generation(self, shard: int) -> int:
        """The newest generation that a marker of a shard names; 0 where there is none."""
        versions = (version for version, _ in self._markers.get(shard, ()))
        return max((version.generation for version in versions), default=0)

    def of(
        self, shard: int
    ) -> tuple[tuple[tuple[ShardVersion, bool], ...], tuple[ShardVersion, ...]]:
        """The markers and the intents of a shard."""
        return tuple(self._markers.get(shard, ())), tuple(self._intents.get(shard, ()))


def _changed_ns(subject: Subject) -> list[int | None]:
    """When each of the two folders was last changed (ns, UTC); None where nobody can tell."""
    found: list[int | None] = []
    for folder in (keys.COMMIT, keys.INTENT):
        try:
            found.append(subject.filesystem.status(subject.root / folder).st_mtime_ns)
        except OSError:
            found.append(None)
    return found


def _examine(subject: Subject, shard: int, listing: Listing) -> ShardCase:
    case = ShardCase(subject, shard, *listing.of(shard))
    if subject.at_least("manifest"):
        case.findings += tokens.check(subject, shard)
        case.findings += arrays.check_shard(subject, shard)
    case.findings += markers.check_intents(case)
    before = len(case.findings)
    case.findings += markers.check(case)
    _examine_committed(case)
    if len(case.findings) > before:
        _try_intents(case, before)
        _try_later(case, before)
    case.verified = len(subject.samples(shard)) - (len(case.lost) if _unproven(case) else 0)
    if subject.at_least("thorough") and subject.tokens(shard) is None:
        case.verified = 0
    return case


def _examine_committed(case: ShardCase) -> None:
    subject, marker = case.subject, case.marker
    if marker is None:
        return
    size = [*shard_file.check_size(case)]
    if subject.at_least("manifest") or size or marker.absent:
        case.findings += manifests.check(case)
        size = size and [*shard_file.check_size(case)]  # now that the manifest names samples
    case.findings += size
    if subject.at_least("manifest"):
        case.findings += shard_file.check_index(case)
    if subject.at_least("data"):
        case.findings += chunks.check(case)
        case.findings += content.check(case)


def _try_intents(case: ShardCase, before: int) -> None:
    """Take the version of an intent where that one is in place and whole."""
    for version in case.intents:
        marker = _intended(case, version)
        if marker is None:
            continue
        other = ShardCase(case.subject, case.shard, case.markers, case.intents, marker=marker)
        _examine_committed(other)
        if all(f.kind in LACKING for f in other.findings):
            case.findings[before:] = other.findings
            case.marker, case.manifest, case.lost = marker, other.manifest, other.lost
            case.file_bytes, case.index_whole = other.file_bytes, True
            case.bytes_checked += other.bytes_checked
            case.look, case.unsound = other.look, other.unsound


def _try_later(case: ShardCase, before: int) -> None:
    """Take a file that its marker contradicts for that of a later generation, if it is that.

    Of such a replacement the intent was lost after its file went into place, or the marker later.
    """
    kinds = {finding.kind for finding in case.findings[before:]}
    telling = CONTRADICTIONS if case.subject.at_least("data") else OF_THE_FILE
    if not kinds & telling or any(keys.intent(v) not in case.discredited for v in case.intents):
        return
    for marker in unmarked.later(case):
        other = ShardCase(case.subject, case.shard, case.markers, case.intents, marker=marker)
        _examine_committed(other)
        case.bytes_checked += other.bytes_checked
        if all(f.kind in LACKING or f.kind.startswith("content-") for f in other.findings):
            kept = [f for f in case.findings[before:] if f.kind in KEPT]
            case.findings[before:] = [*kept, *other.findings, unmarked.overtaken(case, marker)]
            case.marker = case.manifest = case.look = None
            case.lost.clear()
            case.provable = case.subject.at_least("data")
            return


def _intended(case: ShardCase, version: ShardVersion) -> Marker | None:
    name = keys.intent(version)
    if name in case.discredited:
        return None
    try:
        return markers.read_marker(case, name, INTENT_KIND)
    except Trouble:
        return None


def _unproven(case: ShardCase) -> bool:
    """Whether the shard's lost samples are so for want of a document, not of right bytes."""
    return case.marker is None or case.manifest is None
