"""A growth that fails, is killed or loses power anywhere leaves the old store or the new one."""

import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsstore.errors import ClaimedByAnother
from hsstore.extraction.extractor import extract
from hsstore.integrity.checks import arrays, folders
from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import repair
from hsstore.model import keys
from hsstore.storage import catch_up, zarr_arrays
from hsstore.storage import extend as extend_module
from hsstore.storage import store as store_module
from hsstore.storage.extend import extend
from hsstore.storage.store import Store
from hsstore.testing.crash_states import RecordingFilesystem, write_state
from hsstore.testing.faults import Crash, FaultyFilesystem
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import empty_store, fill, more_samples
from hsstore.testing.verdicts import assert_complete, assert_exact, leftovers

OLD, MORE = (3, 7), (5, 9)


@pytest.fixture
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few samples in a chunk of the sample arrays: the growth crosses into the next one."""
    for module in (store_module, zarr_arrays, catch_up, arrays, folders, extend_module):
        monkeypatch.setattr(module, "TABLE_CHUNK", 3)


@pytest.fixture
def template(tmp_path: Path, small_tables: None) -> Path:  # noqa: ARG001 - sets them first
    return fill(empty_store(tmp_path / "template", OLD)).root


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.sweep)], ids=["numbers", "ids"])
def more(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return more_samples(tmp_path / "more.jsonl", MORE, first=len(OLD), named=request.param)


@pytest.fixture
def expected(template: Path, more: Path, tmp_path: Path) -> dict[str, bytes]:
    """What every file but those of the shards holds once the growth is done."""
    root = Path(shutil.copytree(template, tmp_path / "whole"))
    extend(unsynced(root), more)
    return tree(root)


def unsynced(root: Path) -> Store:
    """The store on a filesystem whose syncs cost nothing."""
    return Store.open(root, filesystem=FaultyFilesystem())


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def assert_old_or_new(root: Path, template: Path) -> None:
    """All that was committed reads as before; the plan is the first or the second, whole."""
    before = tree(template)
    for name, data in tree(root).items():
        if name.startswith((f"{keys.ZARR}/{keys.HIDDEN_STATES}/c", keys.COMMIT, keys.MANIFEST)):
            assert before.get(name) == data
    store = Store.open(root)
    assert store.plan.samples in (len(OLD), len(OLD) + len(MORE))
    assert [store.samples.extent(n).rows for n in range(store.plan.samples)] == [
        *OLD, *MORE,
    ][: store.plan.samples]  # fmt: skip
    for shard in range(store.plan.shards):
        store.tokens(shard)
    assert assert_exact(root) == len(OLD)


def assert_grown(root: Path, expected: dict[str, bytes]) -> None:
    """The store is as if nothing had ever gone wrong."""
    assert tree(root) == expected
    assert leftovers(root) == []


def test_a_crash_at_any_operation_is_finished_by_the_same_command(
    tmp_path: Path, template: Path, more: Path, expected: dict[str, bytes]
) -> None:
    root, n, done = tmp_path / "store", 0, False
    while not done:
        shutil.copytree(template, root)
        filesystem = FaultyFilesystem()
        filesystem.crash(n)
        try:
            extend(Store.open(root, filesystem=filesystem), more)
            done = True
        except Crash:
            pass
        assert_old_or_new(root, template)
        filesystem.heal()
        extend(Store.open(root, filesystem=filesystem), more)
        assert_grown(root, expected)
        shutil.rmtree(root)
        n += 1
    assert n > 60


def cuts(root: Path, more: Path) -> Iterator[Path]:
    """The stores that a power cut during a growth may leave, one after the other."""
    filesystem = RecordingFilesystem(root, breadth=0)
    extend(Store.open(root, filesystem=filesystem), more)
    after = root.with_name("after")
    for state in filesystem.states:
        shutil.rmtree(after, ignore_errors=True)
        write_state(state, after)
        for held in (after / keys.CLAIM).iterdir():
            os.utime(held, (0, time.time() - 61))
        yield after


def test_after_any_power_cut_the_same_command_ends_the_same(
    tmp_path: Path, template: Path, more: Path, expected: dict[str, bytes]
) -> None:
    root, generations, seen = shutil.copytree(template, tmp_path / "store"), set(), 0
    for after in cuts(Path(root), more):
        seen += 1
        assert_old_or_new(after, template)
        generations.add(Store.open(after).plan.generation)
        kinds = {f.kind for f in fsck(after, "manifest", threads=1)}
        assert kinds <= {"growth-pending", "growth-undecided", "shard-missing"}
        extend(unsynced(after), more)
        assert_grown(after, expected)
    assert seen > 60
    assert generations == {0, 1}


@pytest.mark.parametrize("who", ["extract", pytest.param("repair", marks=pytest.mark.sweep)])
def test_after_any_power_cut_others_finish_it_too(
    tmp_path: Path, template: Path, more: Path, expected: dict[str, bytes], who: str
) -> None:
    root, pending = shutil.copytree(template, tmp_path / "store"), 0
    for after in cuts(Path(root), more):
        store = unsynced(after)
        found = {f.kind for f in fsck(after, "manifest", threads=1)}
        pending += "growth-pending" in found
        if who == "extract":
            assert extract(store, SeededSource(store.identity)).complete
            assert_complete(after)
        elif found & {"growth-pending", "growth-undecided"}:
            repair(store, apply=True)
            assert not store.plan.generation or tree(after) == expected
            assert leftovers(after) == []
        assert {f.kind for f in fsck(after, threads=1)} <= {"shard-missing"}
    assert pending > 10


# -- killed for good -------------------------------------------------------------------------------


def start(root: Path, more: Path) -> subprocess.Popen[bytes]:
    """A process that extends the store, past its imports."""
    program = (
        "import sys; from hsstore.storage.extend import extend; print('ready', flush=True);"
        "extend(sys.argv[1], sys.argv[2])"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-c", program, root, more], stdout=subprocess.PIPE, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.stdout.close()
    return process


@pytest.mark.parametrize(
    ("kills", "seed"), [(4, 1), *(pytest.param(25, n, marks=pytest.mark.sweep) for n in (2, 3))]
)
def test_killed_again_and_again_it_ends_as_if_it_never_had_been(
    tmp_path: Path, kills: int, seed: int
) -> None:
    template = empty_store(tmp_path / "template", OLD).root
    lengths = random.Random(seed).choices(range(1, 17), k=60)  # noqa: S311 - no secret
    more = more_samples(tmp_path / "more.jsonl", lengths, first=len(OLD), named=False)
    whole = Path(shutil.copytree(template, tmp_path / "whole"))
    extend(unsynced(whole), more)
    root, chance = Path(shutil.copytree(template, tmp_path / "store")), random.Random(seed)  # noqa: S311
    for _ in range(kills):
        process = start(root, more)
        time.sleep(chance.uniform(0, 0.3))
        process.kill()
        process.wait()
        assert Store.open(root).plan.samples in (len(OLD), len(OLD) + len(lengths))
    assert start(root, more).wait() == 0
    assert_grown(root, tree(whole))


def test_one_that_is_alive_is_not_disturbed(template: Path, more: Path) -> None:
    """While it is stopped between plan and arrays, others read the new plan and leave it alone."""
    inside, go_on = threading.Event(), threading.Event()

    class Waits(FaultyFilesystem):
        def rename(self, source: Path, target: Path) -> None:
            if keys.ZARR in target.parts and not inside.is_set():
                inside.set()
                assert go_on.wait(60)
            super().rename(source, target)

    growing = threading.Thread(target=extend, args=(Store.open(template, filesystem=Waits()), more))
    growing.start()
    assert inside.wait(60)
    try:
        store = Store.open(template)
        assert len(store.samples) == len(OLD) + len(MORE)
        kinds = {f.kind for f in fsck(template, "manifest", threads=1)}
        assert kinds == {"growth-pending", "shard-missing"}
        with pytest.raises(ClaimedByAnother):
            extend(template, more)
        assert extract(store, SeededSource(store.identity)).complete
        repair(template, apply=True)
        assert "growth-pending" in {f.kind for f in fsck(template, threads=1)}
    finally:
        go_on.set()
        growing.join()
    assert [*fsck(template, threads=1)] == []
    assert_complete(template)
