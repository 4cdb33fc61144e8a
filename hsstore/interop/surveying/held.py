"""The tokens that a sample file holds, and the digests that they may be known by."""

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.foreign import MAX_TOKEN, Broken, Container
from hsstore.storage.token_file import token_digest

IDS = ("input_ids", "token_ids")
INTEGERS = frozenset({"int64", "int32"})
# A row may itself end with tokens like the padding behind it: so many of them are thought of.
TOKENS_LIKE_PADDING = 4


def tokens_in(container: Container) -> NDArray[np.int32] | None:
    """The token ids of a sample, int32 [tokens]; None where it tells none, or holds many samples.

    Raises Broken, ``values`` for ids that none can be.
    """
    key = next((key for key in IDS if key in container.tensors), None)
    if key is None or container.tensors[key].dtype not in INTEGERS:
        return None
    shape = container.tensors[key].shape
    if len(shape) != 1 and not (len(shape) == 2 and shape[0] == 1):  # noqa: PLR2004 - a batch of one
        return None
    ids = container.array(key).reshape(-1)
    if not len(ids):
        raise Broken("values", f"{key} holds no token")
    if ids.min() < 0 or ids.max() > MAX_TOKEN:
        raise Broken("values", f"{key} holds ids from {ids.min()} to {ids.max()}")
    return ids.astype(np.int32)


def bare_tokens(ids: NDArray[np.int32]) -> int:
    """How many tokens there are before one id that is repeated to the end; all where none is."""
    others = np.flatnonzero(ids != ids[-1])
    bare = int(others[-1]) + 1 if len(others) else 0
    return bare if bare and bare < len(ids) - 1 else len(ids)


def token_digests(ids: NDArray[np.int32]) -> tuple[tuple[int, bytes], ...]:
    """The token digest over all ids, then over what is left without padding behind them.

    Each with the number of tokens it is over.
    """
    bare = bare_tokens(ids)
    shorter = range(bare, min(bare + TOKENS_LIKE_PADDING + 1, len(ids)))
    return tuple((length, token_digest(ids[:length])) for length in (len(ids), *shorter))
