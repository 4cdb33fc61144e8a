"""The tokens that a sample file of any format holds."""

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.foreign import Container
from hsstore.interop.tokens import checked_ids

IDS = ("input_ids", "token_ids")
INTEGERS = frozenset({"int64", "int32"})


def tokens_in(container: Container) -> NDArray[np.int64] | None:
    """The token ids of a sample, int64 [tokens]; None where it tells none, or holds many samples.

    Raises Broken as ``checked_ids``.
    """
    key = next((key for key in IDS if key in container.tensors), None)
    if key is None or container.tensors[key].dtype not in INTEGERS:
        return None
    shape = container.tensors[key].shape
    if len(shape) != 1 and not (len(shape) == 2 and shape[0] == 1):  # noqa: PLR2004 - a batch of one
        return None
    return checked_ids(key, container.array(key).reshape(-1))
