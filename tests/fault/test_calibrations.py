"""Damaged calibrations: named, set aside, and the store is sound without them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.errors import InvalidDocument
from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import repair
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.storage.calibrations import calibrations, next_number, publish_calibration
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.stores import calibration, empty_store, fill


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = fill(empty_store(tmp_path / "store", [5, 9]))
    publish_calibration(store, calibration(store, 0))
    publish_calibration(store, calibration(store, 1))
    return store


def kinds(store: Store) -> list[tuple[str, str | None]]:
    return [(finding.kind, finding.path) for finding in fsck(store.root, threads=1)]


def test_whole_ones_are_nothing_to_mention(store: Store) -> None:
    assert kinds(store) == []
    assert [found.number for found in calibrations(store)] == [0, 1]
    with pytest.raises(FileExistsError):
        publish_calibration(store, calibration(store, 1))
    assert next_number(store) == 2


@pytest.mark.parametrize("spoil", [damage.flip_bit, damage.to_symlink, damage.to_folder])
def test_a_damaged_one_is_named_set_aside_and_missed_by_nothing(
    store: Store, spoil: Callable[[Path], None]
) -> None:
    name = keys.calibration(0)
    spoil(store.root / name)
    assert kinds(store) == [("calibration-invalid", name)]
    shown = repair(store.root)
    assert [step.action for step in shown.plan.steps] == ["set-aside-calibration"]
    done = repair(store.root, apply=True)
    assert (done.corrected, kinds(store)) == (True, [])
    assert [found.number for found in calibrations(store)] == [1]
    assert any(path.name.endswith("00000000.json") for path in store.root.rglob("quarantine/*/*"))


@pytest.mark.parametrize(
    ("foreign", "told"),
    [
        ({"store": "1" * 32}, "it belongs to another store or number"),
        ({"number": 5}, "it belongs to another store or number"),
        ({"layers": [2, "final"]}, "it is of other layers than the store's"),
        ({"input_ids": [10**6]}, "its prompt holds a token that the model does not have"),
    ],
)
def test_a_whole_one_of_something_else_is_invalid(
    store: Store, foreign: dict[str, object], told: str
) -> None:
    document = calibration(store, 1).to_document() | foreign
    (store.root / keys.calibration(1)).write_bytes(seal(document))
    (finding,) = fsck(store.root, threads=1)
    assert (finding.kind, finding.detail) == ("calibration-invalid", told)
    with pytest.raises(InvalidDocument, match=f"{told}.*hsstore fsck"):
        calibrations(store)


def test_a_foreign_file_is_reported(store: Store) -> None:
    (store.root / keys.CALIBRATION / "notes.txt").write_text("mine")
    (store.root / keys.CALIBRATION / ".00000002.json.0a1b").write_text("a publish that was killed")
    assert kinds(store) == [("foreign-file", "calibration/notes.txt")]


def test_a_store_of_before_calibrations_is_whole_and_gets_its_folder(tmp_path: Path) -> None:
    store = fill(empty_store(tmp_path / "store", [5]))
    (store.root / keys.CALIBRATION).rmdir()
    assert kinds(store) == []
    assert (calibrations(store), next_number(store)) == ([], 0)
    publish_calibration(store, calibration(store, 0))
    assert kinds(store) == []
    assert len(calibrations(store)) == 1
