"""What nothing in a store needs any more, and what became of it."""

from dataclasses import dataclass, field
from typing import Any, Literal

from hsstore.model import keys

Kind = Literal[
    "staged", "marker", "manifest", "temporary", "claim", "growth", "creation", "quarantine"
]

WORDS: dict[Kind, str] = {
    "staged": "staging folder",
    "marker": "marker of an older generation",
    "manifest": "manifest",
    "temporary": "temporary file",
    "claim": "claim",
    "growth": "tokens of a growth",
    "creation": "unfinished creation",
    "quarantine": "quarantine",
}


@dataclass(frozen=True, slots=True)
class Litter:
    """One file or folder that nothing needs.

    ``path`` is relative to the store. ``bytes`` and ``inodes`` are what its removal frees:
    allocated bytes, and none for a file with another name. ``reason`` says why nothing needs it.
    ``claim`` is the shard (``keys.GROWTH`` for the store's growth) whose claim must be taken to
    remove it, None where none need be; ``of`` is the one that it belongs to, None for none.
    """

    kind: Kind
    path: str
    bytes: int
    inodes: int
    reason: str
    of: int | None = None
    claim: int | None = None

    @property
    def condition(self) -> str:
        """What must hold for it to be removed."""
        if self.kind == "creation":
            return "no process has its hsstore.json locked"
        if self.of is None:
            return (
                "its process is gone, or silent for an hour" if self.kind == "temporary" else "none"
            )
        what = "the store's growth" if self.of == keys.GROWTH else f"shard {self.of}"
        if self.claim is None:
            return f"whoever claimed {what} is gone"
        return f"the claim of {what} can be taken"

    def to_json(self) -> dict[str, Any]:
        """The members of this item's JSON line."""
        shard = None if self.of == keys.GROWTH else self.of
        names = ("kind", "path", "bytes", "inodes", "reason", "condition")
        return {name: getattr(self, name) for name in names} | {"shard": shard}


@dataclass(slots=True)
class Sighting:
    """What a look at a store found; nothing was written.

    ``held`` are the shards (and ``keys.GROWTH``) that a process has claimed of which it cannot be
    told that it is gone: nothing of theirs was looked at. ``unfinished`` are other shards whose
    replacement is decided and not finished.
    """

    items: list[Litter] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    unfinished: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Cleared:
    """What was done about litter.

    ``kept`` says for the path of each item that stayed why the system refused to remove it; items
    that somebody has claimed since, or that turned out to be needed, are in neither list.
    """

    removed: list[Litter] = field(default_factory=list)
    kept: list[tuple[Litter, str]] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
