"""A store grows by another dataset, and what was there stays as it was."""

import errno
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from hsstore.errors import (
    ClaimedByAnother,
    HsstoreError,
    InvalidDocument,
    MalformedInput,
    NotAStore,
    OutOfSpace,
    StorageFailed,
)
from hsstore.extraction.extractor import extract
from hsstore.integrity.checks import arrays, folders
from hsstore.model import keys
from hsstore.model.progress import Silent
from hsstore.storage import catch_up, claim, growing, zarr_arrays
from hsstore.storage import extend as extend_module
from hsstore.storage import store as store_module
from hsstore.storage.create import create
from hsstore.storage.extend import Extension, extend, needed_bytes
from hsstore.storage.filesystem import Buffer
from hsstore.storage.reader import Reader
from hsstore.storage.space import Space, available
from hsstore.storage.store import Store
from hsstore.storage.tokenised import count_samples
from hsstore.testing.faults import FaultyFilesystem
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import contents, empty_store, fill, grown, key_of, more_samples
from hsstore.testing.verdicts import assert_complete, leftovers
from hsstore.training.dataset import HiddenStateDataset

OLD = (3, 7, 16, 2)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return empty_store(tmp_path / "store", OLD)


@pytest.fixture(params=[65_536, 3])
def table_chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    for module in (store_module, zarr_arrays, catch_up, arrays, folders, extend_module):
        monkeypatch.setattr(module, "TABLE_CHUNK", request.param)
    size: int = request.param
    return size


def lines(path: Path, *samples: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    return path


def tree(root: Path) -> dict[str, bytes]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def test_what_was_there_stays_and_the_new_samples_follow(tmp_path: Path, store: Store) -> None:
    fill(store)
    before, old_view = tree(store.root), contents(store)
    done = extend(store.root, more_samples(tmp_path / "more", (5, 9), first=len(OLD)))
    assert (done.samples, done.tokens, done.shards) == (2, 14, 2)
    after = tree(store.root)
    kept = {name for name in before if not name.startswith(f"{keys.ZARR}/")} | {
        name for name in before if name.startswith(f"{keys.ZARR}/{keys.HIDDEN_STATES}/c/")
    }
    assert {name: after[name] for name in kept} == {name: before[name] for name in kept}
    assert leftovers(store.root) == []
    plan = done.store.plan
    assert (plan.generation, plan.samples, plan.shards) == (1, 6, store.plan.shards + 2)
    assert plan.previous == json.loads(before[keys.plan(0)])["seal"]
    fill(done.store)
    assert_complete(store.root)
    assert old_view.items() <= contents(done.store).items()


@pytest.mark.parametrize("growths", [[(5, 9)], [(1,) * 5, (16, 2, 2)]])
def test_arrays_and_metadata_are_those_of_a_store_of_that_size(
    table_chunk: int,  # noqa: ARG001 - sets it, before the store is made
    store: Store,
    growths: Sequence[Sequence[int]],
) -> None:
    now = grown(store, *growths)
    expected = zarr_arrays.metadata_documents(now.identity, now.plan)
    assert {name: (store.root / name).read_bytes() for name in expected} == expected
    fresh = Store.open(store.root)
    by_arrays, by_tokens = fresh._table_from_arrays(), fresh._table_from_tokens()
    assert by_arrays.digest() == by_tokens.digest() == fresh.plan.sample_table
    for shard in range(fresh.plan.shards):
        for chunk in zarr_arrays.shard_chunks(shard, fresh.tokens(shard), fresh.identity.geometry):
            raw = (store.root / chunk.key).read_bytes()
            assert raw == chunk.data.ljust(chunk.size, b"\0")


def test_the_dataset_digest_is_that_of_all_samples_at_once(tmp_path: Path, store: Store) -> None:
    now = grown(store, (5, 9), (1,))
    whole = empty_store(tmp_path / "whole", (*OLD, 5, 9, 1))
    assert now.plan.dataset == whole.plan.dataset
    assert now.plan.sample_table != store.plan.sample_table


def test_a_growth_begins_a_shard_of_its_own(store: Store) -> None:
    now = grown(store, (1,), (1,))
    (_, first), (_, second), (_, third) = now.plan.token_files.spans()
    assert (first.stop, second.stop, third.stop) == (store.plan.shards,) * 1 + (
        store.plan.shards + 1, store.plan.shards + 2,
    )  # fmt: skip
    assert [now.samples.extent(n).first_row for n in (4, 5)] == [0, 0]


def test_samples_without_ids_are_named_by_their_number(tmp_path: Path, store: Store) -> None:
    dataset = lines(tmp_path / "more", {"input_ids": [1]}, {"id": "x", "input_ids": [2]},
                    {"input_ids": [3], "loss_mask": [0]})  # fmt: skip
    now = extend(store, dataset).store
    assert [now.key(n) for n in (4, 5, 6)] == ["4", "x", "6"]
    assert now.tokens(now.plan.shards - 1).loss_mask.tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"id": key_of(2), "input_ids": [1]}, r"more:2: id 'sample-2' is taken by sample 2 of the"),
        ({"id": "good", "input_ids": [1]}, r"more:2: id 'good' is taken by line 1"),
        ({"id": "y", "input_ids": [1000]}, r"more:2: input_ids\[0\] is 1000, outside the model's"),
        (
            {"id": "y", "input_ids": [1] * 17},
            r"more:2: a sample of 17 tokens does not fit .*16 rows",
        ),
        ({"id": "y", "input_ids": []}, r"more:2: an empty sample"),
        ({"id": "y"}, r"more:2: input_ids is missing"),
        ({"id": "4", "input_ids": [7]}, None),
    ],
)
def test_what_does_not_fit_the_store_is_refused_with_its_line(
    tmp_path: Path, store: Store, sample: dict[str, Any], words: str | None
) -> None:
    before = tree(store.root)
    dataset = lines(tmp_path / "more", {"id": "good", "input_ids": [1]}, sample)
    if words is None:
        assert extend(store, dataset).samples == 2
        return
    with pytest.raises(MalformedInput, match=words):
        extend(store, dataset)
    assert tree(store.root) == before
    assert leftovers(store.root) == []


def test_a_number_that_is_somebodys_id_is_refused(tmp_path: Path, store: Store) -> None:
    now = extend(store, lines(tmp_path / "a", {"id": "5", "input_ids": [1]})).store
    with pytest.raises(MalformedInput, match=r"b:1: id '5' is taken by sample 4 of the store"):
        extend(now, lines(tmp_path / "b", {"input_ids": [2]}))


@pytest.mark.parametrize("dataset", ["empty", "nowhere", "."])
def test_what_is_no_dataset_is_refused(tmp_path: Path, store: Store, dataset: str) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(MalformedInput, match=r"empty|no such dataset|not a regular file"):
        extend(store, tmp_path / dataset)


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        extend(tmp_path, lines(tmp_path / "more", {"input_ids": [1]}))


def test_a_dataset_that_changes_meanwhile_is_refused(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = more_samples(tmp_path / "more", (5, 9), first=4)

    def counted(*args: Any, **options: Any) -> tuple[list[int], list[int]]:  # noqa: ANN401
        found = count_samples(*args, **options)
        more_samples(dataset, (5, 8), first=4)
        return found

    monkeypatch.setattr(extend_module, "count_samples", counted)
    before = tree(store.root)
    with pytest.raises(MalformedInput, match="the dataset changed while it was read"):
        extend(store, dataset)
    assert tree(store.root) == before


def test_equal_lengths_do_not_hide_a_change(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = iter([(1, 2, 3), (1, 2, 4)])
    monkeypatch.setattr(extend_module, "file_state", lambda _: next(states))
    before = tree(store.root)
    with pytest.raises(MalformedInput, match="the dataset changed"):
        extend(store, more_samples(tmp_path / "more", (5, 9), first=4))
    assert tree(store.root) == before


# -- duplicates and repetition -------------------------------------------------------------------


def duplicates(done: Extension) -> list[tuple[str, str | None, str, bool]]:
    return [
        (Path(d.place).name, d.key, d.equals, d.in_store) for d in done.duplicates
    ]  # fmt: skip


@pytest.fixture
def doubled(tmp_path: Path, store: Store) -> Path:
    """Line 1 is in the store, line 4 on line 2; lines 2 and 3 are new."""
    known = store.tokens(0).sample(1)[1].tolist()
    return lines(tmp_path / "more", {"input_ids": known}, {"input_ids": [1, 2]},
                 {"id": "x", "input_ids": [2, 1]}, {"id": "y", "input_ids": [1, 2]})  # fmt: skip


def test_duplicates_are_told_and_kept(store: Store, doubled: Path) -> None:
    done = extend(store, doubled)
    assert done.samples == 4
    assert duplicates(done) == [
        ("more:1", "4", key_of(1), True),
        ("more:4", "y", "5", False),
    ]


def test_duplicates_are_left_out_when_asked(store: Store, doubled: Path) -> None:
    done = extend(store, doubled, skip_duplicates=True)
    assert duplicates(done) == [
        ("more:1", None, key_of(1), True),
        ("more:4", "y", "4", False),
    ]
    assert [done.store.key(n) for n in range(4, done.store.plan.samples)] == ["4", "x"]
    again = extend(store, doubled, skip_duplicates=True)
    assert (again.samples, len(again.duplicates)) == (0, 4)
    assert again.store.plan == done.store.plan


def test_a_key_of_the_store_is_no_obstacle_for_a_sample_left_out(
    tmp_path: Path, store: Store
) -> None:
    dataset = more_samples(tmp_path / "more", OLD, first=0)
    before = tree(store.root)
    done = extend(store, dataset, skip_duplicates=True)
    assert (done.samples, len(done.duplicates)) == (0, 4)
    assert tree(store.root) == before


@pytest.mark.parametrize("named", [True, False])
def test_the_same_again_adds_nothing(tmp_path: Path, store: Store, *, named: bool) -> None:
    dataset = more_samples(tmp_path / "more", (5, 9), first=4, named=named)
    first = extend(store, dataset)
    before = tree(store.root)
    again = extend(store, dataset)
    assert (again.samples, again.repeated, again.finished) == (0, True, False)
    assert again.store.plan == first.store.plan
    assert tree(store.root) == before


@pytest.mark.parametrize("named", [True, False])
def test_the_same_again_after_another_growth_adds_nothing(
    tmp_path: Path, store: Store, *, named: bool
) -> None:
    dataset = more_samples(tmp_path / "more", (5, 9), first=4, named=named)
    extend(store, dataset)
    other = extend(store.root, more_samples(tmp_path / "other", (5, 9), first=6, named=named))
    assert (other.samples, other.repeated) == (2, False)
    before = tree(store.root)
    again = extend(store.root, dataset)
    assert (again.samples, again.repeated) == (0, True)
    assert again.store.plan == other.store.plan
    assert tree(store.root) == before


def test_an_id_that_was_a_number_of_an_earlier_growth_is_no_obstacle(
    tmp_path: Path, store: Store
) -> None:
    """Samples are compared with those of a growth under the numbers that they had there."""
    known = {"id": "5", "input_ids": [1]}
    extend(store, lines(tmp_path / "a", known, {"id": "y", "input_ids": [2]}))
    # Were it that growth again, its second sample would be called 5 as well.
    dataset = lines(tmp_path / "b", known, {"input_ids": [3]})
    done = extend(store.root, dataset, skip_duplicates=True)
    assert (done.samples, done.store.key(6)) == (1, "6")


def test_a_repeated_dataset_that_changes_meanwhile_is_refused(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = more_samples(tmp_path / "more", (5, 9), first=4)
    extend(store, dataset)
    states = iter([(1, 2, 3), (1, 2, 4)])
    monkeypatch.setattr(extend_module, "file_state", lambda _: next(states))
    with pytest.raises(MalformedInput, match="the dataset changed"):
        extend(store.root, dataset)


@pytest.mark.parametrize("change", ["input_ids", "loss_mask", "id"])
def test_of_the_same_lengths_but_otherwise_different_is_not_the_same(
    tmp_path: Path, store: Store, change: str
) -> None:
    sample = {"id": "x", "input_ids": [1, 2], "loss_mask": [1, 1]}
    extend(store, lines(tmp_path / "more", sample))
    other = {**sample, change: [0, 1] if change != "id" else "y"}
    dataset = lines(tmp_path / "more", other)
    if change == "id":
        assert extend(store, dataset).samples == 1
    else:
        with pytest.raises(MalformedInput, match="id 'x' is taken by sample 4 of the store"):
            extend(store, dataset)


# -- others at work ------------------------------------------------------------------------------


def test_an_open_store_and_dataset_keep_their_view(store: Store) -> None:
    fill(store)
    dataset, reader = HiddenStateDataset(store.root), Reader(store)
    seen = [reader.read(n).tobytes() for n in range(len(OLD))]
    now = grown(store, (5, 9))
    assert len(dataset) == len(OLD)
    assert [reader.read(n).tobytes() for n in range(len(OLD))] == seen
    # Not looked at before the growth: the tail chunk was replaced under it.
    assert len(Store(store.root, store.identity, store.plan).samples) == len(OLD)
    assert not extract(store, SeededSource(store.identity)).samples_extracted
    fill(now)
    assert len(HiddenStateDataset(store.root)) == len(OLD) + 2


def test_an_extraction_goes_on_with_the_plan_that_it_has(tmp_path: Path, store: Store) -> None:
    dataset = more_samples(tmp_path / "more", (5, 9), first=4)

    class Grows(SeededSource):
        def states(self, requests: Any) -> Any:  # noqa: ANN401 - as SeededSource
            extend(store.root, dataset)
            return super().states(requests)

    summary = extract(store, Grows(store.identity), shards=range(1))
    assert summary.shards_committed == 1
    assert extract(store, SeededSource(store.identity)).complete
    assert extract(Store.open(store.root), SeededSource(store.identity)).complete
    assert_complete(store.root)


def test_two_at_once_one_wins_and_the_other_says_so(tmp_path: Path, store: Store) -> None:
    datasets = [more_samples(tmp_path / f"more-{n}", (5, 9), first=4 + 2 * n) for n in range(2)]
    ends: list[object] = []

    def run(dataset: Path) -> None:
        try:
            ends.append(extend(store.root, dataset).samples)
        except ClaimedByAnother as error:
            ends.append(str(error))

    threads = [threading.Thread(target=run, args=[dataset]) for dataset in datasets]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = [end for end in ends if isinstance(end, str)]
    assert all("another process is growing the store" in end for end in refused)
    assert Store.open(store.root).plan.samples == len(OLD) + 2 * (2 - len(refused))
    for dataset in datasets:
        extend(store.root, dataset, skip_duplicates=True)
    assert Store.open(store.root).plan.samples == len(OLD) + 4
    assert leftovers(store.root) == []


STALLS = ["write", "rename", "link"]


@pytest.mark.parametrize("kind", STALLS)
def test_one_that_was_overtaken_changes_nothing(tmp_path: Path, store: Store, kind: str) -> None:
    """It stalls, is taken for dead, and wakes up when another has grown the store."""
    ours = more_samples(tmp_path / "ours", (5, 9), first=4)
    theirs = more_samples(tmp_path / "theirs", (2, 2, 2), first=6)

    class Stalls(FaultyFilesystem):
        stalled = False

        def _count(self, found: str, path: Path) -> None:
            if found == kind and keys.PLAN in path.parts and not self.stalled:
                self.stalled = True
                take_over(store.root, theirs)
            super()._count(found, path)

    with pytest.raises(ClaimedByAnother):
        extend(Store.open(store.root, filesystem=Stalls()), ours)
    now = Store.open(store.root)
    assert [now.samples.extent(n).rows for n in range(4, now.plan.samples)] == [2, 2, 2]
    for shard in range(now.plan.shards):
        now.tokens(shard)
    assert extend(store.root, theirs).repeated
    assert leftovers(store.root) == []


def take_over(store: Store | Path, dataset: Path) -> None:
    """Grow a store whose claim looks stale."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(claim, "STALE_SECONDS", -1.0)
        extend(store, dataset)


def test_one_that_begins_after_it_was_overtaken_takes_nothing_from_the_other(
    tmp_path: Path, store: Store
) -> None:
    """It wakes up, and fails, when the other has its token files in place and not yet its plan."""
    ours = more_samples(tmp_path / "ours", (5, 9), first=4)
    theirs = more_samples(tmp_path / "theirs", (2, 2, 2), first=6)
    frozen, wake, ended = threading.Event(), threading.Event(), list[BaseException]()

    class Freezes(FaultyFilesystem):
        def make_folder(self, path: Path) -> None:
            if keys.is_growth(path.name):
                frozen.set()
                assert wake.wait(60)
            super().make_folder(path)

        def write_new(self, path: Path, data: Buffer) -> None:
            if path.suffix == ".npz":
                raise OSError(errno.ENOSPC, "full", str(path))
            super().write_new(path, data)

    def run() -> None:
        try:
            extend(Store.open(store.root, filesystem=Freezes()), ours)
        except HsstoreError as error:
            ended.append(error)

    overtaken = threading.Thread(target=run)

    class Wakes(FaultyFilesystem):
        def publish(self, path: Path, data: bytes, *, within: Path | None = None) -> None:
            if path == store.root / keys.plan(1):
                wake.set()
                overtaken.join()
            super().publish(path, data, within=within)

    overtaken.start()
    assert frozen.wait(60)
    take_over(Store.open(store.root, filesystem=Wakes()), theirs)
    # Before it wrote anything: it looked whether it still was the one.
    assert [type(error) for error in ended] == [ClaimedByAnother]
    now = Store.open(store.root)
    assert [now.samples.extent(n).rows for n in range(4, now.plan.samples)] == [2, 2, 2]
    for shard in range(now.plan.shards):
        now.tokens(shard)
    assert leftovers(store.root) == []


@pytest.mark.parametrize("seen", [True, False])
def test_a_plan_that_was_linked_keeps_its_token_files(
    tmp_path: Path, store: Store, *, seen: bool
) -> None:
    """Its folder cannot be synced then, and perhaps not even be looked into any more."""
    dataset = more_samples(tmp_path / "more", (5, 9), first=4)

    class Breaks(FaultyFilesystem):
        linked = False

        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            self.linked |= target == store.root / keys.plan(1)

        def sync_folder(self, path: Path) -> None:
            if self.linked and path == store.root / keys.PLAN:
                raise OSError(errno.EIO, "no sync", str(path))
            super().sync_folder(path)

        def exists(self, path: Path) -> bool:
            return (seen or not self.linked) and super().exists(path)

    with pytest.raises(StorageFailed, match="no sync"):
        extend(Store.open(store.root, filesystem=Breaks()), dataset)
    now = Store.open(store.root)
    assert now.plan.generation == 1
    for shard in range(now.plan.shards):
        now.tokens(shard)
    again = extend(store.root, dataset)
    assert (again.repeated, again.finished) == (True, True)
    assert leftovers(store.root) == []


def test_one_that_withdraws_while_it_is_overtaken_is_no_obstacle(
    tmp_path: Path, store: Store
) -> None:
    abandoned = store.root / keys.growth(1, "0" * 16)
    abandoned.mkdir()

    class Withdraws(FaultyFilesystem):
        def rename(self, source: Path, target: Path) -> None:
            if source == abandoned and abandoned.exists():
                abandoned.rmdir()
            super().rename(source, target)

    dataset = more_samples(tmp_path / "more", (5, 9), first=4)
    assert extend(Store.open(store.root, filesystem=Withdraws()), dataset).samples == 2
    assert leftovers(store.root) == []


def test_a_plan_is_durable_before_shards_of_it_are_committed(tmp_path: Path, store: Store) -> None:
    """Whoever grows the store is alive, and has not come to syncing plan/ after its plan."""
    committed: list[list[str]] = []

    class Notes(FaultyFilesystem):
        synced: list[str]

        def sync_folder(self, path: Path) -> None:
            self.synced.append(path.name)
            super().sync_folder(path)

    class Fills(FaultyFilesystem):
        linked = False

        def sync_folder(self, path: Path) -> None:
            if self.linked and path.name == keys.PLAN and not committed:
                filesystem = Notes()
                filesystem.synced = []
                opened = Store.open(store.root, filesystem=filesystem)
                assert opened.plan.generation == 1
                assert extract(opened, SeededSource(store.identity)).complete
                committed.append(filesystem.synced)
            super().sync_folder(path)

        def link(self, source: Path, target: Path) -> None:
            super().link(source, target)
            self.linked |= target == store.root / keys.plan(1)

    dataset = more_samples(tmp_path / "more", (5, 9), first=4)
    extend(Store.open(store.root, filesystem=Fills()), dataset)
    (synced,) = committed
    assert keys.PLAN in synced[: synced.index(keys.COMMIT)]
    assert_complete(store.root)


# -- trouble -------------------------------------------------------------------------------------


def test_a_full_disk_is_refused_before_writing(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing(path: Path) -> Space:
        found = available(path)
        return Space(found.path, found.device, found.total_bytes, found.total_bytes, 0, None)

    monkeypatch.setattr(extend_module, "available", nothing)
    before = tree(store.root)
    with pytest.raises(OutOfSpace, match="0 are available"):
        extend(store, more_samples(tmp_path / "more", (5, 9), first=4))
    assert tree(store.root) == before


def test_what_it_needs_is_never_underestimated(tmp_path: Path, store: Store) -> None:
    lengths = np.random.default_rng(1).integers(1, 17, 60).tolist()
    before = sum(path.stat().st_blocks * 512 for path in store.root.rglob("*"))
    expected = needed_bytes(store, lengths, sum(len(key_of(n)) for n in range(4, 64)))
    extend(store, more_samples(tmp_path / "more", lengths, first=4))
    after = sum(path.stat().st_blocks * 512 for path in store.root.rglob("*"))
    assert after - before <= expected


def damage_tokens(root: Path) -> None:
    path = root / keys.tokens(0, 0)
    path.write_bytes(path.read_bytes()[:-1] + b"\1\1")


def damage_plan(root: Path) -> None:
    (root / keys.plan(1)).write_bytes(b"{}")


def lose_plan(root: Path) -> None:
    (root / keys.plan(1)).unlink()


def edit_metadata(root: Path) -> None:
    (root / keys.zarr_metadata()).write_bytes(b"{}")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (damage_tokens, "the token file differs from the plan"),
        (damage_plan, "plan/00000001.json"),
        (lose_plan, "the store was larger than its newest whole plan says"),
        (edit_metadata, "described as none of the store's plans says"),
    ],
)
def test_a_damaged_store_is_not_grown(
    tmp_path: Path, store: Store, damage: Callable[[Path], None], words: str
) -> None:
    grown(store, (5, 9))
    damage(store.root)
    before = tree(store.root)
    with pytest.raises(InvalidDocument, match=words):
        extend(store.root, more_samples(tmp_path / "more", (1,), first=6))
    assert tree(store.root) == before


def test_progress_adds_up(tmp_path: Path, store: Store) -> None:
    class Counts(Silent):
        def __init__(self) -> None:
            self.totals: list[tuple[int, str]] = []
            self.done = 0

        def start(self, total: int, done: int, unit: str) -> None:
            self.totals.append((total - done, unit))

        def advance(self, units: int) -> None:
            self.done += units

        def note(self, text: str) -> None:
            raise AssertionError(text)

    progress = Counts()
    extend(store, more_samples(tmp_path / "more", (5, 9), first=4), progress=progress)
    assert [unit for _, unit in progress.totals] == ["B", "tok", "tok", "shards"]
    assert progress.done == sum(total for total, _ in progress.totals)


def test_many_samples_cross_a_chunk_of_the_sample_arrays(tmp_path: Path) -> None:
    """Tiny samples, with chunks of the size that the format has."""
    config = {"hidden_size": 2, "num_hidden_layers": 3, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps(config))
    line = '{"input_ids": [1]}\n'
    first, more = tmp_path / "first", tmp_path / "more"
    first.write_text(line * 65_000)
    more.write_text(line * 1_000 + '{"input_ids": [2]}\n')
    store = create(tmp_path / "store", first, tmp_path, "1", "float16",
                   chunk_rows=1, shard_rows=32_768)  # fmt: skip
    now = extend(store, more).store
    table = Store.open(now.root)._table_from_arrays()
    assert table.digest() == now.plan.sample_table
    assert len(table) == 66_001
    digests = (now.root / keys.array_chunk(keys.SAMPLE_DIGEST, 1)).read_bytes()
    at = (66_000 - 65_536) * 16
    assert digests[at : at + 16] == xxhash.xxh3_128_digest(np.array([2], "<i4").tobytes())
    assert not any(digests[at + 16 :])
    assert len(growing.undecided(now)) == 0
