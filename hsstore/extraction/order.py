"""In which order samples are asked for."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice

from hsstore.extraction.open_shard import OpenShard
from hsstore.model.source import Request

# Open at once for the sake of an order: each costs a staging folder and its samples' token ids.
WINDOW_SHARDS = 4

Asked = tuple[OpenShard, Request]

ORDERS: dict[str, Callable[[Asked], int] | None] = {
    "dataset": None,
    "length": lambda asked: len(asked[1].input_ids),
    "longest-first": lambda asked: -len(asked[1].input_ids),
}
"""The orders by name; equally long samples stay in dataset order."""


def in_order(shards: Iterable[OpenShard], order: str) -> Iterator[Asked]:
    """What is to be computed of ``shards``, which are taken as their turn comes.

    An order by length holds among WINDOW_SHARDS shards, then among the next ones.
    """
    key, waiting = ORDERS[order], iter(shards)
    if key is None:
        for shard in waiting:
            yield from ((shard, request) for request in shard.requests())
        return
    while window := list(islice(waiting, WINDOW_SHARDS)):
        yield from sorted(((s, request) for s in window for request in s.requests()), key=key)
