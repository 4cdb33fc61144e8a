"""fsck and repair on stores that grew: the same damage, the same cure; no plan is lost unseen."""

from collections.abc import Callable
from pathlib import Path
from shutil import copytree, rmtree

import pytest

from hsstore.errors import ClaimedByAnother, InvalidDocument
from hsstore.extraction.extractor import already_filled, extract
from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import repair
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.finding import LEVELS, Level
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.growing import growing
from hsstore.storage.store import Store
from hsstore.storage.zarr_arrays import metadata_documents
from hsstore.testing import damage
from hsstore.testing.damage import CORPUS, SHARD, Damage
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import (
    LENGTHS,
    contents,
    fill,
    filled_store,
    grown,
    grown_filled_store,
    key_of,
)
from hsstore.testing.verdicts import assert_complete


@pytest.fixture(scope="module", params=["none", "blosc-zstd"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("grown") / "store"
    return grown_filled_store(root, codec=request.param).root


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Store:
    return Store.open(copytree(filled, tmp_path / "store"))


def kinds(root: Path, level: Level = "data") -> list[str]:
    return [finding.kind for finding in fsck(root, level, threads=1)]


def test_a_grown_store_is_sound_and_its_damaged_shard_is_of_a_growth(store: Store) -> None:
    assert [generation for generation, _ in store.plan.token_files.spans()] == [0, 1, 2]
    assert store.plan.token_files[SHARD].generation == 1
    for level in LEVELS:
        assert kinds(store.root, level) == []
    assert_complete(store.root)


@pytest.mark.parametrize("entry", CORPUS, ids=lambda entry: entry.name)
def test_corpus_is_found_and_mended(store: Store, entry: Damage) -> None:
    healthy = contents(store)
    sizes = {(store.root / keys.shard_file(n)).stat().st_size for n in (SHARD, SHARD + 1)}
    # Of one size and layout, only their chunks tell them apart.
    kind = "chunk-damaged" if entry.name == "swap-shards" and len(sizes) == 1 else entry.kind
    path = entry.inflict(store)
    findings = [*fsck(store.root, threads=1)]
    assert (kind, path) in {(f.kind, f.path) for f in findings}
    lost = {key for f in findings for key in f.samples or () if f.severity == "error"}
    source = SeededSource(store.identity)
    assert repair(store.root, source=lambda: source, apply=True).corrected
    assert kinds(store.root) == []
    assert contents(Store.open(store.root)) == healthy
    assert {key_of(n) for n in source.asked} == (lost if entry.remade else set())


# -- plans that are gone -----------------------------------------------------------------------


def lose(root: Path) -> None:
    (root / keys.plan(2)).unlink()


def tear(root: Path) -> None:
    damage.flip_bit(root / keys.plan(2))


def lose_with_tokens(root: Path) -> None:
    for file in (root / keys.token_folder(2)).iterdir():
        file.unlink()
    (root / keys.token_folder(2)).rmdir()
    lose(root)


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def lose_all_but_the_first(root: Path) -> None:
    for generation in (1, 2):
        rmtree(root / keys.token_folder(generation))
        (root / keys.plan(generation)).unlink()


@pytest.mark.parametrize("loss", [lose, tear, lose_with_tokens, lose_all_but_the_first])
@pytest.mark.parametrize("level", LEVELS)
def test_a_lost_plan_is_named_and_nothing_is_taken_away(
    store: Store, loss: Callable[[Path], None], level: Level
) -> None:
    loss(store.root)
    before = tree(store.root)
    found = [*fsck(store.root, level, threads=1)]
    assert "plan-lost" in {f.kind for f in found}
    # Nothing that would make the store smaller, or move what is left of the larger one, is advised.
    assert {f.kind for f in found} <= {"plan-lost", "plan-invalid"}
    assert all(f.repair is None for f in found)
    with pytest.raises(InvalidDocument, match=r"larger than its newest whole plan says"):
        repair(store.root, apply=True)
    smaller = Store.open(store.root, to_check=True)
    with pytest.raises(InvalidDocument, match=r"larger than its newest whole plan says"):
        extract(smaller, SeededSource(store.identity))
    with pytest.raises(InvalidDocument, match=r"larger than its newest whole plan says"):
        already_filled(smaller)
    assert tree(store.root) == before


@pytest.mark.parametrize(
    "trace",
    [
        keys.zarr_metadata(keys.INPUT_IDS),
        keys.array_chunk(keys.LOSS_MASK, 3),
        "commit/00000003-000001.json",
        "manifest/00000003-*",
    ],
)
def test_one_trace_is_enough(store: Store, trace: str) -> None:
    """Whatever else is gone of the growth, what is left shows that there was one."""
    (path,) = store.root.glob(trace)
    raw = path.read_bytes()
    lose_with_tokens(store.root)
    smaller = Store.open(store.root)
    for name, document in metadata_documents(smaller.identity, smaller.plan).items():
        (store.root / name).write_bytes(document)
    for shard in range(smaller.plan.shards, store.plan.shards):
        for file in (*store.root.glob(f"*/{shard:08d}-*"), *store.root.glob(f"*/*/c/{shard}")):
            rmtree(file) if file.is_dir() else file.unlink()
    assert "plan-lost" not in kinds(store.root, "quick")
    path.write_bytes(raw)
    assert "plan-lost" in kinds(store.root, "quick")


def test_a_plan_before_the_newest_may_be_gone(store: Store) -> None:
    (store.root / keys.plan(0)).unlink()
    found = [*fsck(store.root, threads=1)]
    assert [(f.kind, f.severity, f.path) for f in found] == [
        ("plan-missing", "warning", keys.plan(0))
    ]
    assert_complete(store.root)


def test_a_plan_that_does_not_continue_the_one_before_is_named(store: Store) -> None:
    document = {**store.plan.to_document(), "previous": "0" * 32}
    (store.root / keys.plan(2)).write_bytes(seal(document))
    found = [*fsck(store.root, threads=1)]
    assert [(f.kind, f.path) for f in found] == [("plan-invalid", keys.plan(2))]
    assert "does not continue plan 1" in found[0].detail


def test_a_damaged_newest_plan_is_not_taken_for_a_smaller_store(store: Store) -> None:
    tear(store.root)
    with pytest.raises(InvalidDocument, match=r"plan/00000002\.json"):
        Store.open(store.root)


def test_token_files_that_no_plan_decided_are_removed_by_a_repair(store: Store) -> None:
    folder = store.root / keys.token_folder(3)
    folder.mkdir()
    (folder / "00000009.npz").write_bytes(b"of a growth that died")
    (finding,) = fsck(store.root, threads=1)
    assert (finding.kind, finding.severity) == ("growth-undecided", "warning")
    assert finding.repair == f"hsstore repair {store.root} --apply"
    repair(store.root, apply=True)
    assert not folder.exists()
    assert kinds(store.root) == []


def test_a_backup_from_before_the_growth_mends_what_it_has(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store", LENGTHS[:6])
    backup = copytree(store.root, tmp_path / "backup")
    store = fill(grown(store, LENGTHS[6:]))
    healthy, added = contents(store), store.plan.shards - 1
    damage.flip_bit(store.root / keys.shard_file(0), 100)
    (store.root / keys.shard_file(added)).unlink()
    (store.root / keys.tokens(0, 0)).unlink()
    (store.root / keys.tokens(1, added)).unlink()
    source = SeededSource(store.identity)
    assert repair(store.root, replica=backup, source=lambda: source, apply=True).corrected
    assert contents(Store.open(store.root)) == healthy
    assert set(source.asked) == set(store.samples.shard_samples(added))


def test_a_backup_that_grew_otherwise_gives_what_both_have(tmp_path: Path) -> None:
    """The sample after the first six has another length in each: what it has there is not ours."""
    store = filled_store(tmp_path / "store", LENGTHS[:6])
    other = Store.open(copytree(store.root, tmp_path / "other"))
    fill(grown(other, (3,)))
    store = fill(grown(grown(store, (4,)), (5,)))
    healthy = contents(store)
    for shard in (SHARD, store.plan.shards - 2):
        damage.flip_bit(store.root / keys.shard_file(shard), 10)
    (left,) = repair(store.root, replica=other.root, apply=True).remaining
    assert (left.kind, left.samples) == ("chunk-damaged", (key_of(6),))
    kept = {key: content for key, content in healthy.items() if key != key_of(6)}
    assert kept.items() <= contents(Store.open(store.root)).items()


def test_a_repair_and_a_growth_keep_out_of_each_others_way(store: Store) -> None:
    """What the one is about to put in place, the other takes for litter."""
    damage.flip_bit(store.root / keys.array_chunk(keys.INPUT_IDS, 0))
    before = tree(store.root)
    words = "the store is being extended or repaired; run the same"
    extended = pytest.raises(ClaimedByAnother, match=words)
    with growing(store), extended:
        repair(store.root, apply=True)
    assert tree(store.root) == before
    held: list[bool] = []

    class Looks(Filesystem):
        def rename(self, source: Path, target: Path) -> None:
            if keys.ZARR in target.parts:
                with pytest.raises(ClaimedByAnother, match="another process is growing"):
                    grown(Store.open(store.root), (3,))
                held.append(True)
            super().rename(source, target)

    assert repair(Store.open(store.root, filesystem=Looks()), apply=True).corrected
    assert held
    assert kinds(store.root) == []


def test_a_check_that_began_before_a_growth_finds_nothing(store: Store) -> None:
    fill(grown(store, (9, 30)))
    assert [*fsck(store, threads=1)] == []
    assert [*fsck(store.root, threads=1)] == []
