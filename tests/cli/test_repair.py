"""The command repair: what it prints and how it ends."""

import json
import shutil
from pathlib import Path

import pytest

from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.model.report import ReportLines, Run
from hsstore.storage.create import create
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import CONFIG, contents, filled_store, key_of
from hsstore_cli.main import main
from hsstore_cli.source_option import SourceOptions


@pytest.fixture
def damaged(tmp_path: Path) -> Store:
    store = filled_store(tmp_path / "store")
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    return store


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[SeededSource]:
    """Stand in for a real model; the sources that were opened."""
    sources: list[SeededSource] = []

    def open_source(options: SourceOptions, store: Store, _note: object) -> SeededSource:
        assert options == SourceOptions("transformers:MODEL")
        sources.append(SeededSource(store.identity))
        return sources[-1]

    monkeypatch.setattr("hsstore_cli.repair.open_source", open_source)
    return sources


SOURCE = ("--source", "transformers:MODEL")


def test_nothing_wrong_ends_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = filled_store(tmp_path / "store").root
    assert main(["repair", str(root)]) == 0
    assert main(["repair", str(root), "--apply"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out


def test_shown_only_ends_with_4(
    damaged: Store, opened: list[SeededSource], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", str(damaged.root), *SOURCE]) == 4
    out = capsys.readouterr().out
    assert "shard 1: replace the shard" in out
    assert "computed by the source: sample-3" in out
    assert out.splitlines()[-1].endswith(f"{damaged.root} {' '.join(SOURCE)} --apply")
    assert opened == []


def test_corrected_ends_with_1_then_sound(
    damaged: Store, opened: list[SeededSource], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", str(damaged.root), "--shards", "1", *SOURCE, "--apply"]) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith("all corrected")
    assert [source.asked for source in opened] == [[3]]
    assert main(["fsck", str(damaged.root)]) == 0


def test_without_source_the_command_to_run_is_named(
    damaged: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", str(damaged.root), "--apply"]) == 4
    out = capsys.readouterr().out
    assert "nothing given here provides: sample-3" in out
    assert f"hsstore repair {damaged.root} --source transformers:PATH --apply" in out


def test_from_a_replica(damaged: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replica = Store.open(shutil.copytree(damaged.root, tmp_path / "replica"))
    damage.flip_bit(replica.root / keys.shard_file(1), 100)  # back again
    assert main(["repair", str(damaged.root), "--from", str(replica.root)]) == 4
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"--from {replica.root} --apply")
    assert main(["repair", str(damaged.root), "--from", str(replica.root), "--apply"]) == 1
    assert contents(Store.open(damaged.root)) == contents(replica)


def test_json_is_steps_and_a_summary(
    damaged: Store, opened: list[SeededSource], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", str(damaged.root), *SOURCE, "--apply", "--json"]) == 1
    step, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert (step["type"], step["provider"], step["samples"]) == ("step", "source", ["sample-3"])
    assert (summary["type"], summary["samples_reextracted"]) == ("summary", 1)
    assert len(opened) == 1


def test_wrong_source_text_is_a_usage_error(damaged: Store) -> None:
    assert main(["repair", str(damaged.root), "--source", "magic"]) == 2


def test_no_store_ends_with_8(tmp_path: Path) -> None:
    assert main(["repair", str(tmp_path)]) == 8


def test_broken_identity_of_the_replica_ends_with_8(damaged: Store, tmp_path: Path) -> None:
    assert main(["repair", str(damaged.root), "--from", str(tmp_path / "none")]) == 8


def test_a_store_behind_a_link_is_mended(damaged: Store, opened: list[SeededSource]) -> None:
    (damaged.root / keys.WAIVER).rmdir()
    link = damaged.root.with_name("link")
    link.symlink_to(damaged.root.name)
    assert main(["repair", str(link), *SOURCE, "--apply"]) == 1
    assert main(["fsck", str(link)]) == 0
    assert opened[0].asked


# -- waivers, reports, documents -------------------------------------------------------------------


def test_a_waiver_is_shown_then_done(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = filled_store(tmp_path / "store", failing={key_of(4): "broken"}).root
    waiver = ["repair", str(root), "--waive", key_of(4), "--reason", "too long"]
    assert main(["fsck", str(root)]) == 4
    assert main(waiver) == 4
    assert "--reason 'too long' --apply" in capsys.readouterr().out
    assert main([*waiver, "--apply"]) == 1
    assert main([*waiver, "--apply"]) == 0
    assert main(["fsck", str(root)]) == 0
    capsys.readouterr()
    assert main(["status", str(root)]) == 0
    assert "waived       1 sample" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--waive", "a"], ["--reason", "b"], ["--waive", "a", "--reason", "b", "--from", "C"]]
)
def test_a_waiver_needs_a_reason_and_nothing_else(damaged: Store, words: list[str]) -> None:
    assert main(["repair", str(damaged.root), *words]) == 2


def test_nothing_is_said_of_what_was_not_looked_at(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled_store(tmp_path / "store", failing={"sample-3": "no", "sample-11": "no"})
    whole = next(k for k in store.committed() if k not in shards_of(store, 3, 11))
    assert main(["repair", str(store.root), "--shards", str(whole)]) == 0
    assert "the others were not looked at" in capsys.readouterr().out
    words = ["repair", str(store.root), "--waive", "sample-3", "--reason", "no", "--apply"]
    assert (main(words), main(words)) == (1, 0)
    assert capsys.readouterr().out.splitlines()[-1] == "waived before; nothing else was looked at"


def shards_of(store: Store, *samples: int) -> set[int]:
    """The shards of these samples."""
    return {store.samples.extent(sample).shard for sample in samples}


def test_tokens_that_are_lost_twice_name_what_gives_them_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = filled_store(tmp_path / "store")
    (store.root / keys.tokens(0, 0)).unlink()
    (store.root / keys.array_chunk(keys.INPUT_IDS, 0)).unlink()
    assert main(["repair", str(store.root), "--shards", "0", "--apply"]) == 4
    *_, account, help_ = capsys.readouterr().out.splitlines()
    assert account == "problems found: 1; nothing mended; problems that remain: 1"
    assert "--from REPLICA" in help_
    assert "--dataset" in help_


def test_a_report_limits_the_repair(
    damaged: Store, tmp_path: Path, opened: list[SeededSource], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["repair", str(damaged.root), "--from-report", str(tmp_path / "none")]) == 8
    run = Run(damaged.identity.uuid, str(damaged.root), "data", 0, 12, 4, "2026-01-31T12:00:00Z")
    report = tmp_path / "report.jsonl"
    report.write_text(ReportLines().run(run))
    capsys.readouterr()
    assert main(["repair", str(damaged.root), "--from-report", str(report), "--apply"]) == 0
    assert "nothing is wrong" in capsys.readouterr().out
    assert opened == []


def test_a_lost_identity_is_refused_or_given_back(
    damaged: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = shutil.copytree(damaged.root, tmp_path / "copy")
    damage.flip_bit(copy / keys.shard_file(1), 100)  # back again
    (damaged.root / keys.IDENTITY).unlink()
    assert main(["repair", str(damaged.root)]) == 8
    assert "cannot be made again" in capsys.readouterr().err
    assert main(["repair", str(damaged.root), "--from", str(copy)]) == 4
    assert main(["repair", str(damaged.root), "--from", str(copy), "--apply"]) == 1
    assert main(["fsck", str(damaged.root)]) == 0


ESCAPE = "\x1b]0;mine\x07\ud800"


def test_names_in_a_report_cannot_command_a_terminal(
    damaged: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = Finding("content-zero", "error", "zeros", shard=0, samples=(ESCAPE,), generation=9)
    report = tmp_path / "report.jsonl"
    lines, plan = ReportLines(), damaged.plan
    run = Run(damaged.identity.uuid, "x", "data", 0, plan.samples, plan.shards,
              "2026-01-31T12:00:00Z")  # fmt: skip
    report.write_text(lines.run(run) + lines.finding(found))
    assert main(["repair", str(damaged.root), "--from-report", str(report)]) == 0
    shown = capsys.readouterr().out
    assert "which was replaced since" in shown
    assert "mine" in shown
    assert all(line.isprintable() for line in shown.splitlines())


def test_names_in_a_store_cannot_command_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, model = tmp_path / "dataset.jsonl", tmp_path / "config.json"
    dataset.write_text(json.dumps({"id": "\x1b]0;mine\x07", "input_ids": [1, 2]}) + "\n")
    model.write_text(json.dumps(CONFIG | {"hidden_size": 8}))
    store = create(tmp_path / "store", dataset, model, (1,), "bfloat16")
    assert main(["repair", str(store.root)]) == 4
    shown = capsys.readouterr().out
    assert "mine" in shown
    assert all(line.isprintable() for line in shown.splitlines())
