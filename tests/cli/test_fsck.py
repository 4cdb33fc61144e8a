"""The command fsck: what it prints and how it ends."""

import json
from pathlib import Path

import pytest

from hsstore.model import keys
from hsstore.testing import damage
from hsstore.testing.stores import filled_store
from hsstore_cli.findings import ranges
from hsstore_cli.main import main


def test_sound_store_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    filled_store(tmp_path / "store")
    assert main(["fsck", str(tmp_path / "store")]) == 0
    assert "4 of 4 shards checked at level data" in capsys.readouterr().out


def test_damage_ends_with_4_and_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = filled_store(tmp_path / "a store").root
    damage.flip_bit(root / keys.shard_file(1), 100)
    assert main(["fsck", str(root)]) == 4
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("error chunk-damaged")
    assert "samples: sample-3" in lines[2]
    assert lines[-1] == (
        f"To mend it: hsstore repair '{root}' --shards 1 --source transformers:PATH --apply"
    )


def test_json_is_findings_and_a_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = filled_store(tmp_path / "store").root
    damage.flip_bit(root / keys.shard_file(1), 100)
    assert main(["fsck", str(root), "--json", "--threads", "1"]) == 4
    finding, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert set(finding) == {
        "type", "kind", "severity", "shard", "samples", "path", "chunk", "byte_range", "evidence",
        "detail", "repair", "generation",
    }  # fmt: skip
    assert set(summary) == {
        "type", "level", "complete", "shards_checked", "shards_total", "samples_damaged",
        "bytes_checked", "findings", "unverified", "audit",
    }  # fmt: skip
    assert summary["audit"] is None
    assert (summary["type"], summary["complete"], summary["samples_damaged"]) == (
        "summary", True, 1,
    )  # fmt: skip


def test_unfinished_store_names_ranges_of_missing_shards(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled_store(tmp_path / "store", shards=range(1))
    assert main(["fsck", str(store.root), "--level", "quick"]) == 4
    out = capsys.readouterr().out
    assert "3 shards: 1-3" in out
    assert out.count("shard-missing") == 1
    assert out.splitlines()[-1] == (
        f"To finish it: hsstore extract {store.root} --source transformers:PATH"
    )


def test_unfinished_and_damaged_store_names_repair(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled_store(tmp_path / "store", shards=range(2))
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    assert main(["fsck", str(store.root), "--shards", "0-2"]) == 4
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"To mend it: hsstore repair {store.root} --shards 0-2 --source transformers:PATH --apply"
    )


def test_warnings_alone_end_with_0(tmp_path: Path) -> None:
    root = filled_store(tmp_path / "store").root
    (root / "notes.txt").write_text("mine")
    assert main(["fsck", str(root)]) == 0


def test_interruption_ends_with_32_and_a_partial_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = filled_store(tmp_path / "store").root

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("hsstore.integrity.checks.metadata.check", interrupted)
    assert main(["fsck", str(root), "--json"]) == 32
    (summary,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert summary["complete"] is False


def test_no_store_ends_with_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", str(tmp_path)]) == 8
    assert "no hsstore store here" in capsys.readouterr().err


@pytest.mark.parametrize("name", [keys.IDENTITY, keys.plan(0)])
def test_a_damaged_identity_or_plan_is_a_finding_with_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    root = filled_store(tmp_path / "store").root
    damage.flip_bit(root / name)
    assert main(["fsck", str(root), "--json"]) == 4
    finding, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (finding["path"], finding["severity"]) == (name, "error")
    assert (summary["complete"], summary["findings"]["error"]) == (False, 1)
    assert main(["fsck", str(root)]) == 4


def test_shards_out_of_the_store_are_refused(tmp_path: Path) -> None:
    root = filled_store(tmp_path / "store").root
    assert main(["fsck", str(root), "--shards", "7-9"]) == 2


def test_ranges_collapse_neighbours() -> None:
    assert ranges([7, 1, 3, 4, 5]) == "1, 3-5, 7"
