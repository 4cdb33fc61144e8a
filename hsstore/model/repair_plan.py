"""What a repair would do, step by step, before anything is written."""

from dataclasses import dataclass
from typing import Any, Literal

Action = Literal[
    "give-back",
    "make-folder",
    "finish-growth",
    "rewrite-metadata",
    "rewrite-array",
    "rebuild-tokens",
    "rebuild-plan",
    "set-aside-calibration",
    "set-aside-waiver",
    "finish-replacement",
    "roll-forward",
    "set-aside",
    "extract",
    "replace",
    "waive",
]
Provider = Literal["store", "replica", "source", "nobody"]

DERIVED_ACTIONS: frozenset[Action] = frozenset(
    {
        "give-back",
        "make-folder",
        "finish-growth",
        "rewrite-metadata",
        "rewrite-array",
        "rebuild-tokens",
        "rebuild-plan",
        "set-aside-calibration",
        "set-aside-waiver",
    }
)

WORDS: dict[Action, str] = {
    "give-back": "put the document back, byte for byte, from a copy of the store",
    "make-folder": "make the folder again",
    "finish-growth": "finish the growth that was decided, or remove what was not",
    "rewrite-metadata": "write the Zarr metadata again",
    "rewrite-array": "write the array chunk again",
    "rebuild-tokens": "rebuild the token file",
    "rebuild-plan": "make the plan again, as the plan after it proves it",
    "set-aside-calibration": "set aside the calibration; the next extraction makes another",
    "set-aside-waiver": "set aside the waiver, which waives nothing",
    "finish-replacement": "finish the replacement that was decided",
    "roll-forward": "write the commit marker again",
    "set-aside": "set aside what says nothing true",
    "extract": "extract the shard",
    "replace": "replace the shard by its next generation",
    "waive": "waive the absent sample",
}


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, why, and who provides what is lost.

    ``samples`` are the keys of samples that are made again or copied in, ``tokens`` theirs.
    ``reads_bytes`` are read from the store and a replica, ``writes_bytes`` is an upper bound of
    what is staged and put aside; what a shard is copied for goes to its first step. ``seconds`` is
    what computing takes at the store's own pace, None where nothing is computed or no pace is
    known. A provider ``nobody`` says that the step cannot be done with what was given.
    """

    action: Action
    reason: str
    provider: Provider
    shard: int | None = None
    path: str | None = None
    samples: tuple[str, ...] = ()
    tokens: int = 0
    reads_bytes: int = 0
    writes_bytes: int = 0
    seconds: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The JSON line of this step."""
        return {"type": "step"} | {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class RepairPlan:
    """All steps in the order in which they are done."""

    steps: tuple[Step, ...]

    @property
    def shards(self) -> list[int]:
        """The shards that a writer must claim, in order; derived files need no claim."""
        steps = (step for step in self.steps if step.action not in DERIVED_ACTIONS)
        return sorted({step.shard for step in steps if step.shard is not None})

    @property
    def seconds(self) -> float | None:
        """What all computing takes, None where that is not known of every step, or of none."""
        computed = [step.seconds for step in self.steps if step.provider == "source"]
        known = [seconds for seconds in computed if seconds is not None]
        return sum(known) if computed and len(known) == len(computed) else None

    @property
    def needs_source(self) -> bool:
        """Whether states must be computed that nothing else has."""
        return any(step.provider in ("source", "nobody") for step in self.steps)

    @property
    def lacks_source(self) -> bool:
        """Whether nothing that was given provides what some step needs."""
        return any(step.provider == "nobody" for step in self.steps)
