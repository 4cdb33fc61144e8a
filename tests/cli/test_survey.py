"""The command survey: what it prints and how it ends."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from hsstore.interop.surveying import look as looking
from hsstore.testing import loose_files
from hsstore.testing.loose_files import path_of
from hsstore_cli import exit_codes
from hsstore_cli.main import main

SAMPLES = 30


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return loose_files.tree(tmp_path / "tree", SAMPLES)


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, list[str]]:
    code = main(["survey", *map(str, words)])
    return code, capsys.readouterr().out.splitlines()


def test_a_sound_tree_ends_with_0(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, lines = run(capsys, root)
    assert code == exit_codes.OK
    assert lines[0] == f"{root}: specforge"
    assert f"samples: {SAMPLES} present, 0 of them broken, 0 missing" in "\n".join(lines)
    assert lines[-1].startswith("nothing wrong (")


def test_what_was_not_read_is_not_called_proven(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = run(capsys, root, "--quick")
    assert code == exit_codes.OK
    assert "proven by checksums: 0 files, 0 bytes" in lines
    assert any(line.startswith(f"not verified: {SAMPLES} files") for line in lines)
    assert lines[-1].startswith("nothing wrong was seen (")


def test_what_has_no_checksum_is_unverifiable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = loose_files.tree(tmp_path / "tree", 3, loose_files.as_safetensors, ".safetensors")
    code, lines = run(capsys, root, "--content")
    assert code == exit_codes.OK
    assert lines[0] == f"{root}: speculators"
    assert any(line.startswith("unverifiable: 3 files, ") for line in lines)
    assert lines[-1].startswith("nothing wrong was seen (")


def test_damage_ends_with_4_and_the_next_command(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, again = loose_files.dataset(tmp_path / "data.jsonl", SAMPLES), tmp_path / "a gain"
    path_of(root, 3, ".ckpt").write_bytes(b"")
    code, lines = run(capsys, root, "--dataset", data, "--redo", again)
    assert code == exit_codes.PROBLEMS
    assert lines[0] == "error empty: rows_0-2000/data_3.ckpt: 0 bytes"
    assert lines[-1] == (
        f"  hsstore create STORE --dataset '{again}' --model MODEL --layers LAYERS"
    )
    assert json.loads(again.read_bytes())["id"] == 3


def test_json_is_findings_and_a_summary(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path_of(root, 3, ".ckpt").unlink()
    path_of(root, 5, ".ckpt").write_bytes(b"x")
    code, lines = run(capsys, root, "--json")
    assert code == exit_codes.PROBLEMS
    *found, summary = map(json.loads, lines)
    assert [(f["kind"], f["path"], f["row"]) for f in found] == [
        ("no-container", "rows_0-2000/data_5.ckpt", 5), ("missing", None, 3),
    ]  # fmt: skip
    assert set(found[0]) == {"type", "kind", "severity", "detail", "path", "row", "last_row"}
    assert (summary["type"], summary["complete"]) == ("summary", True)
    assert summary["format"] == "specforge"
    assert (summary["present"], summary["broken"], summary["missing"]) == (29, 1, 1)
    assert summary["kinds"] == {"no-container": 1, "missing": 1}
    assert summary["proven"]["files"] == 28
    assert summary["redo"]["samples"] == 2
    assert set(summary) == {
        "type", "root", "depth", "format", "evidence", "complete", "stopped", "expected",
        "expected_tokens", "expected_evidence", "present", "broken", "missing", "tokens", "proven",
        "unverifiable", "condemned", "unread", "kinds", "folders", "bytes", "allocated", "redo",
        "redo_lines", "seconds", "errors",
    }  # fmt: skip


def test_thousands_of_one_kind_are_counted_on_a_page(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for sample in range(SAMPLES):
        path_of(root, sample, ".ckpt").write_bytes(b"")
    _, lines = run(capsys, root)
    assert sum(line.startswith("error empty") for line in lines) == 20
    assert "empty: 10 more; --json tells each of them" in lines


def test_names_cannot_command_a_terminal(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / os.fsdecode(b"\x1b]0;mine\x07\n\xff.ckpt")).write_bytes(b"")
    code, lines = run(capsys, root)
    assert code == exit_codes.PROBLEMS
    assert "mine" in "\n".join(lines)
    assert all(line.isprintable() for line in lines)
    code, lines = run(capsys, root, "--json")
    assert [json.loads(line)["type"] for line in lines] == ["finding", "summary"]


@pytest.mark.parametrize(("broken", "code"), [(0, exit_codes.STOPPED), (1, exit_codes.PROBLEMS)])
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_what_was_seen(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
    sent: signal.Signals, broken: int, code: int,
) -> None:  # fmt: skip
    if broken:
        path_of(root, 0, ".ckpt").write_bytes(b"")
    look = looking.look_at

    def ends(root: Path, name: str, *more: Any) -> object:  # noqa: ANN401 - passed on
        if name.endswith("_9.ckpt"):
            os.kill(os.getpid(), sent)
        return look(root, name, *more)

    monkeypatch.setattr(looking, "look_at", ends)
    ended, lines = run(capsys, root, "--json", "--threads", 1)
    summary = json.loads(lines[-1])
    assert ended == code
    assert (summary["complete"], summary["stopped"]) == (False, "interrupted")
    assert summary["broken"] == broken
    assert summary["unread"]["files"] > 0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--quick", "--content"], exit_codes.USAGE, "--quick reads no states"),
        (["--dataset", "x", "--samples", "3"], exit_codes.USAGE, "leave out --samples"),
        (["--dataset", "x"], exit_codes.FAILED, "no such dataset"),
        (["--redo", "/nowhere/x"], exit_codes.FAILED, "its folder does not exist"),
    ],
)
def test_wrong_words(
    root: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    assert main(["survey", str(root), *words]) == code
    assert said in capsys.readouterr().err
