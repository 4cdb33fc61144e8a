"""Damage that falls between any two steps of a repair: what is left of it is told."""

import contextlib
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.errors import StoreError
from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import RepairResult, repair
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.damage import SHARD
from hsstore.testing.faults import FaultyFilesystem
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.stores import LENGTHS, contents, filled_store, ids_of
from hsstore.testing.thinning import EVERY
from hsstore.testing.verdicts import assert_exact

OTHER = SHARD + 1
# Each sort of damage falls at other moments than the one before.
STRIDE = 6


class Disturbing(FaultyFilesystem):
    """Does something right before the n-th change (0 is the first)."""

    def __init__(self, at: int, disturb: Callable[[], object]) -> None:
        super().__init__()
        self._left = at
        self._disturb = disturb

    def _count(self, kind: str, path: Path) -> None:
        super()._count(kind, path)
        if kind in self.kinds:
            self._left -= 1
            if self._left == -1:
                self._disturb()


def newest(root: Path, shard: int) -> Path:
    return max((root / keys.COMMIT).glob(f"{shard:08d}-*"))


def flip_last_chunk(root: Path, shard: int) -> None:
    path = root / keys.shard_file(shard)
    damage.flip_bit(path, path.stat().st_size - 400)


def flip_staged(root: Path) -> None:
    """What is being written now: hashed already, and not yet in place."""
    for path in (root / keys.STAGE).glob(f"*/{keys.STAGED_DATA}"):
        if path.stat().st_size:
            damage.flip_bit(path, 0)


DISTURBANCES: dict[str, Callable[[Path], object]] = {
    "same-shard": lambda root: flip_last_chunk(root, SHARD),
    "other-shard": lambda root: flip_last_chunk(root, OTHER),
    "same-marker": lambda root: damage.flip_bit(newest(root, SHARD)),
    "other-marker": lambda root: newest(root, OTHER).unlink(),
    "same-tokens": lambda root: damage.flip_bit(root / keys.tokens(0, SHARD)),
    "same-data-gone": lambda root: (root / keys.shard_file(SHARD)).unlink(),
    "staged": flip_staged,
}


@pytest.fixture(scope="module")
def hurt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a bad chunk in one shard, and a sample array to be written again."""
    root = filled_store(tmp_path_factory.mktemp("hurt") / "store").root
    damage.flip_bit(root / keys.shard_file(SHARD), 100)
    damage.flip_bit(root / keys.array_chunk(keys.SAMPLE_DIGEST, 0), 4)
    return root


def mend(store: Store) -> RepairResult:
    return repair(store, source=lambda: SeededSource(store.identity), apply=True, threads=1)


def errors(root: Path) -> list[Finding]:
    return [f for f in fsck(root, threads=1) if f.severity == "error"]


def steps_of(hurt: Path, folder: Path) -> int:
    """How many changes an undisturbed repair makes."""
    root = shutil.copytree(hurt, folder)
    counting = FaultyFilesystem()
    assert mend(Store.open(root, filesystem=counting)).corrected
    return len(counting.operations)


def expect_truth(hurt: Path, root: Path, at: int, disturb: Callable[[Path], object]) -> bool:
    """Whatever is wrong with the mended shard after a repair, the repair has said; a second mends.

    Whether anything was left.
    """
    shutil.copytree(hurt, root)
    healthy = contents(Store.open(root))
    disturbed = Disturbing(at, lambda: disturb(root))
    told: tuple[Finding, ...] | None = None
    with contextlib.suppress(StoreError, OSError):
        told = mend(Store.open(root, filesystem=disturbed)).remaining
    left = errors(root)
    mended = [(f.kind, f.path) for f in left if f.shard == SHARD]
    if told is not None:
        assert {(f.kind, f.path) for f in told if f.shard == SHARD} == set(mended)
    expect_right_states(root)
    result = mend(Store.open(root))
    assert result.corrected or not result.found, result
    assert errors(root) == []
    assert contents(Store.open(root)) == healthy
    assert_exact(root)
    return bool(left)


def expect_right_states(root: Path) -> None:
    """What a reader that verifies is given is what the source computes."""
    store = Store.open(root)
    reader = Reader(store)
    for sample, ids in enumerate(map(ids_of, range(store.plan.samples), LENGTHS)):
        with contextlib.suppress(StoreError, OSError):
            states = reader.read(sample, verify=True)
            assert states.tobytes() == seeded_states(store.identity, ids).tobytes()


@pytest.mark.parametrize("name", DISTURBANCES)
def test_damage_half_way_through_a_repair(hurt: Path, tmp_path: Path, name: str) -> None:
    half = steps_of(hurt, tmp_path / "counted") // 2
    expect_truth(hurt, tmp_path / "store", half, DISTURBANCES[name])


@pytest.mark.sweep
@pytest.mark.parametrize("name", DISTURBANCES)
def test_damage_between_any_two_steps_of_a_repair(
    hurt: Path, tmp_path: Path, name: str, record_property: Callable[[str, object], None]
) -> None:
    steps = steps_of(hurt, tmp_path / "counted")
    moments = range([*DISTURBANCES].index(name) % STRIDE, steps, STRIDE * EVERY)
    left = [expect_truth(hurt, tmp_path / str(at), at, DISTURBANCES[name]) for at in moments]
    record_property("moments", len(moments))
    print(f"{name}: {len(moments)} moments, damage left after {sum(left)}, all of it told")  # noqa: T201
