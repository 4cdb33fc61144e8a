"""What is imported, exported and imported again is the same, bit for bit."""

import json
from pathlib import Path
from typing import Any

import pytest

from hsstore.interop.exporting import DOCUMENT, export_tree
from hsstore.interop.importing import import_tree
from hsstore.interop.survey import survey
from hsstore.interop.tree_capture import Told
from hsstore.storage.store import Store
from hsstore.testing.stores import CONFIG, LENGTHS, contents, empty_store, fill

POST, PRE = (1, 2, 4, "final"), (1, 2, 4, "final:pre")


def imported(form: str, tree: Path, path: Path, layers: tuple[Any, ...], model: Path) -> Store:
    told = Told(",".join(map(str, layers)), "vllm")
    return import_tree(form, tree, path, model, told).store


def digests(store: Store) -> list[str]:
    return [*contents(store).values()]


def data(tree: Path) -> dict[str, bytes]:
    """All files of a tree that hold states."""
    files = [path for path in tree.glob("*/*") if path.name != DOCUMENT]
    return {str(path.relative_to(tree)): path.read_bytes() for path in files}


@pytest.mark.parametrize(("form", "layers"), [("specforge", POST), ("speculators", PRE)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_import_export_import(
    form: str, layers: tuple[Any, ...], dtype: str, tmp_path: Path
) -> None:
    model = tmp_path / "config.json"
    model.write_text(json.dumps(CONFIG | {"hidden_size": 8}))
    made = empty_store(
        tmp_path / "made", LENGTHS, layers=layers, hidden_size=8, dtype=dtype, shard_rows=64
    )
    export_tree(form, fill(made).root, tmp_path / "tree", min_free_bytes=0)
    assert list(survey(tmp_path / "tree", depth="content")) == []
    first = imported(form, tmp_path / "tree", tmp_path / "first", layers, model)
    export_tree(form, first.root, tmp_path / "again", min_free_bytes=0)
    second = imported(form, tmp_path / "again", tmp_path / "second", layers, model)
    assert digests(made) == digests(first) == digests(second)
    assert len(digests(made)) == len(LENGTHS)
    assert data(tmp_path / "tree") == data(tmp_path / "again")
    assert len(data(tmp_path / "tree")) == len(LENGTHS)
