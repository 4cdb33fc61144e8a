"""Every wrong input through the command itself: one line, its exit code, nothing half-written."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.storage import writer
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import CONFIG, VOCABULARY, empty_store, fill
from hsstore.testing.verdicts import assert_complete, journalled
from hsstore_cli.main import main

LENGTHS = [5, 3, 9, 16, 1, 2]
Refused = Callable[..., str]
Tree = dict[str, tuple[int, int, bytes | None]]


def tree(folder: Path) -> Tree:
    """Everything below a folder: mode, time of change and bytes."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        raw = path.read_bytes() if path.is_file() else None
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_mtime_ns, raw)
    return found


@pytest.fixture
def refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Refused:
    """Runs a command that must be refused; its one line on stderr.

    With ``accounts`` it had begun, and says on stdout what became of every sample.
    """

    def run(
        *arguments: object, code: int = 8, untouched: Path = tmp_path, accounts: bool = False
    ) -> str:
        before = tree(untouched)
        capfd.readouterr()
        assert main([str(argument) for argument in arguments]) == code
        out, err = capfd.readouterr()
        assert tree(untouched) == before
        assert ("asked for: " in out) if accounts else (out == "")
        begun = ("loading ", "extraction paused: ")
        said = [line for line in err.splitlines(keepends=True) if not line.startswith(begun)]
        assert said[0].startswith("hsstore: error: ")
        assert len(said) == 1
        return said[0]

    return run


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**CONFIG, "hidden_size": 8, "torch_dtype": "bfloat16"}))
    return path


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return fill(empty_store(tmp_path / "store", LENGTHS))


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts a seeded source in the model's place; returns the words after --source."""

    def opened(_options: object, store: Store, _note: object) -> SeededSource:
        return SeededSource(store.identity)

    monkeypatch.setattr("hsstore_cli.extract.open_source", opened)
    monkeypatch.setattr("hsstore_cli.repair.open_source", opened)
    return ["--source", "transformers:model"]


READERS: list[tuple[str, *tuple[str, ...]]] = [
    ("extract", "--source", "transformers:model"),
    ("status",),
    ("inspect",),
    ("fsck",),
    ("fsck", "--json"),
    ("repair", "--apply"),
    ("repair", "--json"),
]


# -- a store that is not one -----------------------------------------------------------------------


@pytest.mark.parametrize("command", READERS, ids=" ".join)
@pytest.mark.parametrize("what", ["nothing", "folder", "file"])
def test_a_store_that_is_not_one(
    refused: Refused, tmp_path: Path, command: tuple[str, ...], what: str
) -> None:
    place = tmp_path / "place"
    if what == "folder":
        (place / "other").mkdir(parents=True)
    elif what == "file":
        place.write_text("mine")
    name, *options = command
    line = refused(name, place, *options)
    assert f"{place}: no hsstore store here; check the path" in line


# -- datasets --------------------------------------------------------------------------------------


GOOD = '{"id": "a", "input_ids": [1, 2, 3]}\n'
DATASETS = {
    "empty dataset": ("", ": the dataset is empty"),
    "blank line": (GOOD + "\n" + GOOD, ":2: a blank line"),
    "empty sample": (GOOD + '{"id": "b", "input_ids": []}\n', ":2: an empty sample"),
    "duplicate id": (GOOD + '{"id": "b", "input_ids": [1]}\n' + GOOD, ":3: id 'a' is taken"),
    "high token": (GOOD + '{"id": "b", "input_ids": [1, 1000]}\n', r":2: input_ids\[1\] .*1000"),
    "negative token": (GOOD + '{"id": "b", "input_ids": [-1]}\n', r":2: input_ids\[0\] .*-1"),
    "short mask": (
        GOOD + '{"id": "b", "input_ids": [1, 2], "loss_mask": [1]}\n',
        ":2: loss_mask has 1 entries for 2 tokens",
    ),
    "long mask": (
        '{"id": "b", "input_ids": [1], "loss_mask": [1, 0]}\n',
        ":1: loss_mask has 2 entries for 1 tokens",
    ),
    "torn line": (GOOD + '{"id": "b", "input_ids": [1,\n', ":2: not JSON"),
    "text for tokens": (GOOD + '{"id": "b", "input_ids": "words"}\n', ":2: input_ids"),
}  # fmt: skip


@pytest.mark.parametrize("name", DATASETS)
def test_a_dataset_that_cannot_be_stored(
    refused: Refused, tmp_path: Path, config: Path, name: str
) -> None:
    text, words = DATASETS[name]
    dataset = tmp_path / "data.jsonl"
    dataset.write_text(text)
    capture = ["--model", config, "--layers", "1,final"]
    line = refused("create", tmp_path / "store", "--dataset", dataset, *capture)
    assert re.match(f"hsstore: error: {re.escape(str(dataset))}{words}", line), line


@pytest.mark.parametrize(
    "name", ["empty dataset", "blank line", "empty sample", "short mask", "torn line"]
)
def test_plan_refuses_what_it_can_see(
    refused: Refused, tmp_path: Path, config: Path, name: str
) -> None:
    text, words = DATASETS[name]
    dataset = tmp_path / "data.jsonl"
    dataset.write_text(text)
    line = refused("plan", dataset, "--model", config, "--layers", "1,final", "--dest", tmp_path)
    assert re.match(f"hsstore: error: {re.escape(str(dataset))}{words}", line), line


# -- models ----------------------------------------------------------------------------------------


def test_a_model_other_than_the_stores(refused: Refused, tmp_path: Path, demo_model: Path) -> None:
    root = tmp_path / "store"
    (tmp_path / "data.jsonl").write_text(GOOD)
    dataset = ["--dataset", str(tmp_path / "data.jsonl"), "--model", str(demo_model)]
    assert main(["create", str(root), *dataset, "--layers", "1,final"]) == 0
    other = shutil.copytree(demo_model, tmp_path / "other")
    damage.flip_bit(next(other.glob("*.safetensors")))
    source = ["--source", f"transformers:{other}"]
    for command in (["extract", root], ["repair", root, "--apply"]):
        line = refused(*command, *source)
        assert "a model other than the store's: weights is" in line
        assert "give the model that the store was created for" in line


def test_no_model_at_all(refused: Refused, tmp_path: Path) -> None:
    store = empty_store(tmp_path / "empty", [3])
    line = refused("extract", store.root, "--source", f"transformers:{tmp_path / 'none'}")
    assert "no such model" in line
    line = refused("extract", store.root, code=2)
    assert "give --source transformers:PATH" in line


# -- a newer format --------------------------------------------------------------------------------


@pytest.mark.parametrize("command", READERS, ids=" ".join)
@pytest.mark.parametrize("document", [keys.IDENTITY, keys.plan(0)])
def test_a_newer_format_version(
    refused: Refused, store: Store, command: tuple[str, ...], document: str
) -> None:
    path = store.root / document
    newer: dict[str, Any] = {**json.loads(path.read_bytes()), "format": 2, "novelty": "unheard of"}
    path.write_bytes(seal(newer))
    name, *options = command
    line = refused(name, store.root, *options)
    assert f"{path}: format 2 is newer than format 1" in line
    assert line.endswith("upgrade hsstore\n")


# -- disks -----------------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 2 MiB."""
    if os.geteuid():
        pytest.skip("mounting a filesystem takes root")
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=2m", "small", place], check=True)
    yield place
    subprocess.run(["/bin/umount", place], check=True)


def remount(disk: Path, option: str) -> None:
    subprocess.run(["/bin/mount", "-o", f"remount,{option}", disk], check=True)


@pytest.mark.root
def test_create_on_a_full_disk(refused: Refused, tmp_path: Path, disk: Path, config: Path) -> None:
    line_of = json.dumps({"input_ids": list(range(VOCABULARY)) * 10})
    (tmp_path / "data.jsonl").write_text(f"{line_of}\n" * 100)
    capture = ["--dataset", tmp_path / "data.jsonl", "--model", config, "--layers", "1"]
    line = refused("create", disk / "store", *capture, untouched=config)
    assert "No space left on device; free space, then run the same command again" in line
    assert list(disk.iterdir()) == []
    remount(disk, "size=64m")
    assert main([str(word) for word in ["create", disk / "store", *capture]]) == 0


@pytest.mark.root
def test_extract_on_a_full_disk_keeps_what_was_journalled(
    refused: Refused, disk: Path, seeded: list[str], monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(writer, "SYNC_BYTES", 1)
    root = empty_store(disk / "store", [16] * 80, hidden_size=1024, shard_rows=256).root
    wait = ["--max-wait", "1"]
    line = refused("extract", root, *seeded, *wait, untouched=root / keys.PLAN, accounts=True)
    assert re.search("waited for . s, and the samples in committed shards and journals are", line)
    store = Store.open(root)
    committed = {s for shard in store.committed() for s in store.samples.shard_samples(shard)}
    kept = committed | journalled(root)
    assert 0 < len(kept) < 80
    remount(disk, "size=64m")
    assert main(["extract", str(root), *seeded, "--json"]) == 0
    summary = json.loads(capfd.readouterr().out)
    assert summary["samples_extracted"] == 80 - len(kept)
    assert_complete(root)


@pytest.mark.root
def test_a_read_only_disk(
    refused: Refused, tmp_path: Path, disk: Path, config: Path, seeded: list[str]
) -> None:
    (tmp_path / "data.jsonl").write_text(GOOD)
    unfinished = fill(empty_store(disk / "unfinished", LENGTHS), shards=range(1)).root
    damaged = fill(empty_store(disk / "damaged", LENGTHS)).root
    damage.flip_bit(damaged / keys.shard_file(1), 10)
    sound = fill(empty_store(disk / "sound", LENGTHS)).root
    remount(disk, "ro")
    new = ["--dataset", tmp_path / "data.jsonl", "--model", config, "--layers", "1"]
    for command in (
        ["create", disk / "store", *new],
        ["extract", unfinished, *seeded],
        ["repair", damaged, *seeded, "--apply"],
    ):
        line = refused(*command, accounts=command[0] == "extract")
        assert "Read-only file system; the filesystem is read-only: remount it writable" in line
    for readable in (["fsck", sound], ["status", sound], ["inspect", sound], ["repair", sound]):
        assert main([str(word) for word in readable]) == 0
    assert main(["fsck", str(damaged)]) == 4
    assert main(["repair", str(damaged)]) == 4
