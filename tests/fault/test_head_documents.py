"""hsstore.json and plans that are lost: given back by a copy, made again where proven."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from hsstore.errors import IdentityMismatch, InvalidDocument, NotAStore, StoreError
from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import repair
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import contents, filled_store, grown_filled_store

HURTS: list[Callable[[Path], None]] = [
    Path.unlink, damage.flip_bit, damage.to_folder, damage.to_symlink,
    lambda path: damage.resize(path, -9),
]  # fmt: skip
HURT_NAMES = ["gone", "flipped", "a folder", "a link", "torn"]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return grown_filled_store(tmp_path / "store")


@pytest.fixture
def copy(store: Store, tmp_path: Path) -> Store:
    return Store.open(copytree(store.root, tmp_path / "copy"))


def files(root: Path) -> dict[str, bytes]:
    return {
        path.relative_to(root).as_posix(): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and keys.QUARANTINE not in path.parts and not path.name.startswith(".")
    }


def kinds(root: Path) -> list[str]:
    return [finding.kind for finding in fsck(root, threads=1)]


@pytest.mark.parametrize("hurt", HURTS, ids=HURT_NAMES)
@pytest.mark.parametrize("lost", [keys.IDENTITY, keys.plan(2), f"{keys.IDENTITY} {keys.plan(2)}"])
def test_a_copy_gives_them_back_byte_for_byte(
    store: Store, copy: Store, lost: str, hurt: Callable[[Path], None]
) -> None:
    whole = files(store.root)
    for name in lost.split():
        hurt(store.root / name)
    hurt_files = files(store.root)
    with pytest.raises(InvalidDocument, match="cannot be made again") as refused:
        repair(store.root, apply=True)
    assert "--from REPLICA --apply" in str(refused.value)
    planned = repair(store.root, replica=copy.root)
    assert {step.path for step in planned.plan.steps} == set(lost.split())
    assert not planned.corrected
    assert files(store.root) == hurt_files
    result = repair(store.root, replica=copy.root, apply=True)
    assert result.corrected, result
    assert files(store.root) == whole
    assert kinds(store.root) == []


def test_more_damage_is_mended_in_the_same_run(store: Store, copy: Store) -> None:
    healthy = contents(store)
    (store.root / keys.IDENTITY).unlink()
    damage.flip_bit(store.root / keys.shard_file(1), 10)
    (store.root / keys.zarr_metadata()).unlink()
    result = repair(store.root, replica=copy.root, apply=True)
    assert result.corrected
    assert result.done.samples_from_replica == 1
    assert contents(Store.open(store.root)) == healthy
    assert kinds(store.root) == []


def test_a_gone_identity_is_no_store_that_never_was(store: Store, tmp_path: Path) -> None:
    (store.root / keys.IDENTITY).unlink()
    assert kinds(store.root) == ["identity-invalid"]
    with pytest.raises(InvalidDocument, match="the rest of a store is here"):
        Store.open(store.root)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotAStore):
        repair(tmp_path / "empty", apply=True)


def test_another_store_cannot_give_them_back(store: Store, tmp_path: Path) -> None:
    other = filled_store(tmp_path / "other")
    for name in (keys.IDENTITY, keys.plan(2)):
        before = (store.root / name).read_bytes()
        (store.root / name).unlink()
        with pytest.raises(IdentityMismatch, match="no copy of this very store"):
            repair(store.root, replica=other.root, apply=True)
        (store.root / name).write_bytes(before)


def test_a_copy_from_before_a_growth_does_not_fit(store: Store, tmp_path: Path) -> None:
    earlier = filled_store(tmp_path / "earlier")
    copy = copytree(store.root, tmp_path / "copy")
    for generation in (2, 1):
        (copy / keys.plan(generation)).unlink()
        rmtree(copy / keys.token_folder(generation))
    assert earlier.plan.generation == 0
    (store.root / keys.plan(2)).unlink()
    with pytest.raises(StoreError, match="beyond its plan"):
        repair(store.root, replica=copy, apply=True)


@pytest.mark.parametrize("hurt", HURTS[:3], ids=HURT_NAMES[:3])
@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1)])
def test_plans_before_the_newest_are_made_again(
    store: Store, lost: tuple[int, ...], hurt: Callable[[Path], None]
) -> None:
    whole = files(store.root)
    for generation in lost:
        hurt(store.root / keys.plan(generation))
    assert {k for k in kinds(store.root) if k} <= {"plan-missing", "plan-invalid"}
    result = repair(store.root, apply=True)
    assert [step.action for step in result.plan.steps] == ["rebuild-plan"] * len(lost)
    assert result.corrected
    assert files(store.root) == whole
    assert kinds(store.root) == []


def test_a_plan_that_its_token_files_do_not_prove_stays_lost(store: Store) -> None:
    (store.root / keys.plan(0)).unlink()
    damage.flip_bit(store.root / keys.tokens(0, 0))
    damage.flip_bit(store.root / keys.array_chunk(keys.INPUT_IDS, 0), 4)
    result = repair(store.root, source=lambda: SeededSource(store.identity), apply=True)
    assert not result.corrected
    assert "plan-missing" in [finding.kind for finding in result.remaining]
    assert "plan-missing" in kinds(store.root)
    assert not (store.root / keys.plan(0)).exists()


def test_a_plan_that_the_newest_does_not_prove_is_not_called_corrected(store: Store) -> None:
    """Nothing else is wrong: it is the step that was planned and could not be done."""
    document = {**store.plan.to_document(), "previous": "0" * 32}
    (store.root / keys.plan(2)).write_bytes(seal(document))
    for generation in (0, 1):
        (store.root / keys.plan(generation)).unlink()
    result = repair(store.root, apply=True)
    assert [step.action for step in result.plan.steps] == ["rebuild-plan"] * 2
    assert [finding.kind for finding in result.remaining] == ["plan-missing"] * 2
    assert (result.found, result.corrected) == (2, False)
