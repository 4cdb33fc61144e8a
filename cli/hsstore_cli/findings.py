"""How findings look to people."""

from collections.abc import Sequence

from hsstore.model.finding import Finding
from hsstore_cli import render

SHOWN_KEYS = 6


def finding_lines(finding: Finding) -> list[str]:
    """A finding for people: what, where, whom it concerns, the evidence."""
    where = [] if finding.shard is None else [f"shard {finding.shard}"]
    where += [] if finding.chunk is None else [f"chunk {finding.chunk}"]
    where += [finding.path] if finding.path else []
    if finding.byte_range:
        where.append(f"bytes {finding.byte_range[0]} to {finding.byte_range[1]}")
    lines = [f"{finding.severity} {finding.kind}: {finding.detail}"]
    lines += [f"  {', '.join(where)}"] if where else []
    lines += [f"  samples: {sample_list(finding.samples)}"] if finding.samples else []
    lines += [f"  evidence: {finding.evidence}"] if finding.evidence else []
    return [render.printable(line) for line in lines]


def sample_list(keys: Sequence[str]) -> str:
    """The first few keys, and how many more."""
    shown = ", ".join(keys[:SHOWN_KEYS])
    more = len(keys) - SHOWN_KEYS
    return f"{shown} and {more} more" if more > 0 else shown


def ranges(numbers: list[int]) -> str:
    """Sorted numbers with neighbours collapsed: ``1, 3-7``."""
    spans: list[list[int]] = []
    for number in sorted(numbers):
        if spans and spans[-1][1] == number - 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
