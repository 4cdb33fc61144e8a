"""Token ids as files hold them: whether they can be any, and where padding may begin."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.foreign import MAX_TOKEN, Broken, Tokens


def checked_ids(name: str, ids: NDArray[Any]) -> NDArray[np.int64]:
    """Token ids [n] of a tensor; Broken for none, and for what no id can be."""
    if not len(ids):
        raise Broken("shape", f"{name} holds no token")
    if ids.min() < 0 or ids.max() > MAX_TOKEN:
        raise Broken("values", f"{name} holds ids from {ids.min()} to {ids.max()}")
    return ids.astype(np.int64, copy=False)


def tail_of(tokens: Tokens) -> int:
    """Where the run of equal tokens without loss begins that ends a sample; its length if none."""
    ids, mask = tokens.input_ids, tokens.loss_mask
    same = ids == ids[-1]
    if mask is not None:
        same &= ~mask
    other = np.flatnonzero(~same)
    return int(other[-1]) + 1 if len(other) else 0


def bare_tokens(tokens: Tokens) -> int:
    """How many tokens are certainly no padding: a single one behind others is none, nor is all."""
    tail, count = tail_of(tokens), len(tokens.input_ids)
    return tail if 0 < tail < count - 1 else count
