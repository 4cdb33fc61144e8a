"""Stores of every shape and history in which nothing is damaged, drawn from a seed."""

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from hsstore.model import keys
from hsstore.model.capture import Layer
from hsstore.model.keys import ShardVersion
from hsstore.storage.stage import staging
from hsstore.storage.store import Store
from hsstore.testing.litter import hold, litter
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.stores import empty_store, fill, grown, key_of, replace

LAYERS: tuple[tuple[Layer, ...], ...] = (
    (0,),
    (1,),
    ("final",),
    ("final:pre", "final"),
    (0, 3, 7, "final"),
)
LEFT_BEHIND = ("staged", "nothing-staged", "orphan-manifests", "dead-claims", "temporaries",
               "growths")  # fmt: skip

Told = set[tuple[str, int | str]]


@contextlib.contextmanager
def healthy_store(root: Path, chance: random.Random) -> Iterator[tuple[Store, Told]]:
    """A store, and what fsck is to say of it: kind, and shard or path. A writer may be at work."""
    store = _drawn(root, chance)
    left: Told = set()
    with contextlib.ExitStack() as stack:
        for step in chance.sample(sorted(HISTORY), chance.randrange(3)):
            store = HISTORY[step](store, chance)
        if 0 in store.committed() and _happens(chance, 3):
            planted = litter(store, [chance.choice(LEFT_BEHIND)])
            left = {("growth-undecided", path) for _, path in planted if _is_undecided(path)}
        if _happens(chance, 3):
            stack.enter_context(_a_writer_at_work(store, chance))
        yield store, left | _incomplete(store)


def _drawn(root: Path, chance: random.Random) -> Store:
    lengths = [chance.randint(1, 20) for _ in range(chance.randint(1, 7))]
    chunk = chance.choice((1, 2, 4, 8))
    shard = chunk * chance.randint(-(-max(lengths) // chunk), 24)
    store = empty_store(
        root,
        lengths,
        layers=chance.choice(LAYERS),
        hidden_size=chance.choice((1, 8, 24)),
        dtype=chance.choice(("bfloat16", "float16", "float32")),
        codec=chance.choice(("none", "blosc-zstd")),
        chunk_rows=chunk,
        shard_rows=shard,
    )
    failing = {key_of(n): "broken" for n in range(len(lengths)) if _happens(chance, 10)}
    shards = chance.choice((None, range(chance.randint(0, store.plan.shards))))
    return fill(store, shards=shards, failing=failing)


def _grow(store: Store, chance: random.Random) -> Store:
    longest = min(store.identity.shard_rows, 20)
    added = [chance.randint(1, longest) for _ in range(chance.randint(1, 3))]
    store = grown(store, added)
    return fill(store) if _happens(chance, 2) else store


def _replace(store: Store, chance: random.Random) -> Store:
    if committed := sorted(store.committed()):
        replace(store, chance.choice(committed))
    return store


def _refill(store: Store, _: random.Random) -> Store:
    return fill(store)


HISTORY: dict[str, Callable[[Store, random.Random], Store]] = {
    "grow": _grow,
    "grow-again": _grow,
    "replace": _replace,
    "refill": _refill,
}


@contextlib.contextmanager
def _a_writer_at_work(store: Store, chance: random.Random) -> Iterator[None]:
    """Of a shard's next generation: claimed, its first sample staged, the file open."""
    shard = chance.randrange(store.plan.shards)
    committed = store.committed().get(shard)
    generation = committed[0].generation + 1 if committed else 1
    sample, tokens = store.samples.shard_samples(shard)[0], store.tokens(shard)
    key, ids, _ = tokens.sample(0)
    claim = hold(store, shard)
    with staging(store, ShardVersion(shard, generation), claim) as writer:
        origin = SeededSource(store.identity).origin()
        writer.add(store.samples.extent(sample), key, seeded_states(store.identity, ids), origin)
        if _happens(chance, 2):
            writer.sync()
        yield
    claim.release()


def _happens(chance: random.Random, one_in: int) -> bool:
    return chance.randrange(one_in) == 0


def _is_undecided(path: str) -> bool:
    """Whether token files lie at a path of plan/; those in preparation have temporary names."""
    folder, _, name = path.rpartition("/")
    return folder == keys.PLAN and not name.startswith(".")


def _incomplete(store: Store) -> Told:
    """What is not there, as markers and manifests say."""
    committed = store.committed()
    missing: Told = {("shard-missing", n) for n in range(store.plan.shards) if n not in committed}
    return missing | {
        ("sample-absent", shard)
        for shard in committed
        if store.manifest(store.marker(shard)).absent
    }
