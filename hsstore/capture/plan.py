"""Which rows of a forward pass belong to which request, and which of them are still wanted."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from hsstore.capture.releases import Forwarded
from hsstore.capture.spool_format import RID

# On a request of SGLang: its first row that is not captured yet; None once it failed. There it
# outlives a retraction, and goes when the request goes.
NEXT = "_hsstore_next"


@dataclass(frozen=True, slots=True)
class Part:
    """Rows ``start`` to ``stop`` - 1 of a forward pass: positions ``first`` on of a request."""

    request: Any
    first: int
    start: int
    stop: int


def plan(forwarded: Iterable[Forwarded]) -> tuple[list[Part], list[tuple[Any, str]]]:
    """The rows to take from a forward pass, and the requests that it cannot be right for."""
    parts: list[Part] = []
    failed: list[tuple[Any, str]] = []
    row = 0
    for each in forwarded:
        start, row = row, row + each.extend
        if not (isinstance(each.request.rid, str) and RID.fullmatch(each.request.rid)):
            continue
        first, prompt = getattr(each.request, NEXT, 0), len(each.request.origin_input_ids)
        if first is None or first >= prompt:
            continue
        if each.prefix > first:
            failed.append((each.request, _cached(first, each.prefix)))
            continue
        # Decoded positions, and rows that were captured before the request was retracted.
        stop = min(each.prefix + each.extend, prompt)
        if stop > first:
            skip = first - each.prefix
            parts.append(Part(each.request, first, start + skip, start + stop - each.prefix))
            setattr(each.request, NEXT, stop)
    return parts, failed


def _cached(first: int, prefix: int) -> str:
    return (
        f"cached-prefix: rows {first} to {prefix - 1} came from the radix cache: "
        "give every request an extra_key of its own"
    )
