"""Which samples an audit looks at: drawn by a seed, spread over origins and shards."""

import random
from collections.abc import Callable, Sequence


def draw(counts: Sequence[int], wanted: int, seed: int) -> list[tuple[int, int]]:
    """Draw samples from groups of those sizes: pairs of a group and a place in it, in order.

    All samples in a row are bent into a ring, which is cut into ``wanted`` equal arcs at a random
    place; each arc gives one sample. So every sample has the same chance, and neighbours are
    rarely drawn together. All are drawn where there are no more than ``wanted``.
    """
    total = sum(counts)
    wanted = min(wanted, total)
    chance = random.Random(seed)  # noqa: S311 - no secret
    turn = chance.randrange(total) if total else 0
    places = set()
    for arc in range(wanted):
        first, end = arc * total // wanted, (arc + 1) * total // wanted
        places.add((turn + chance.randrange(first, end)) % total)
    return list(_grouped(sorted(places), counts))


def _grouped(places: Sequence[int], counts: Sequence[int]) -> "list[tuple[int, int]]":
    found, group, first = [], 0, 0
    for place in places:
        while place >= first + counts[group]:
            first += counts[group]
            group += 1
        found.append((group, place - first))
    return found


def in_order_of_origin(shards: Sequence[int], origins: Callable[[int], Sequence[int]]) -> list[int]:
    """Shards, those of one origin together; ``origins`` numbers what computed a shard."""
    return sorted(shards, key=lambda shard: (*origins(shard), shard))
