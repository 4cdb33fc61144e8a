"""hsstore import: what it prints and how it ends."""

import json
from pathlib import Path

import pytest

from hsstore.storage.store import Store
from hsstore.testing.foreign_trees import drawn, specforge_path, write_model, write_specforge
from hsstore_cli import exit_codes
from hsstore_cli.main import main

SAMPLES = [drawn(n, 5 + n) for n in range(4)]
Run = tuple[int, str, str]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    write_model(tmp_path / "model")
    return write_specforge(tmp_path / "tree", SAMPLES)


def run(capsys: pytest.CaptureFixture[str], tree: Path, *words: object) -> Run:
    store, model = tree.parent / "store", tree.parent / "model"
    typed = ["import", "specforge", tree, store, "--model", model, "--layers", "0,1,2", *words]
    code = main([*map(str, typed), "--min-free", "0"])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


TOLD = ("--layer-convention", "specforge", "--norm", "post")


def test_a_whole_tree_ends_with_0_and_again(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, tree, *TOLD)
    assert code == exit_codes.OK
    assert "4 samples of 4 files, 4 layers (1,2,3,final, norm by: told)" in out
    assert "this run: 4 imported, 0 resumed, 0 without states" in out
    code, out, _ = run(capsys, tree, *TOLD, "--json")
    (told,) = map(json.loads, out.splitlines())
    assert (code, told["samples"], told["samples_extracted"]) == (exit_codes.OK, 4, 0)
    assert told["left_out"] == told["redundant"] == []


def test_what_is_left_out_is_named_and_ends_with_4(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    specforge_path(tree, 2).write_bytes(b"PK\x03\x04")
    code, out, err = run(capsys, tree, *TOLD)
    assert (code, out) == (exit_codes.FAILED, "")
    assert "rows_0-2000/data_2.ckpt (truncated: the zip has no directory at its end" in err
    assert "--leave-out-broken" in err
    assert "Traceback" not in err
    code, out, _ = run(capsys, tree, *TOLD, "--leave-out-broken")
    assert code == exit_codes.PROBLEMS
    assert "left out: rows_0-2000/data_2.ckpt: truncated: " in out
    code, out, _ = run(capsys, tree, *TOLD, "--leave-out-broken", "--json")
    (told,) = map(json.loads, out.splitlines())
    assert code == exit_codes.PROBLEMS
    assert [(one["file"], one["kind"]) for one in told["left_out"]] == [
        ("rows_0-2000/data_2.ckpt", "truncated")
    ]


def test_an_absent_sample_ends_with_4_and_says_where_to_look(
    tree: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = specforge_path(tree, 1)
    whole = bytearray(path.read_bytes())
    needle = SAMPLES[1].bits()[:, -1].tobytes()
    whole[whole.index(needle)] ^= 1
    path.write_bytes(whole)
    code, out, _ = run(capsys, tree, *TOLD)
    assert code == exit_codes.PROBLEMS
    assert "absent samples: 1; why: hsstore inspect" in out
    assert main(["inspect", str(tree.parent / "store"), "--shard", "0"]) == exit_codes.OK
    assert "data_1.ckpt: record" in capsys.readouterr().out


def test_what_is_not_said_is_demanded(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, tree)
    assert (code, "--layer-convention" in err) == (exit_codes.FAILED, True)
    code, _, err = run(capsys, tree, "--layer-convention", "specforge")
    assert (code, "--norm post or --norm pre" in err) == (exit_codes.FAILED, True)
    assert not (tree.parent / "store").exists()


def test_no_tree_and_no_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_model(tmp_path / "model")
    code, _, err = run(capsys, tmp_path / "absent", *TOLD)
    assert (code, "no such folder" in err) == (exit_codes.FAILED, True)
    (tmp_path / "empty").mkdir()
    code, _, err = run(capsys, tmp_path / "empty", *TOLD)
    assert (code, "no file in it is named as specforge names" in err) == (exit_codes.FAILED, True)
    assert main(["import", "other", "a", "b", "--model", "c", "--layers", "1"]) == exit_codes.USAGE


def test_a_stop_is_the_code_of_a_stop(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, tree, *TOLD, "--max-duration", "0.000001")
    assert (code, "stopped before anything was written" in err) == (exit_codes.STOPPED, True)
    assert run(capsys, tree, *TOLD)[0] == exit_codes.OK
    assert Store.open(tree.parent / "store").plan.samples == 4
