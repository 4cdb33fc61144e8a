"""Of a store in which nothing is damaged, fsck says what is not there, and nothing else."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsstore.integrity.fsck import fsck
from hsstore.model.finding import LEVELS, Level
from hsstore.storage.store import Store
from hsstore.testing.healthy import Told, healthy_store
from hsstore.testing.stores import empty_store, fill
from hsstore.testing.thinning import EVERY

# In two parts, for two processes.
STORES = 1000


def told(store: Store, level: Level) -> Told:
    return {
        (f.kind, f.path or "" if f.shard is None else f.shard)
        for f in fsck(store.root, level, threads=1)
    }


def expect_silence(root: Path, seed: int) -> bool:
    """All levels say what is the case; whether anything is."""
    with healthy_store(root, random.Random(seed)) as (store, expected):  # noqa: S311 - a seed
        # Each level does all that the lower ones do; one store in four proves it.
        for level in LEVELS if seed % 4 == 0 else ("quick", "thorough"):
            assert told(store, level) == expected, (seed, level)
    return bool(expected)


@settings(max_examples=10)
@given(st.integers(STORES, 2**32))
def test_healthy_stores_are_silent(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    expect_silence(tmp_path_factory.mktemp("healthy") / "store", seed)


@pytest.mark.parametrize(("layer", "hidden_size"), [(0, 8), (1, 1), (1, 2)])
def test_rows_of_few_bits_or_of_no_layer_that_tells_are_not_compared(
    tmp_path: Path, layer: int, hidden_size: int
) -> None:
    """With so many samples some rows of a few bits are equal by chance."""
    store = empty_store(
        tmp_path / "store", [7] * 60, layers=(layer,), hidden_size=hidden_size, shard_rows=512
    )
    assert told(fill(store), "thorough") == set()


@pytest.mark.sweep
@pytest.mark.parametrize("half", range(2))
def test_a_thousand_healthy_stores_are_silent(
    tmp_path: Path, half: int, record_property: Callable[[str, object], None]
) -> None:
    seeds = range(half * STORES // 2, (half + 1) * STORES // 2, EVERY)
    incomplete = sum(expect_silence(tmp_path / str(seed), seed) for seed in seeds)
    record_property("healthy stores", len(seeds))
    print(f"{len(seeds)} healthy stores, {incomplete} of them incomplete: 0 false alarms")  # noqa: T201
    assert 0 < incomplete < len(seeds)
