"""A finding of fsck: what is wrong, exactly where, the evidence and the remedy.

Kinds are stable and only ever added to.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from hsstore.model.audit import AuditCounts

Severity = Literal["error", "warning", "note"]
Level = Literal["quick", "manifest", "data", "thorough"]
LEVELS: tuple[Level, ...] = ("quick", "manifest", "data", "thorough")

KINDS = {
    "identity-invalid": "hsstore.json is torn or edited",
    "identity-unreadable": "hsstore.json cannot be read",
    "folder-missing": "a folder of the format is gone, or something else is in its place",
    "folder-unreadable": "a folder of the format cannot be listed",
    "shard-missing": "no commit marker: the shard was never finished",
    "sample-absent": "the shard is committed without this sample",
    "sample-waived": "the shard is committed without this sample, and somebody accepted that",
    "waiver-invalid": "a waiver is torn, edited, or of another store",
    "waiver-unreadable": "a waiver cannot be read",
    "marker-missing": "a shard file is in place, but no commit marker vouches for it",
    "marker-invalid": "a commit marker is torn, edited, or of another store",
    "marker-duplicate": "two commit markers for one generation of a shard",
    "marker-superseded": "a commit marker of an older generation was left behind",
    "marker-unreadable": "a commit marker cannot be read",
    "intent-pending": "a replacement was committed but not finished",
    "intent-invalid": "an intent is torn, edited, or of another store",
    "intent-unreadable": "an intent cannot be read",
    "manifest-missing": "the manifest that the marker names is gone",
    "manifest-invalid": "the manifest is torn, edited, or not the one that the marker names",
    "manifest-unreadable": "the manifest cannot be read",
    "data-missing": "the shard file is gone",
    "data-invalid": "something other than a plain file is in place of the shard file",
    "data-size": "the shard file is not as long as its marker says",
    "data-unreadable": "bytes of the shard file cannot be read",
    "index-damaged": "the shard index is not the one that the marker names",
    "chunk-damaged": "a chunk's bytes differ from the manifest",
    "chunk-unstable": "a chunk was read wrong once, and right from the disk: suspect the memory",
    "calibration-invalid": "a calibration document is torn, edited, or of another store",
    "calibration-unreadable": "a calibration document cannot be read",
    "plan-invalid": "a plan document is torn, edited, or of another store",
    "plan-unreadable": "a plan document cannot be read",
    "plan-missing": "a plan document before the newest is gone",
    "plan-lost": "the store was larger than its newest whole plan says",
    "growth-pending": "a growth was decided, but the arrays do not show all of it yet",
    "growth-undecided": "token files of a growth that was never decided",
    "tokens-missing": "a token file is gone",
    "tokens-damaged": "a token file differs from the plan",
    "tokens-unreadable": "a token file cannot be read",
    "array-missing": "a chunk of a token or sample array is gone",
    "array-damaged": "a chunk of a token or sample array differs from the token files",
    "array-unreadable": "a chunk of a token or sample array cannot be read",
    "metadata-missing": "a zarr.json is gone",
    "metadata-damaged": "a zarr.json is not what the store's identity and plan demand",
    "metadata-unreadable": "a zarr.json cannot be read",
    "foreign-file": "a file that the format does not know",
    "origin-contradicts": "states were computed by another model or setting than the store's",
    "origin-mixed": "shards were computed by different engines or settings",
    "content-nonfinite": "a sample holds values that are not finite",
    "content-zero": "rows of a sample, or a whole layer of it, are zeros",
    "content-constant": "rows of a sample that differ in their tokens are equal",
    "content-duplicated": "a sample holds the rows of another one with other tokens",
    "content-shifted": "a sample's rows do not begin where its tokens do",
    "content-differs": "the decoded rows are not those that the manifest describes",
    "content-outlier": "a layer of a sample has norms far from those of the rest of the store",
    "audit-wrong": "computed again, a sample has other states",
    "audit-noise": "computed again, a sample has the same states within numeric noise",
    "audit-failed": "a sample could not be computed again",
}

# What no sample suffers from is a warning, what is only good to know a note; neither is a problem.
WARNINGS = frozenset({"marker-superseded", "intent-pending", "chunk-unstable", "foreign-file",
                      "plan-missing", "growth-pending", "growth-undecided",
                      "audit-failed"})  # fmt: skip
# What shows only beside samples of other shards: no look at fewer of them takes it back.
COMPARED = frozenset({"content-duplicated", "content-shifted", "content-outlier"})
NOTES = frozenset({"origin-mixed", "sample-waived", "audit-noise"})
BEYOND_REPAIR = NOTES | {"marker-superseded", "chunk-unstable", "foreign-file", "plan-unreadable",
                         "plan-lost", "identity-invalid",
                         "identity-unreadable"}  # fmt: skip


def severity_of(kind: str) -> Severity:
    """How grave findings of a kind are; only errors make a store unsound."""
    if kind in NOTES:
        return "note"
    return "warning" if kind in WARNINGS else "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding, as ``fsck --json`` prints it; None where a member does not apply.

    ``generation`` is that of the shard, where the finding is about what that generation holds.
    """

    kind: str
    severity: Severity
    detail: str
    shard: int | None = None
    samples: tuple[str, ...] | None = None
    path: str | None = None
    chunk: int | None = None
    byte_range: tuple[int, int] | None = None
    evidence: str | None = None
    repair: str | None = None
    generation: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON line of this finding."""
        return {"type": "finding"} | {name: getattr(self, name) for name in self.__slots__}


Stop = Literal["interrupted", "max-duration"]


@dataclass(slots=True)
class Summary:
    """What a run of fsck covered and found so far, as ``fsck --json`` ends with.

    ``complete`` says that all that was asked for was looked at, or had been recently enough;
    ``stopped`` why not, where somebody wanted it so. ``subset`` is (n, t), and ``shards_asked``
    counts the shards of it (and of the range asked for), of which ``shards_recent`` were left out
    because they had been verified recently enough.
    ``unverified`` counts samples of the shards asked for that were not checked to the level asked
    for: not reached, never extracted, or without the documents that would prove them.
    ``bytes_checked`` counts stored payload bytes that were read and hashed. ``audit`` says how the
    samples came out that were computed again, None where none were to be.
    """

    level: Level
    shards_total: int
    unverified: int
    complete: bool = False
    shards_checked: int = 0
    samples_damaged: int = 0
    bytes_checked: int = 0
    findings: dict[Severity, int] = field(
        default_factory=lambda: {"error": 0, "warning": 0, "note": 0}
    )
    shards_asked: int = 0
    shards_recent: int = 0
    subset: tuple[int, int] | None = None
    stopped: Stop | None = None
    audit: AuditCounts | None = None

    @property
    def sound(self) -> bool:
        """Whether nothing that was checked is wrong."""
        return self.findings["error"] == 0

    def to_json(self) -> dict[str, Any]:
        """The last line of ``fsck --json``."""
        own = {name: getattr(self, name) for name in self.__slots__}
        return {"type": "summary"} | own | {"audit": self.audit and self.audit.to_json()}
