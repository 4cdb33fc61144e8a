"""Whether a filesystem has what a run needs, and which smaller runs it would have room for."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from hsstore.errors import MalformedInput
from hsstore.model.capacity import CapacityPlan, Workload, plan_capacity
from hsstore.model.capture import CODECS

DEFAULT_RESERVE = "5%"
HALF_ITEMSIZE = 2
UNITS: dict[str, int] = {"": 1, "B": 1} | {
    f"{prefix}{suffix}": base ** (n + 1)
    for n, prefix in enumerate("KMGTPE")
    for suffix, base in (("", 1000), ("B", 1000), ("IB", 1024))
}


@dataclass(frozen=True, slots=True)
class Target:
    """What a filesystem offers; ``available_inodes`` None where it does not count them."""

    available_bytes: int
    available_inodes: int | None
    reclaimable_bytes: int = 0
    reclaimable_inodes: int = 0


@dataclass(frozen=True, slots=True)
class Reserve:
    """Space to leave over: ``5%`` of the peak, or so many bytes (``10GB``, ``10GiB``)."""

    fraction: float = 0.0
    fixed_bytes: int = 0

    @classmethod
    def parse(cls, typed: str) -> "Reserve":
        """Read it as it is typed; MalformedInput for anything else."""
        if typed.endswith("%") and re.fullmatch(r"[0-9]+(\.[0-9]+)?", typed[:-1]):
            return cls(fraction=float(typed[:-1]) / 100)
        return cls(fixed_bytes=parse_size(typed))

    def of(self, peak_bytes: int) -> int:
        """The reserve for a peak, in bytes."""
        return self.fixed_bytes + round(peak_bytes * self.fraction)


@dataclass(frozen=True, slots=True)
class Assessment:
    """A plan against a target, with a reserve to be left over."""

    plan: CapacityPlan
    target: Target
    reserve: Reserve

    @property
    def reserve_bytes(self) -> int:
        """The reserve for this plan's peak."""
        return self.reserve.of(self.plan.peak_bytes)

    @property
    def required_bytes(self) -> int:
        """The peak with the reserve."""
        return self.plan.peak_bytes + self.reserve_bytes

    @property
    def estimated_required_bytes(self) -> int:
        """The same, should the estimate hold instead of the upper bound."""
        peak_bytes = self.plan.estimated_peak_bytes
        return peak_bytes + self.reserve.of(peak_bytes)

    @property
    def offered_bytes(self) -> int:
        """What the target has, counting what can be reclaimed."""
        return self.target.available_bytes + self.target.reclaimable_bytes

    @property
    def missing_bytes(self) -> int:
        """How many bytes are short, 0 if none."""
        return max(0, self.required_bytes - self.offered_bytes)

    @property
    def missing_inodes(self) -> int:
        """How many inodes are short, 0 if none."""
        if self.target.available_inodes is None:
            return 0
        offered = self.target.available_inodes + self.target.reclaimable_inodes
        return max(0, self.plan.inodes - offered)

    @property
    def fits(self) -> bool:
        """Whether bytes and inodes suffice."""
        return not self.missing_bytes and not self.missing_inodes

    @property
    def fits_estimated(self) -> bool:
        """Whether they would, should the estimate hold."""
        return self.estimated_required_bytes <= self.offered_bytes and not self.missing_inodes


def parse_size(typed: str) -> int:
    """Bytes of ``4096``, ``10GB`` (powers of 1000) or ``1.5 GiB`` (powers of 1024)."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", typed.strip())
    unit = found and UNITS.get(found[2].upper())
    if not found or not unit:
        raise MalformedInput(f"{typed!r} is no size", remedy="say 10GB, 10GiB or plain bytes")
    return round(float(found[1]) * unit) if "." in found[1] else int(found[1]) * unit


def alternatives(workload: Workload) -> Iterator[tuple[str, CapacityPlan]]:
    """Smaller ways to store the same samples, each with what it changes, in words."""
    codecs = CODECS if workload.codec == "none" else (workload.codec,)
    halved = ("bfloat16",) if workload.itemsize > HALF_ITEMSIZE else ()
    dtypes = (workload.dtype, *halved)
    for dtype, layers, codec in product(dtypes, range(workload.layers, 0, -1), codecs):
        other = replace(workload, dtype=dtype, layers=layers, codec=codec)
        if other != workload:
            yield _change(workload, other), plan_capacity(other)


def _change(workload: Workload, other: Workload) -> str:
    changes = []
    if other.layers != workload.layers:
        changes.append(f"{other.layers} of {workload.layers} layers")
    if other.dtype != workload.dtype:
        changes.append(f"--dtype {other.dtype}")
    if other.codec != workload.codec:
        changes.append(f"--codec {other.codec}")
    return ", ".join(changes)
