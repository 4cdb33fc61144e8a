"""Plans before the newest, made again from the newest and the token files.

Each plan names the seal of the one before it, so what is made again is proven byte for byte. Only
the newest is named by none.
"""

import contextlib
from dataclasses import replace

from hsstore.errors import InvalidDocument, StoreError
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.plan import Plan, TokenFiles
from hsstore.storage.dataset_digest import DatasetDigest
from hsstore.storage.sample_table import SampleTable
from hsstore.storage.store import Store, read_plan


def rebuilt_plans(store: Store) -> dict[str, bytes]:
    """The bytes of lost plans by path, as far as the newest proves them.

    What token files do not prove is left out, with all before it.
    """
    newest = store.plan
    whole = _whole(store)
    if len(whole) == newest.generation:
        return {}
    try:
        chain = _chain(store, whole)
    except (StoreError, OSError):
        return {}
    found: dict[str, bytes] = {}
    expected = newest.previous
    for plan in reversed(chain):
        if plan.seal != expected:
            break
        if plan.generation not in whole:
            found[keys.plan(plan.generation)] = seal(plan.to_document())
        expected = plan.previous
    return found


def _whole(store: Store) -> dict[int, Plan]:
    """The plans before the newest that can be read."""
    found = {}
    for generation in range(store.plan.generation):
        with contextlib.suppress(InvalidDocument, OSError):
            found[generation] = read_plan(
                store.filesystem, store.root, store.identity.uuid, generation
            )
    return found


def _chain(store: Store, whole: dict[int, Plan]) -> list[Plan]:
    """Every plan before the newest, those that are lost made from token files and sample table."""
    dataset, samples, tokens = DatasetDigest(), 0, 0
    chain: list[Plan] = []
    spans = dict(store.plan.token_files.spans())
    for generation in range(store.plan.generation):
        for shard in spans.get(generation, range(0)):
            found = store.tokens(shard)
            dataset.update(found)
            samples, tokens = samples + len(found.keys), tokens + len(found.input_ids)
        parts = tuple(p for p in store.plan.token_files.parts if p[0] <= generation)
        made = replace(
            store.plan,
            generation=generation,
            samples=samples,
            shards=len(TokenFiles(parts)),
            tokens=tokens,
            dataset=dataset.hexdigest(),
            sample_table=_table_digest(store, samples),
            token_files=TokenFiles(parts),
            previous=chain[-1].seal if chain else None,
        )
        chain.append(whole.get(generation, made))
    return chain


def _table_digest(store: Store, samples: int) -> str:
    table = store.samples
    return SampleTable(table.start[:samples], table.length[:samples], table.shard_rows).digest()
