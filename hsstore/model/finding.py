"""A finding of fsck: what is wrong, exactly where, the evidence and the remedy.

Kinds are stable and only ever added to.
"""

from dataclasses import dataclass
from typing import Any, Literal

Severity = Literal["error", "warning", "note"]
Level = Literal["quick", "manifest", "data"]
LEVELS: tuple[Level, ...] = ("quick", "manifest", "data")

KINDS = {
    "shard-missing": "no commit marker: the shard was never finished",
    "sample-absent": "the shard is committed without this sample",
    "marker-invalid": "a commit marker is torn, edited, or of another store",
    "marker-duplicate": "two commit markers for one generation of a shard",
    "marker-unreadable": "a commit marker cannot be read",
    "intent-pending": "a replacement was committed but not finished",
    "intent-invalid": "an intent is torn, edited, or of another store",
    "manifest-missing": "the manifest that the marker names is gone",
    "manifest-invalid": "the manifest is torn, edited, or not the one that the marker names",
    "data-missing": "the shard file is gone",
    "data-size": "the shard file is not as long as its marker says",
    "data-unreadable": "bytes of the shard file cannot be read",
    "index-damaged": "the shard index is not the one that the marker names",
    "chunk-damaged": "a chunk's bytes differ from the manifest",
    "plan-invalid": "a plan document is torn, edited, or of another store",
    "tokens-missing": "a token file is gone",
    "tokens-damaged": "a token file differs from the plan",
    "array-missing": "a chunk of a token or sample array is gone",
    "array-damaged": "a chunk of a token or sample array differs from the token files",
    "metadata-missing": "a zarr.json is gone",
    "metadata-damaged": "a zarr.json is not what the store's identity and plan demand",
    "foreign-file": "a file that the format does not know",
    "origin-mixed": "shards were computed by different engines or settings",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding, as ``fsck --json`` prints it; None where a member does not apply."""

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

    def to_json(self) -> dict[str, Any]:
        """The JSON line of this finding."""
        return {"type": "finding"} | {name: getattr(self, name) for name in self.__slots__}
