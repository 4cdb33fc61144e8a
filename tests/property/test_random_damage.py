"""Whatever the store and whatever the damage: named, mended, and as it was before."""

import itertools
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsstore.errors import StoreError
from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import RepairResult, repair
from hsstore.model.finding import LEVELS, Finding, Level
from hsstore.storage.calibrations import publish_calibration
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.corpus import FILES, WHOLE_CORPUS, Entry, to_data
from hsstore.testing.grounds import GROUNDS
from hsstore.testing.places import Planted
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import calibration, contents, empty_store, fill
from hsstore.testing.thinning import visited
from hsstore.testing.verdicts import assert_exact

LONGEST = 20
# With three samples that fill one, there are three shards.
LENGTHS = [LONGEST] * 3
FORBIDDEN = "forbid-"
MENDED = [e for e in WHOLE_CORPUS if e.mended and not e.name.startswith(FORBIDDEN)]
ANYWHERE = [e for e in MENDED if e.ground == "sound" and e.name != "swap-equal-shards"]


def flipped_anywhere(chance: random.Random) -> Callable[[Store], Planted]:
    """A bit of any file that is worth something."""
    files = [f for f in FILES if f.ground == "sound" and f.mended and f.name != "data"]
    file, bit = chance.choice([None, None, *files]), chance.randrange(8)

    def flip(path: Path) -> None:
        damage.flip_bit(path, chance.randrange(path.stat().st_size), bit)

    return to_data(flip) if file is None else file.hurt("content", flip)


def drawn(root: Path, chance: random.Random) -> Store:
    chunk = chance.choice((1, 2, 4, 8))
    store = empty_store(
        root,
        LENGTHS + [chance.randint(1, LONGEST) for _ in range(chance.randint(0, 6))],
        hidden_size=chance.choice((8, 24)),
        dtype=chance.choice(("bfloat16", "float16", "float32")),
        codec=chance.choice(("none", "blosc-zstd")),
        chunk_rows=chunk,
        shard_rows=-(-LONGEST // chunk) * chunk,
    )
    publish_calibration(store, calibration(store))
    publish_calibration(store, calibration(store, 1))
    return fill(store)


def look(root: Path, level: Level = "data") -> list[Finding]:
    return list(fsck(root, level, threads=1))


def mend(store: Store, replica: Path | None = None) -> RepairResult:
    source = SeededSource(store.identity)
    return repair(
        store.root,
        source=None if replica else lambda: source,
        replica=replica,
        apply=True,
        threads=1,
    )


def expect_named_and_mended(folder: Path, seed: int) -> str:
    """One random damage to one random store goes the whole way; what it was."""
    chance = random.Random(seed)  # noqa: S311 - a seed
    folder.mkdir(exist_ok=True)
    store = drawn(folder / "store", chance)
    healthy, replica = contents(store), None
    if chance.randrange(3) == 0:
        replica = shutil.copytree(store.root, folder / "replica")
    entry = Entry("flip-anywhere", "sound", flipped_anywhere(chance))
    if chance.randrange(2):
        entry = chance.choice(ANYWHERE)
    planted = entry.inflict(store)
    assert planted.places, (seed, entry.name)
    for level in LEVELS:
        findings = look(store.root, level)
        assert planted.missed(level, findings) == [], (seed, entry.name, level)
        assert planted.false(level, findings) == [], (seed, entry.name, level)
    result = mend(Store.open(store.root, to_check=True), replica)
    assert result.corrected, (seed, entry.name, result)
    assert look(store.root) == [], (seed, entry.name)
    assert contents(Store.open(store.root)) == healthy, (seed, entry.name)
    assert not mend(store).found
    return entry.name


@settings(max_examples=8)
@given(st.integers(1000, 2**32))
def test_any_damage_to_any_store_is_named_and_mended(
    tmp_path_factory: pytest.TempPathFactory, seed: int
) -> None:
    expect_named_and_mended(tmp_path_factory.mktemp("any"), seed)


@pytest.mark.sweep
def test_many_damages_to_many_stores(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    names = [expect_named_and_mended(tmp_path / str(seed), seed) for seed in visited(80)]
    record_property("damages", len(names))
    print(f"{len(names)} stores, {len(set(names))} sorts of damage: all named and mended")  # noqa: T201


# -- two at once -----------------------------------------------------------------------------------

Pair = tuple[Entry, Entry]


def pairs(seed: int, count: int) -> list[Pair]:
    """Pairs that can be done to one store."""
    every = [pair for pair in itertools.combinations(MENDED, 2) if pair[0].ground == pair[1].ground]
    return random.Random(seed).sample(every, count)  # noqa: S311 - a seed


@pytest.fixture(scope="module")
def grounds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("grounds")
    for name, prepare in GROUNDS.items():
        (folder / name).mkdir()
        prepare(folder / name / "store", "none")
    return folder


def named(pair: Pair) -> str:
    return "+".join(entry.name for entry in pair)


def inflict_both(store: Store, pair: Pair) -> bool:
    """Whether both could be done; what is broken may be beyond a second damage."""
    try:
        for entry in pair:
            entry.inflict(store)
    except (OSError, StoreError, LookupError, ValueError):
        return False
    return True


def expect_truth(grounds: Path, folder: Path, pair: Pair) -> bool:
    """Both are mended, or what is left is told by the repair and by fsck; whether both were done.

    What can be read afterwards is right.
    """
    shutil.copytree(grounds / pair[0].ground, folder)
    store = Store.open(folder / "store")
    if not inflict_both(store, pair):
        return False
    result = mend(Store.open(store.root, to_check=True))
    left = [f for f in look(store.root) if f.severity == "error" or f.repair]
    assert {(f.kind, f.path) for f in left} == {(f.kind, f.path) for f in result.remaining}
    if not left:
        expect_exact(store.root, pair)
    return True


def expect_exact(root: Path, pair: Sequence[Entry]) -> None:
    """All states are the seeded ones, but for those of a first generation."""
    if pair[0].ground in {"sound", "extended", "begun"}:
        assert assert_exact(root) == Store.open(root).plan.samples


@pytest.mark.parametrize("pair", pairs(5, 12), ids=named)
def test_some_two_damages_at_once(grounds: Path, tmp_path: Path, pair: Pair) -> None:
    expect_truth(grounds, tmp_path / "case", pair)


@pytest.mark.sweep
@pytest.mark.parametrize("part", range(2))
def test_many_two_damages_at_once(
    grounds: Path, tmp_path: Path, part: int, record_property: Callable[[str, object], None]
) -> None:
    done = [
        expect_truth(grounds, tmp_path / str(n), pair)
        for n, pair in enumerate(pairs(100 + part, 100))
    ]
    record_property("pairs", sum(done))
    print(f"{sum(done)} pairs of damages: mended, or what is left is named")  # noqa: T201
    assert sum(done) > len(done) // 2
