"""hsstore gc: shows without writing, removes when told, in words, JSON and exit code."""

import json
import os
from pathlib import Path

import pytest

from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing.litter import hold, litter
from hsstore.testing.stores import empty_store, fill
from hsstore_cli import exit_codes
from hsstore_cli.main import main


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "disk").mkdir()
    return fill(empty_store(tmp_path / "disk" / "store", (5, 3, 9, 16)))


def snapshot(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every name beside and in a store with its times and bytes."""
    return {
        str(path): (
            path.lstat().st_mtime_ns,
            path.lstat().st_ctime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in root.parent.rglob("*")
    }


def run(capsys: pytest.CaptureFixture[str], *words: str | Path) -> tuple[int, str]:
    code = main(["gc", *map(str, words)])
    shown = capsys.readouterr()
    assert shown.err == ""
    return code, shown.out


def test_a_sound_store_needs_all_it_has(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, store.root) == (exit_codes.OK, "nothing is needless\n")
    assert run(capsys, store.root, "--apply") == (exit_codes.OK, "nothing is needless\n")


@pytest.mark.parametrize("options", [[], ["--json"], ["--quarantine"]])
def test_without_apply_nothing_is_written(
    store: Store, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    litter(store)
    before = snapshot(store.root)
    assert run(capsys, store.root, *options)[0] == exit_codes.OK
    assert snapshot(store.root) == before


def test_it_shows_each_item_with_its_reason_and_the_command(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = litter(store)
    _, shown = run(capsys, store.root)
    lines = shown.splitlines()
    for _, path in planted:
        assert len([line for line in lines if f" {path}: " in line]) == 1
    assert f"{len(planted)} items, " in lines[-2]
    assert lines[-1] == f"Nothing was removed. To remove it: hsstore gc {store.root} --apply"
    assert "manifest" in shown
    assert "no marker or intent names it; 4.10 kB (4.00 KiB)" in shown


def test_apply_says_what_went(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    planted = litter(store)
    code, shown = run(capsys, store.root, "--apply")
    assert code == exit_codes.OK
    assert shown.count("removed ") == len(planted) + shown.count("items removed ")
    assert f"{len(planted)} items removed, " in shown.splitlines()[-1]
    assert run(capsys, store.root) == (exit_codes.OK, "nothing is needless\n")


def test_one_thing_is_one_thing(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    (store.root / keys.QUARANTINE / "note").write_bytes(b"")
    shown = run(capsys, store.root, "--quarantine")[1].splitlines()
    assert shown[1] == "1 item, 0 bytes in 1 file or folder"
    shown = run(capsys, store.root, "--quarantine", "--apply")[1].splitlines()
    assert shown[1] == "1 item removed, 0 bytes in 1 file or folder"


def test_json_is_a_line_an_item_and_a_summary(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    planted = litter(store)
    for options, applied in (([], False), (["--apply"], True)):
        code, shown = run(capsys, store.root, "--json", *options)
        assert code == exit_codes.OK
        *items, summary = map(json.loads, shown.splitlines())
        assert {item["type"] for item in items} == {"item"}
        assert {item["removed"] for item in items} == {applied}
        assert [item for item in items if not (item["reason"] and item["condition"])] == []
        assert (summary["type"], summary["applied"]) == ("summary", applied)
        assert summary["items"] == len(items) == len(planted)
        assert summary["bytes"] == sum(item["bytes"] for item in items) > 0
        assert summary["removed"] == (len(planted) if applied else 0)
        assert (summary["refused"], summary["shards_held"]) == (0, [])


def test_what_is_claimed_is_named(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    litter(store, ["orphan-manifests"])
    claim, growth = hold(store, 0), hold(store, keys.GROWTH)
    for options in ([], ["--apply"]):
        code, shown = run(capsys, store.root, *options)
        assert code == exit_codes.OK
        assert "claimed by others, left alone: shard 0\n" in shown
        assert "the store is being extended or repaired" in shown
    claim.release()
    growth.release()


def test_quarantine_is_named_only_on_demand(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    (store.root / keys.QUARANTINE / "00000000.unmarked.7").write_bytes(b"x")
    assert run(capsys, store.root)[1] == "nothing is needless\n"
    _, shown = run(capsys, store.root, "--quarantine")
    assert "quarantine/00000000.unmarked.7: it was put aside for people to look at" in shown
    assert shown.endswith(f"hsstore gc {store.root} --quarantine --apply\n")
    assert run(capsys, store.root, "--quarantine", "--apply")[0] == exit_codes.OK
    assert [*(store.root / keys.QUARANTINE).iterdir()] == []


def test_what_cannot_be_removed_is_named_and_is_a_problem(
    store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (_, manifest), *_ = litter(store, ["orphan-manifests"])
    rename = os.rename

    def refuse(source: Path, target: Path) -> None:
        if Path(source).name == Path(manifest).name:
            raise OSError(5, "Input/output error", str(source))
        rename(source, target)

    monkeypatch.setattr(os, "rename", refuse)
    code, shown = run(capsys, store.root, "--apply")
    assert code == exit_codes.PROBLEMS
    assert f"could not remove manifest {manifest}: " in shown
    assert "Input/output error" in shown
    assert shown.splitlines()[-1].endswith("; 1 could not be removed")
    code, shown = run(capsys, store.root, "--apply", "--json")
    assert code == exit_codes.PROBLEMS
    item, summary = map(json.loads, shown.splitlines())
    assert (item["removed"], summary["refused"]) == (False, 1)
    assert "Input/output error" in item["detail"]


def test_no_store_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gc", str(tmp_path)]) == exit_codes.FAILED
    assert capsys.readouterr().err.startswith(f"hsstore: error: {tmp_path}: no hsstore store here")
