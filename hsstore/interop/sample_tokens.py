"""Keys, token ids and loss masks of chosen samples of a store, without their states."""

from collections.abc import Iterable, Iterator
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from hsstore.storage.store import Store


def tokens_of(
    store: Store, samples: Iterable[int]
) -> Iterator[tuple[str, NDArray[np.int32], NDArray[np.uint8]]]:
    """Key, ids [tokens] and mask [tokens] of each; a token file is read once for ascending numbers.

    Raises InvalidDocument where a token file is damaged, OSError.
    """
    for shard, own in groupby(samples, key=lambda sample: store.samples.extent(sample).shard):
        tokens = store.tokens(shard)
        for sample in own:
            yield tokens.sample(sample - tokens.first_sample)
