"""What a copy did, and what it left out."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hsstore.model.finding import Finding


@dataclass(slots=True)
class CopyResult:
    """A copy; shards are those of the destination.

    before: there already, found right by marker and size.
    copied, replaced: by this run; replaced are those that were there in an older generation.
    missing: not committed at the source.
    damaged: left out, for the source is not whole there; ``findings`` say how.
    differing: committed at the destination by somebody else; left as they are.
    held: left to another writer that has claimed them.
    """

    source: Path
    destination: Path
    uuid: str
    same_store: bool
    shards: int
    before: int = 0
    copied: int = 0
    replaced: int = 0
    bytes_copied: int = 0
    missing: list[int] = field(default_factory=list)
    damaged: list[int] = field(default_factory=list)
    differing: list[int] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether all that the source has is at the destination, as the source has it."""
        return not (self.damaged or self.differing or self.held or self.left_out)

    def to_json(self) -> dict[str, Any]:
        """The last line of ``copy --json``."""
        own = {name: getattr(self, name) for name in self.__slots__ if name != "findings"}
        own |= {"source": str(self.source), "destination": str(self.destination)}
        return {"type": "summary", **own, "complete": self.complete}
