"""What the trainers train from: trees that their own tools made, and stores of the same states."""

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from hsstore.extraction.extractor import extract
from hsstore.model.capture import Layer
from hsstore.storage.create import create
from hsstore.storage.store import Store
from hsstore.testing.trainers import PROGRAMS, RecordedStates, run_trainer


@pytest.fixture(scope="session")
def trees(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What their_trees.py makes."""
    folder = tmp_path_factory.mktemp("theirs")
    run_trainer("python", PROGRAMS / "their_trees.py", folder)
    return folder


@pytest.fixture(scope="session")
def store_of(trees: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Store]:
    """Makes a store of these layers of the states that the trees were made of.

    The keys in ``failing`` are absent.
    """

    def make(layers: Sequence[Layer], failing: Mapping[str, str] | None = None) -> Store:
        root = tmp_path_factory.mktemp("ours") / "store"
        store = create(root, trees / "dataset.jsonl", trees / "target", layers, shard_rows=256)
        extract(store, RecordedStates(store.identity, trees / "states.npz", failing))
        return store

    return make


@pytest.fixture
def tokens_only(trees: Path, tmp_path: Path) -> Path:
    """What speculators prepared, without the files of hidden states."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    for file in (trees / "speculators").iterdir():
        if file.is_file():
            shutil.copy(file, folder)
    return folder
