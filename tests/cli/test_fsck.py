"""The command fsck: what it prints and how it ends."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.causal import States, causal_store, conversations, plant
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
    run, *between, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (run["type"], run["store"]) == ("run", Store.open(root).identity.uuid)
    (finding,) = [line for line in between if line["type"] == "finding"]
    checked = [line["shards"] for line in between if line["type"] == "checked"]
    assert [shard for shards in checked for shard, *_ in shards] == [0, 1, 2, 3]
    assert set(finding) == {
        "type", "kind", "severity", "shard", "samples", "path", "chunk", "byte_range", "evidence",
        "detail", "repair", "generation",
    }  # fmt: skip
    assert set(summary) == {
        "type", "level", "complete", "shards_checked", "shards_total", "samples_damaged",
        "bytes_checked", "findings", "unverified", "shards_asked", "shards_recent", "subset",
        "stopped", "audit", "seal",
    }  # fmt: skip
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
    _, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (summary["complete"], summary["stopped"]) == (False, "interrupted")


def test_no_store_ends_with_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fsck", str(tmp_path)]) == 8
    assert "no hsstore store here" in capsys.readouterr().err


@pytest.mark.parametrize("name", [keys.IDENTITY, keys.plan(0)])
def test_a_damaged_identity_or_plan_is_a_finding_with_a_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    root = filled_store(tmp_path / "store").root
    replica = shutil.copytree(root, tmp_path / "replica")
    damage.flip_bit(root / name)
    assert main(["fsck", str(root), "--json"]) == 4
    run, finding, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (run["store"], run["root"]) == (None, str(root))
    assert (finding["path"], finding["severity"]) == (name, "error")
    assert (summary["complete"], summary["findings"]["error"]) == (False, 1)
    assert main(["fsck", str(root)]) == 4
    (remedy,) = [line for line in capsys.readouterr().out.splitlines() if "To mend it: " in line]
    typed = shlex.split(
        remedy.removeprefix("To mend it: hsstore ").replace("REPLICA", str(replica))
    )
    assert main(typed) == 1
    assert main(["fsck", str(root)]) == 0


def test_a_store_whose_name_begins_with_a_dash_is_mended_by_what_is_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = filled_store(tmp_path / "-store")
    (store.root / keys.marker(store.committed()[0][0], absent=False)).unlink()
    monkeypatch.chdir(tmp_path)
    assert main(["fsck", "./-store"]) == 4
    remedy = capsys.readouterr().out.splitlines()[-1].removeprefix("To mend it: hsstore ")
    assert main(shlex.split(remedy)) == 1


def test_that_there_is_no_store_is_said_before_where_a_state_would_lie(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fsck", str(tmp_path), "--state", str(tmp_path / "state")]) == 8
    assert "no hsstore store here" in capsys.readouterr().err


def test_shards_out_of_the_store_are_refused(tmp_path: Path) -> None:
    root = filled_store(tmp_path / "store").root
    assert main(["fsck", str(root), "--shards", "7-9"]) == 2


def test_ranges_collapse_neighbours() -> None:
    assert ranges([7, 1, 3, 4, 5]) == "1, 3-5, 7"


def test_status_tells_what_was_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = filled_store(tmp_path / "store")
    state = ["--state", str(tmp_path / "state")]
    assert main(["fsck", str(store.root), "--subset", "1/2", *state]) == 0
    capsys.readouterr()
    assert main(["status", str(store.root), *state]) == 0
    said = "within 30 days at level data: 50 % of the committed shards (2 of 4); 2 never; oldest 2"
    assert f"verified     {said}" in capsys.readouterr().out
    assert main(["status", str(store.root), *state, "--json"]) == 0
    coverage = json.loads(capsys.readouterr().out)["coverage"]
    assert (coverage["verified"], coverage["shards"], coverage["share"]) == (2, 4, 0.5)


def test_a_home_that_cannot_be_written_costs_a_line_and_nothing_else(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = filled_store(tmp_path / "store").root
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert main(["fsck", str(root)]) == 0
    assert capsys.readouterr().err.count("; give --state another folder\n") == 1
    assert main(["status", str(root)]) == 0

    def homeless() -> Path:
        raise RuntimeError("no home")

    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    assert main(["fsck", str(root)]) == 0
    assert "no home folder to keep verdicts in" in capsys.readouterr().err
    assert main(["status", str(root), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["coverage"] is None


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--subset", "0/7", "'0/7' is no subset; give n/t"),
        ("--max-age", "30", "'30' is no age: give a number and s, m, h, d or w, as 30d"),
        ("--max-age", "0d", "'0d' is no age"),
        ("--max-duration", "0", "not in the range"),
    ],
)
def test_wrong_options_are_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str, value: str, said: str
) -> None:
    root = filled_store(tmp_path / "store").root
    assert main(["fsck", str(root), option, value]) == 2
    assert said in capsys.readouterr().err


def test_a_report_stays_out_of_the_store_and_in_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = filled_store(tmp_path / "store").root
    assert main(["fsck", str(root), "--report", str(root / "report")]) == 8
    assert "fsck writes nothing there" in capsys.readouterr().err
    assert main(["fsck", str(root), "--report", str(tmp_path / "no" / "folder")]) == 8
    assert "the report cannot be written: No such file" in capsys.readouterr().err
    assert main(["fsck", str(root), "--report", "/dev/null"]) == 8
    assert "a report takes the place of a file" in capsys.readouterr().err
    assert main(["fsck", str(root)]) == 0


def test_a_report_takes_the_place_of_an_earlier_one_and_of_no_other_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = filled_store(tmp_path / "store").root
    other = filled_store(tmp_path / "other").root / keys.IDENTITY
    before = other.read_bytes()
    assert main(["fsck", str(root), "--report", str(other)]) == 8
    assert "of an earlier one only, and this file is none" in capsys.readouterr().err
    assert other.read_bytes() == before
    report = tmp_path / "report.jsonl"
    report.touch()
    for _ in range(2):
        assert main(["fsck", str(root), "--report", str(report)]) == 0
        assert '"summary"' in report.read_text()


def test_the_one_command_mends_false_states_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = causal_store(tmp_path / "store", conversations(60))
    damage.flip_bit(store.root / keys.shard_file(0), 100)

    def zeroed(states: States) -> States:
        states[3:5] = 0
        return states

    plant(store, {int(store.samples.shard_samples(1)[0]): zeroed})
    assert main(["fsck", str(store.root), "--level", "thorough"]) == 4
    assert capsys.readouterr().out.splitlines()[-1] == (
        f"To mend it: hsstore repair {store.root} --from-report REPORT "
        "--source transformers:PATH --apply"
    )
    report = tmp_path / "tonight's.jsonl"
    for only in ([], ["--shards", "1-1"]):
        argv = ["fsck", str(store.root), "--level", "thorough", "--report", str(report), *only]
        assert main(argv) == 4
        last = capsys.readouterr().out.splitlines()[-1]
        typed = shlex.split(last.removeprefix("To mend it: hsstore "))
        source = typed.index("--source")
        assert main([*typed[:source], *typed[source + 2 : -1]]) == 4, "it is typed as it stands"
        assert "shard 1: replace the shard" in capsys.readouterr().out
