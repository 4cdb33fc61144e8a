import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hsstore.errors import HsstoreError, MalformedInput, OutOfSpace, StorageFailed, StoreExists
from hsstore.model import geometry, keys
from hsstore.storage import building, tokenised
from hsstore.storage import create as create_module
from hsstore.storage.create import create
from hsstore.storage.filesystem import Buffer, Filesystem
from hsstore.storage.store import Store
from hsstore.storage.token_file import token_digest
from hsstore.storage.tokenised import count_samples

CONFIG = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "vocab_size": 1000,
    "dtype": "bfloat16",
}
SAMPLES = [{"id": f"s{n}", "input_ids": list(range(1, n + 2))} for n in range(40)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path, SAMPLES)
    return tmp_path


class Unsynced(Filesystem):
    """Spares the disk where only what is written matters."""

    def sync(self, fd: int, path: Path) -> None:
        pass


def write(folder: Path, samples: list[dict[str, Any]]) -> None:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "data.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))


def make(folder: Path, **options: Any) -> Store:  # noqa: ANN401 - options of create
    base: dict[str, Any] = {
        "path": folder / "store",
        "layers": "1,3,final",
        "chunk_rows": 16,
        "shard_rows": 64,
    }
    return create(dataset=folder / "data.jsonl", model=folder, **base | options)


def left_behind(folder: Path) -> list[str]:
    return sorted({path.name for path in folder.iterdir()} - {"config.json", "data.jsonl"})


def test_the_store_holds_what_was_given(folder: Path) -> None:
    store = make(folder)
    assert left_behind(folder) == ["store"]
    assert sorted(p.name for p in store.root.iterdir()) == sorted([keys.IDENTITY, *keys.FOLDERS])
    identity = store.identity
    assert (identity.capture.layers, identity.capture.dtype) == ((1, 3, "final"), "bfloat16")
    assert (identity.chunk_rows, identity.shard_rows, identity.codec) == (16, 64, "none")
    assert (store.plan.samples, store.plan.tokens) == (40, 40 * 41 // 2)
    assert not store.committed()


samples_strategy = st.lists(
    st.lists(st.tuples(st.integers(0, 999), st.booleans()), min_size=1, max_size=50),
    min_size=1,
    max_size=12,
)


@settings(deadline=None, max_examples=25)
@given(drawn=samples_strategy, rows=st.sampled_from([(1, 50), (4, 64), (16, 64), (64, 128)]))
def test_tokens_read_back_from_both_copies_equal_the_input(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[list[tuple[int, bool]]],
    rows: tuple[int, int],
) -> None:
    folder = tmp_path_factory.mktemp("drawn")
    write(
        folder,
        [{"input_ids": [i for i, _ in s], "loss_mask": [int(m) for _, m in s]} for s in drawn],
    )
    store = make(folder, chunk_rows=rows[0], shard_rows=rows[1], filesystem=Unsynced())
    assert [list(zip(i.tolist(), m.tolist(), strict=True)) for i, m in _tokens(store)] == drawn
    assert _arrays(store) == drawn
    shutil.rmtree(folder)


def _tokens(store: Store) -> Iterator[tuple[Any, Any]]:
    for shard in range(store.plan.shards):
        tokens = store.tokens(shard)
        assert tokens.first_sample == store.samples.shard_samples(shard).start
        for n, (key, ids, mask) in enumerate(tokens.samples(), tokens.first_sample):
            assert key == str(n)
            yield ids, mask


def _arrays(store: Store) -> list[list[tuple[int, int]]]:
    def chunk(array: str, shard: int, dtype: str) -> Any:  # noqa: ANN401 - an array
        path = store.root / keys.array_chunk(array, shard)
        return np.frombuffer(path.read_bytes(), dtype)

    back = []
    digests = chunk(keys.SAMPLE_DIGEST, 0, "u1").reshape(65536, 16)
    for sample in range(store.plan.samples):
        extent = store.samples.extent(sample)
        rows = slice(extent.first_row, extent.first_row + extent.rows)
        ids = chunk(keys.INPUT_IDS, extent.shard, "<i4")
        mask = chunk(keys.LOSS_MASK, extent.shard, "u1")
        assert len(ids) == len(mask) == store.identity.shard_rows
        assert digests[sample].tobytes() == token_digest(ids[rows])
        back.append(list(zip(ids[rows].tolist(), mask[rows].tolist(), strict=True)))
    return back


def test_the_dataset_digest_covers_keys_ids_and_masks(folder: Path) -> None:
    digest = xxhash.xxh3_128()
    for sample in SAMPLES:
        ids = np.array(sample["input_ids"], "<i4")
        digest.update(np.uint32(len(sample["id"])).tobytes() + str(sample["id"]).encode())
        digest.update(np.uint32(len(ids)).tobytes() + ids.tobytes() + bytes([1] * len(ids)))
    assert make(folder).plan.dataset == digest.hexdigest()


def test_samples_lie_by_next_fit(folder: Path) -> None:
    store = make(folder)
    expected = list(geometry.place([len(s["input_ids"]) for s in SAMPLES], store.identity.geometry))
    assert [store.samples.extent(n) for n in range(40)] == expected
    assert store.plan.shards == expected[-1].shard + 1


def test_unused_tails_take_no_space(folder: Path) -> None:
    store = make(folder)
    for array in (keys.SAMPLE_START, keys.SAMPLE_DIGEST):
        status = (store.root / keys.array_chunk(array, 0)).stat()
        assert status.st_size >= 65536 * 8
        assert status.st_blocks * 512 <= 8192


def test_two_stores_of_one_dataset_differ_in_their_identity_alone(folder: Path) -> None:
    one, two = make(folder), make(folder, path=folder / "other")
    assert one.identity.uuid != two.identity.uuid
    assert one.plan.token_files == two.plan.token_files
    assert (one.plan.dataset, one.plan.sample_table) == (two.plan.dataset, two.plan.sample_table)


class Notes:
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.done = 0
        self.totals: list[int] = []

    def start(self, total: int, done: int, unit: str) -> None:  # noqa: ARG002 - Progress
        self.totals.append(total)

    def advance(self, units: int) -> None:
        self.done += units

    def note(self, text: str) -> None:
        self.notes.append(text)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        raise AssertionError(name, members)


def test_progress_adds_up_and_a_raised_shard_is_said(tmp_path: Path) -> None:
    write(tmp_path, [{"input_ids": [1] * 33_000}, {"input_ids": [2]}])
    progress = Notes()
    store = make(tmp_path, chunk_rows=None, shard_rows=None, progress=progress)
    assert store.identity.shard_rows == 33_024
    assert progress.notes == [
        "shards have 33024 rows instead of 32768, to hold the longest sample (33000 tokens)"
    ]
    assert progress.totals == [(tmp_path / "data.jsonl").stat().st_size, 33_001]
    assert progress.done == sum(progress.totals)


def test_layers_may_come_as_values_and_from_other_conventions(folder: Path) -> None:
    store = make(folder, layers=(0, "final:pre"))
    assert store.identity.capture.layers == (0, "final:pre")
    other = make(folder, path=folder / "b", layers="0,2", layer_convention="specforge")
    assert other.identity.capture.layers == (1, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layers": "4"}, "final"),
        ({"layers": "9"}, "layer 9 does not exist"),
        ({"layers": ""}, "no layer"),
        ({"layers": []}, "no layer"),
        ({"dtype": "float64"}, "unknown dtype 'float64'"),
        ({"codec": "zip"}, "unknown codec 'zip'"),
        ({"chunk_rows": 0}, "at least 1"),
        ({"chunk_rows": 48}, "multiple"),
        ({"shard_rows": 16}, "the longest sample has 40 tokens"),
        ({"model": "nowhere"}, "no such model"),
        ({"dataset": "nowhere"}, "no such dataset"),
        ({"dataset": os.devnull}, "not a regular file"),
    ],
)
def test_wrong_options_leave_nothing(folder: Path, options: dict[str, Any], words: str) -> None:
    arguments: dict[str, Any] = {
        "path": folder / "store",
        "dataset": folder / "data.jsonl",
        "model": folder,
        "layers": "1",
        "chunk_rows": 16,
        "shard_rows": 64,
    }
    with pytest.raises(MalformedInput, match=words):
        create(**arguments | options)
    assert left_behind(folder) == []


@pytest.mark.parametrize(
    "line",
    ['{"input_ids": [1000]}', '{"id": "s3", "input_ids": [1]}', '{"input_ids": [true]}', "x", "{}"],
)
def test_a_bad_line_leaves_nothing(folder: Path, line: str) -> None:
    with (folder / "data.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(MalformedInput, match=r"data.jsonl:41: "):
        make(folder)
    assert left_behind(folder) == []


def test_a_dtype_is_asked_for_where_the_config_says_none(folder: Path) -> None:
    silent = {name: value for name, value in CONFIG.items() if name != "dtype"}
    (folder / "config.json").write_text(json.dumps(silent))
    with pytest.raises(MalformedInput, match="give --dtype"):
        make(folder)
    assert make(folder, dtype="float32").identity.capture.dtype == "float32"


def test_places_that_are_taken_are_refused(folder: Path) -> None:
    make(folder)
    before = sorted(folder.rglob("*"))
    for path in (folder / "store", folder / "data.jsonl", folder):
        with pytest.raises(StoreExists, match="something is there already"):
            make(folder, path=path)
    with pytest.raises(StorageFailed, match="a mount point"):
        make(folder, path=Path("/"))
    with pytest.raises(StorageFailed, match="no such folder"):
        make(folder, path=folder / "none" / "store")
    assert sorted(folder.rglob("*")) == before


def test_a_loop_of_links_is_refused(folder: Path) -> None:
    (folder / "loop").symlink_to("loop")
    with pytest.raises(HsstoreError, match="loop"):
        make(folder, path=folder / "loop" / "store")


def test_an_empty_folder_may_become_the_store(folder: Path) -> None:
    (folder / "store").mkdir()
    assert make(folder).plan.samples == 40


def test_another_that_was_faster_wins(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def late(root: Path, target: Path, filesystem: Filesystem) -> None:
        (target / "theirs").mkdir(parents=True)
        building.publish(root, target, filesystem)

    monkeypatch.setattr(create_module, "publish", late)
    with pytest.raises(StoreExists):
        make(folder)
    assert left_behind(folder) == ["store"]
    assert [path.name for path in (folder / "store").iterdir()] == ["theirs"]


@pytest.mark.parametrize(
    "second",
    [SAMPLES[:-1], [*SAMPLES, SAMPLES[0] | {"id": "more"}], [*SAMPLES[:-1], {"input_ids": [1]}]],
)
def test_a_dataset_that_changes_meanwhile_is_refused(
    folder: Path, second: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def counted(*args: Any, **options: Any) -> tuple[list[int], list[int]]:  # noqa: ANN401 - as count_samples
        counts = count_samples(*args, **options)
        write(folder, second)
        return counts

    monkeypatch.setattr(tokenised, "count_samples", counted)
    with pytest.raises(MalformedInput, match="the dataset changed"):
        make(folder)
    assert left_behind(folder) == []


def test_equal_lengths_do_not_hide_a_change(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    states = iter([(1, 2, 3), (1, 2, 4)])
    monkeypatch.setattr(tokenised, "file_state", lambda _: next(states))
    with pytest.raises(MalformedInput, match="the dataset changed"):
        make(folder)
    assert left_behind(folder) == []


# -- faults ----------------------------------------------------------------------------------------


class Failing(Unsynced):
    """Fails the n-th operation that touches the disk."""

    def __init__(self, nth: int, number: int) -> None:
        self.nth, self.number, self.calls = nth, number, 0

    def _step(self, path: Path) -> None:
        self.calls += 1
        if self.calls == self.nth:
            raise OSError(self.number, os.strerror(self.number), str(path))

    def write_at(self, fd: int, data: Buffer, offset: int, path: Path) -> None:
        self._step(path)
        super().write_at(fd, data, offset, path)

    def sync(self, fd: int, path: Path) -> None:
        self._step(path)
        super().sync(fd, path)

    def make_folder(self, path: Path) -> None:
        self._step(path)
        super().make_folder(path)

    def rename(self, source: Path, target: Path) -> None:
        self._step(target)
        super().rename(source, target)


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, OutOfSpace), (errno.EROFS, StorageFailed)]
)
def test_a_failure_of_any_operation_leaves_nothing(
    tmp_path: Path, number: int, error: type[HsstoreError]
) -> None:
    write(tmp_path, SAMPLES[:3])
    for nth in range(1, 500):
        filesystem = Failing(nth, number)
        try:
            make(tmp_path, filesystem=filesystem)
        except error:
            # Only after the rename, when syncing its folder, may the store be there: whole.
            if left_behind(tmp_path):
                assert Store.open(tmp_path / "store").plan.samples == 3
                shutil.rmtree(tmp_path / "store")
            continue
        assert filesystem.calls < nth
        return
    pytest.fail("no run without a failure")


@pytest.mark.parametrize(
    ("operation", "words"),
    [("link", "no hard links"), ("rename", "no rename"), ("sync_folder", "no syncing a folder")],
)
def test_a_filesystem_that_lacks_an_operation_is_refused(
    folder: Path, operation: str, words: str
) -> None:
    class Lacking(Filesystem):
        pass

    def refuse(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    setattr(Lacking, operation, refuse)
    with pytest.raises(StorageFailed, match=words):
        make(folder, filesystem=Lacking())
    assert left_behind(folder) == []


def test_the_leftover_of_a_dead_create_is_removed(folder: Path) -> None:
    leftover, empty = (folder / f".store.creating-0123456{n}" for n in range(2))
    (leftover / "plan").mkdir(parents=True)
    (leftover / "plan" / "x").touch()
    (leftover / keys.IDENTITY).touch()
    empty.mkdir()
    (folder / ".other.creating-01234567").mkdir()
    make(folder)
    assert left_behind(folder) == [".other.creating-01234567", "store"]


def test_the_work_of_a_live_create_is_left_alone(folder: Path) -> None:
    alive, elsewhere = folder / ".store.creating-01234567", folder / "elsewhere"
    for place in (alive, elsewhere):
        place.mkdir()
        (place / keys.IDENTITY).touch()
    (folder / ".store.creating-76543210").symlink_to(elsewhere)
    with (alive / keys.IDENTITY).open("r+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        make(folder)
    assert (alive / keys.IDENTITY).exists()
    assert (elsewhere / keys.IDENTITY).exists()


@pytest.mark.parametrize("after", ["mkdir", "write_new"])
def test_a_creation_that_another_took_for_abandoned_begins_anew(folder: Path, after: str) -> None:
    """Before its lock is held, it looks like what a killed one left."""
    removed: list[Path] = []

    class Raced(Filesystem):
        def write_new(self, path: Path, data: Buffer) -> None:
            if path.name == keys.IDENTITY and after == "mkdir":
                self.remove_first(path.parent)
            super().write_new(path, data)
            if path.name == keys.IDENTITY:
                self.remove_first(path.parent)

        def remove_first(self, creation: Path) -> None:
            if not removed:
                removed.append(creation)
                building.remove_abandoned(creation, self)
                assert not creation.exists()

    make(folder, filesystem=Raced())
    assert removed
    assert left_behind(folder) == ["store"]
