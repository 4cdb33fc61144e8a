"""hsstore export: the trees that it makes, what it prints and how it ends."""

import fcntl
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hsstore.errors import Stopped
from hsstore.interop import exported_trees
from hsstore.interop.exporting import DOCUMENT, export_tree
from hsstore.interop.formats import FORMATS
from hsstore.interop.survey import survey
from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.stores import LENGTHS, empty_store, fill
from hsstore.training.dataset import HiddenStateDataset
from hsstore_cli import exit_codes
from hsstore_cli.export import FORMATS as OFFERED
from hsstore_cli.main import main

POST, PRE = (1, 2, 4, "final"), (1, 2, 4, "final:pre")


def filled(
    root: Path, layers: tuple[Any, ...] = POST, failing: dict[str, str] | None = None
) -> Store:
    return fill(
        empty_store(root, LENGTHS, layers=layers, hidden_size=8, shard_rows=64), failing=failing
    )


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main(["export", *map(str, words), "--min-free", "0"])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def test_the_command_offers_what_there_is() -> None:
    assert tuple(exported_trees.TREES) == OFFERED


@pytest.mark.parametrize(("form", "layers"), [("specforge", POST), ("speculators", PRE)])
def test_a_tree_is_read_back_bit_for_bit(
    form: str, layers: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, tree = filled(tmp_path / "store", layers), tmp_path / "tree"
    code, out, _ = run(capsys, form, store.root, tree, "--json")
    assert code == exit_codes.OK
    assert json.loads(out)["samples"] == len(LENGTHS)
    reader = FORMATS[form]()
    files = reader.files(tree)
    assert len(files) == len(LENGTHS)
    dataset = HiddenStateDataset(store.root)
    for n, file in enumerate(files):
        item = dataset[n]
        found = reader.read(file, hidden=8)
        assert found.faults == ()
        assert found.sample is not None
        assert found.sample.has_last
        bits = item["hidden_states"].view(torch.uint16).numpy()
        assert np.array_equal(found.sample.states, bits)
        assert np.array_equal(found.sample.tokens.input_ids, item["input_ids"].numpy())
        assert found.sample.tokens.loss_mask is not None
        assert np.array_equal(found.sample.tokens.loss_mask, item["loss_mask"].numpy())
    assert json.loads((tree / DOCUMENT).read_text())["layers"] == list(layers)
    assert list(survey(tree)) == []


def test_numbers_name_files_and_a_row_is_a_place(tmp_path: Path) -> None:
    failing = {"sample-0": "too long", "sample-5": "too long"}
    store = filled(tmp_path / "post", failing=failing)
    export_tree("specforge", store.root, tmp_path / "a", absent="exclude", min_free_bytes=0)
    names = {path.name for path in (tmp_path / "a").glob("rows_0-2000/*")}
    assert names == {f"data_{n}.ckpt" for n in range(len(LENGTHS)) if n not in (0, 5)}
    store = filled(tmp_path / "pre", PRE, failing=failing)
    export_tree("speculators", store.root, tmp_path / "b", absent="exclude", min_free_bytes=0)
    names = {path.name for path in (tmp_path / "b/hidden_states").iterdir()}
    assert names == {f"hs_{row}.safetensors" for row in range(len(LENGTHS) - 2)}


def test_a_store_that_lacks_samples_is_refused_or_they_are_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled(tmp_path / "store", failing={"sample-3": "too long"})
    code, _, err = run(capsys, "specforge", store.root, tmp_path / "tree")
    assert (code, "sample-3" in err) == (exit_codes.FAILED, True)
    assert "--leave-out-absent" in err
    assert not (tmp_path / "tree").exists()
    code, out, _ = run(capsys, "specforge", store.root, tmp_path / "tree", "--leave-out-absent")
    assert (code, "left out, for the store lacks them: 1 sample" in out) == (
        exit_codes.PROBLEMS,
        True,
    )


@pytest.mark.parametrize(("form", "layers"), [("specforge", PRE), ("speculators", POST)])
def test_the_other_norm_is_refused(
    form: str, layers: tuple[Any, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled(tmp_path / "store", layers)
    code, _, err = run(capsys, form, store.root, tmp_path / "tree")
    assert (code, "never converted" in err) == (exit_codes.FAILED, True)
    (other,) = {"specforge", "speculators"} - {form}
    assert f"hsstore export {other}" in err
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_some_layers_of_many(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = filled(tmp_path / "store", (1, 2, 3, 5, "final:pre", "final"))
    code, _, err = run(capsys, "specforge", store.root, tmp_path / "tree")
    assert (code, "takes 3 auxiliary layers, not 4" in err) == (exit_codes.FAILED, True)
    code, _, _ = run(capsys, "specforge", store.root, tmp_path / "tree", "--layers", "1,3,5,final")
    assert code == exit_codes.OK
    record = torch.load(tmp_path / "tree/rows_0-2000/data_3.ckpt", weights_only=True)
    states = HiddenStateDataset(store.root)[3]["hidden_states"]
    assert torch.equal(record["aux_hidden_state"][0], states[:, [0, 2, 3]].flatten(1))
    assert torch.equal(record["hidden_state"][0], states[:, 5])
    # torch.save keeps all memory that a view looks at.
    for value in record.values():
        assert value.untyped_storage().nbytes() == value.nbytes


def test_a_stopped_export_shows_no_tree_and_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, tree = filled(tmp_path / "store"), tmp_path / "tree"
    asked = iter([False] * 4 + [True])
    with pytest.raises(Stopped):
        export_tree("specforge", store.root, tree, min_free_bytes=0, stop=lambda: next(asked))
    assert not tree.exists()
    half = tmp_path / ".tree.exporting/rows_0-2000"
    (half / ".data_4.ckpt.part").write_bytes(b"of a killed run")
    kept = {path: path.stat().st_ino for path in half.glob("data_*")}
    assert len(kept) == 4
    code, out, _ = run(capsys, "specforge", store.root, tree)
    assert (code, "12 samples for specforge, 4 of them by an earlier run" in out) == (0, True)
    assert {tree / "rows_0-2000" / path.name for path in kept} <= set(tree.glob("*/*"))
    assert all((tree / "rows_0-2000" / path.name).stat().st_ino == kept[path] for path in kept)
    names = {path.name for path in tree.glob("*/*")}
    assert names == {f"data_{n}.ckpt" for n in range(len(LENGTHS))}
    assert {path.name for path in tmp_path.iterdir()} == {"store", "tree"}


def test_another_export_is_not_continued(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, other, tree = filled(tmp_path / "a"), filled(tmp_path / "b"), tmp_path / "tree"
    with pytest.raises(Stopped):
        export_tree("specforge", store.root, tree, min_free_bytes=0, stop=lambda: True)
    code, _, err = run(capsys, "specforge", other.root, tree)
    assert (code, "is of another store" in err) == (exit_codes.FAILED, True)
    with (tmp_path / ".tree.exporting" / DOCUMENT).open("rb+") as document:
        fcntl.flock(document, fcntl.LOCK_EX)
        code, _, err = run(capsys, "specforge", store.root, tree)
        assert (code, "another export writes here" in err) == (exit_codes.FAILED, True)


def test_what_is_there_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, tree = filled(tmp_path / "store"), tmp_path / "tree"
    tree.mkdir()
    (tree / "mine").touch()
    code, _, err = run(capsys, "specforge", store.root, tree)
    assert (code, "something is there already" in err) == (exit_codes.FAILED, True)
    assert [path.name for path in tree.iterdir()] == ["mine"]
    code, _, err = run(capsys, "specforge", store.root, tmp_path / "no/tree")
    assert (code, "no such folder" in err) == (exit_codes.FAILED, True)


def test_a_place_that_no_tree_can_have_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled(tmp_path / "store")
    (tmp_path / "loop").symlink_to("loop")
    for place in (store.root / "tree", tmp_path / "loop"):
        code, _, err = run(capsys, "specforge", store.root, place)
        assert code == exit_codes.FAILED
        assert err.endswith("choose another path\n")
        assert "unforeseen" not in err


def test_damage_ends_the_export_which_goes_on_after_the_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, tree = filled(tmp_path / "store"), tmp_path / "tree"
    whole = tmp_path / "whole"
    assert run(capsys, "specforge", store.root, whole)[0] == exit_codes.OK
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    code, _, err = run(capsys, "specforge", store.root, tree)
    assert (code, "hsstore fsck" in err) == (exit_codes.FAILED, True)
    assert not tree.exists()
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    code, out, _ = run(capsys, "specforge", store.root, tree)
    assert (code, "by an earlier run" in out) == (exit_codes.OK, True)
    for path in whole.glob("rows_0-2000/*"):
        assert (tree / "rows_0-2000" / path.name).read_bytes() == path.read_bytes()
