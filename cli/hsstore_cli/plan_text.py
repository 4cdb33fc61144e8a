"""How a plan reads: what is needed, what is there, a picture of both, and the verdict."""

from collections.abc import Sequence
from dataclasses import dataclass

from hsstore.model.assessment import Assessment
from hsstore.model.capacity import CapacityPlan
from hsstore.storage.space import Space
from hsstore_cli.render import duration, size

BAR_WIDTH, OVERFLOW_WIDTH = 50, 10


@dataclass(frozen=True, slots=True)
class Report:
    """Everything that the command found out."""

    assessment: Assessment
    space: Space
    notes: tuple[str, ...]
    seconds: float | None
    others: tuple[tuple[str, Assessment], ...] | None


def lines(report: Report) -> list[str]:
    """The report as a person reads it."""
    rows = [*_need(report), *_have(report)]
    width = max(len(name) for name, _ in rows) + 2
    lines = [f"{name:<{width}}{text}" for name, text in rows]
    lines += [f"note: {note}" for note in report.notes]
    lines += [_bar(report), *_verdict(report.assessment)]
    if report.others is not None:
        lines += _table(report.others)
    return lines


def _need(report: Report) -> list[tuple[str, str]]:
    assessment, plan = report.assessment, report.assessment.plan
    work = plan.workload
    rows = [
        ("samples", f"{work.samples:,} with {work.tokens:,} tokens"),
        ("states", f"{work.layers} layers x {work.hidden_size} x {work.dtype}"),
        ("payload", size(plan.payload_bytes)),
        ("store", size(plan.store_bytes) if plan.exact else f"at most {size(plan.store_bytes)}"),
    ]
    if not plan.exact:
        rows.append(("estimate", f"about {size(plan.estimated_bytes)}"))
    rows += [
        ("shards", _bounded(plan, plan.shards, plan.estimated_shards)),
        ("files", _bounded(plan, plan.files, plan.estimated_files)),
        ("peak", f"{size(plan.peak_bytes)} with {_staged(work.writers)}"),
        ("required", f"{size(assessment.required_bytes)} with the reserve"),
    ]
    if report.seconds is not None:
        rows.append(("time", duration(report.seconds)))
    return rows


def _have(report: Report) -> list[tuple[str, str]]:
    target = report.assessment.target
    rows = [("available", f"{size(target.available_bytes)} at {report.space.path}")]
    if target.reclaimable_bytes:
        rows.append(("reclaimable", size(target.reclaimable_bytes)))
    if target.available_inodes is not None:
        rows.append(("inodes", f"{target.available_inodes:,} available"))
    return rows


def _bounded(plan: CapacityPlan, most: int, likely: int) -> str:
    return f"{most:,}" if plan.exact else f"about {likely:,}, at most {most:,}"


def _staged(writers: int) -> str:
    return "a staged shard" if writers == 1 else f"{writers} staged shards"


def _bar(report: Report) -> str:
    """The target as a line of text: used, to be reclaimed, required, free, and what is over."""
    space, assessment = report.space, report.assessment
    freed = min(assessment.target.reclaimable_bytes, space.used_bytes)
    parts = (
        ("#", space.used_bytes - freed),
        ("-", freed),
        ("+", assessment.required_bytes),
    )
    scale = BAR_WIDTH / max(space.total_bytes, 1)
    drawn = "".join(mark * round(amount * scale) for mark, amount in parts)
    inside, over = drawn[:BAR_WIDTH], drawn[BAR_WIDTH : BAR_WIDTH + OVERFLOW_WIDTH]
    return f"[{inside:<{BAR_WIDTH}}]{over}  # used  - reclaimable  + required"


def _verdict(assessment: Assessment) -> list[str]:
    if assessment.fits:
        return ["It fits."]
    short = []
    if assessment.missing_bytes:
        short.append(size(assessment.missing_bytes))
    if assessment.missing_inodes:
        short.append(f"{assessment.missing_inodes:,} inodes")
    lines = [f"It does not fit: {' and '.join(short)} short."]
    if assessment.fits_estimated:
        lines.append("It would fit if the estimate holds.")
    lines.append("Next: free space (--reclaim PATH counts it), another --dest, or see --what-if.")
    return lines


def _table(others: Sequence[tuple[str, Assessment]]) -> list[str]:
    width = max((len(change) for change, _ in others), default=0) + 2
    rows = [
        f"  {change:<{width}}{_outcome(other):<30}{_required(other)}" for change, other in others
    ]
    return ["", "What if:", *(rows or ["  nothing smaller keeps all samples"])]


def _outcome(assessment: Assessment) -> str:
    if assessment.fits:
        return "fits"
    return "fits if the estimate holds" if assessment.fits_estimated else "does not fit"


def _required(assessment: Assessment) -> str:
    if assessment.plan.workload.codec == "none":
        return f"{size(assessment.required_bytes)} required"
    most = size(assessment.required_bytes)
    return f"about {size(assessment.estimated_required_bytes)}, at most {most} required"
