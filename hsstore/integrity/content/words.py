"""Rows and layers in words, short whatever their number."""

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

SHOWN_SPANS = 4


def spans(rows: NDArray[np.intp]) -> str:
    """Ascending row numbers with neighbours collapsed: ``rows 0, 3-7``; the first few spans."""
    breaks = np.flatnonzero(np.diff(rows) > 1) + 1
    bounds = [0, *breaks.tolist(), len(rows)]
    ends = [(int(rows[a]), int(rows[b - 1])) for a, b in pairwise(bounds)]
    shown = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ends[:SHOWN_SPANS])
    more = f" and {len(ends) - SHOWN_SPANS} more spans" if len(ends) > SHOWN_SPANS else ""
    return f"{'row' if len(rows) == 1 else 'rows'} {shown}{more}"


def by_layer(mask: NDArray[np.bool_], names: Sequence[str]) -> str:
    """Which rows of which layers a mask [rows, layers] marks; layers marked alike together."""
    alike: dict[bytes, list[int]] = {}
    for layer in np.flatnonzero(mask.any(axis=0)):
        alike.setdefault(mask[:, layer].tobytes(), []).append(int(layer))
    parts = []
    for layers in alike.values():
        rows = np.flatnonzero(mask[:, layers[0]])
        where = "all rows" if len(rows) == len(mask) else f"{spans(rows)} of {len(mask)}"
        parts.append(f"{', '.join(names[layer] for layer in layers)}: {where}")
    return "; ".join(parts)


def some(names: Iterable[str], count: int = 3) -> str:
    """The first few names, and how many more."""
    every = [*names]
    more = f" and {len(every) - count} more" if len(every) > count else ""
    return ", ".join(every[:count]) + more
