"""The command fsck-merge: one verdict from many reports, and nothing left unsaid."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.integrity.scrub.report_file import read_report
from hsstore.model import keys
from hsstore.model.finding import Finding, Level, Summary
from hsstore.model.report import Checked, ReportLines, Run
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.stores import filled_store
from hsstore_cli.main import main

Typed = Callable[..., tuple[int, str, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str]) -> Typed:
    """Type a command: its exit code, stdout and stderr."""

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return code, *capsys.readouterr()

    return run


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return filled_store(tmp_path_factory.mktemp("filled") / "store").root


@pytest.fixture
def store(filled: Path, tmp_path: Path) -> Store:
    """Four shards."""
    return Store.open(shutil.copytree(filled, tmp_path / "a store"))


@pytest.fixture
def reports(store: Store, tmp_path: Path, typed: Typed) -> list[Path]:
    """Two subsets, all sound."""
    made = [tmp_path / f"{number}.jsonl" for number in (1, 2)]
    for number, report in enumerate(made, 1):
        assert typed("fsck", store.root, "--subset", f"{number}/2", "--report", report)[0] == 0
    return made


def test_all_subsets_together_are_a_sound_store(reports: list[Path], typed: Typed) -> None:
    code, out, _ = typed("fsck-merge", *reports)
    assert code == 0
    assert out.startswith("2 reports: 4 of 4 shards checked at level data, ")
    assert ": nothing wrong\n" in out
    assert "not checked" not in out
    assert "could not be verified" not in out


def test_a_missing_subset_is_named_and_the_verdict_not_0(reports: list[Path], typed: Typed) -> None:
    code, out, _ = typed("fsck-merge", reports[0])
    assert code == 32
    assert "no report of subset 2/2: 2 shards not checked" in out
    assert "samples that could not be verified: " in out


def test_damage_in_any_subset_is_a_problem_with_the_command(
    store: Store, reports: list[Path], tmp_path: Path, typed: Typed
) -> None:
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    assert typed("fsck", store.root, "--subset", "2/2", "--report", reports[1])[0] == 4
    code, out, _ = typed("fsck-merge", *reports)
    assert code == 4
    assert "error chunk-damaged" in out
    assert out.splitlines()[-1] == (
        f"To mend it: hsstore repair '{store.root}' --source transformers:PATH --apply"
    )
    written = tmp_path / "all.jsonl"
    _, out, _ = typed("fsck-merge", *reports, "--report", written)
    assert f" --from-report {written} --source " in out.splitlines()[-1]


def test_of_a_shard_the_newest_check_counts(store: Store, tmp_path: Path, typed: Typed) -> None:
    sound = (store.root / keys.shard_file(1)).read_bytes()
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    assert typed("fsck", store.root, "--report", old)[0] == 4
    (store.root / keys.shard_file(1)).write_bytes(sound)
    assert typed("fsck", store.root, "--shards", "1", "--report", new)[0] == 0
    later = (
        new.read_text()
        .replace('"started": "2', '"started": "3')
        .replace('"time": "2', '"time": "3')
    )
    new.write_text(resealed(later))
    assert typed("fsck-merge", old)[0] == 4
    for given in ((old, new), (new, old)):
        code, out, _ = typed("fsck-merge", *given)
        assert (code, "chunk-damaged" in out) == (0, False), out


def resealed(text: str) -> str:
    """A report with other lines, whose seal fits them."""
    import xxhash  # noqa: PLC0415 - only this forges

    *lines, last = text.splitlines(keepends=True)
    seal = xxhash.xxh3_128_hexdigest("".join(lines).encode())
    return "".join(lines) + json.dumps(json.loads(last) | {"seal": seal}) + "\n"


def test_a_killed_run_is_named_and_the_verdict_not_0(reports: list[Path], typed: Typed) -> None:
    *lines, _ = reports[1].read_text().splitlines(keepends=True)
    reports[1].write_text("".join(lines) + '{"type": "find')
    code, out, _ = typed("fsck-merge", *reports)
    assert code == 32
    assert f"{reports[1]}: its run did not come to its end; run it again" in out


def test_merged_reports_are_reports(reports: list[Path], tmp_path: Path, typed: Typed) -> None:
    merged = tmp_path / "all.jsonl"
    code, out, _ = typed("fsck-merge", *reports, "--report", merged, "--json")
    assert code == 0
    assert out == merged.read_text()
    assert read_report(merged).finished
    assert typed("fsck-merge", merged)[0] == 0


def test_other_stores_are_refused(reports: list[Path], tmp_path: Path, typed: Typed) -> None:
    other = filled_store(tmp_path / "other").root
    typed("fsck", other, "--report", tmp_path / "other.jsonl")
    code, out, err = typed("fsck-merge", *reports, tmp_path / "other.jsonl")
    assert (code, out) == (8, "")
    assert "reports of different stores" in err
    assert err.count("\n") == 1


def test_levels_are_not_mixed_unless_said(store: Store, reports: list[Path], typed: Typed) -> None:
    typed("fsck", store.root, "--subset", "2/2", "--level", "quick", "--report", reports[1])
    code, _, err = typed("fsck-merge", *reports)
    assert (code, "say by --level what the verdict shall be about" in err) == (8, True)
    code, _, err = typed("fsck-merge", *reports, "--level", "data")
    assert (code, "it is of level quick and says nothing about data" in err) == (8, True)
    code, out, _ = typed("fsck-merge", *reports, "--level", "quick")
    assert (code, "checked at level quick" in out) == (0, True)


def test_a_store_that_could_not_be_opened_is_a_problem(
    store: Store, reports: list[Path], typed: Typed
) -> None:
    damage.flip_bit(store.root / keys.IDENTITY)
    assert typed("fsck", store.root, "--subset", "2/2", "--report", reports[1])[0] == 4
    code, out, _ = typed("fsck-merge", *reports)
    assert (code, "error identity-invalid" in out) == (4, True)
    mends = f"To mend it: hsstore repair '{store.root}' --from REPLICA --apply"
    assert out.splitlines()[-1] == mends


@pytest.mark.parametrize("text", ["", "no report\n", '{"type": "run"}\n'])
def test_what_is_no_report_is_refused_in_one_line(tmp_path: Path, typed: Typed, text: str) -> None:
    (tmp_path / "x").write_text(text)
    code, out, err = typed("fsck-merge", tmp_path / "x")
    assert (code, out, err.count("\n")) == (8, "", 1)
    code, out, err = typed("fsck-merge", tmp_path / "not there")
    assert (code, out, err.count("\n")) == (8, "", 1)


def forged(report: Path, old: str, new: str) -> None:
    """Another report, whose seal fits it."""
    text = report.read_text()
    assert old in text
    report.write_text(resealed(text.replace(old, new)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"subset": [1, 2]', f'"subset": [1, {1 << 62}]'),
        ('"shards_total": 4', f'"shards_total": {1 << 62}'),
    ],
)
def test_numbers_of_a_forged_report_take_no_time(
    reports: list[Path], typed: Typed, old: str, new: str
) -> None:
    forged(reports[0], old, new)
    assert typed("fsck-merge", reports[0])[0] in (8, 32)


def test_a_path_in_a_report_cannot_command_a_terminal(
    store: Store, tmp_path: Path, typed: Typed
) -> None:
    report = tmp_path / "report.jsonl"
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    assert typed("fsck", store.root, "--report", report)[0] == 4
    forged(report, '"root": "', '"root": "\\u001b]0;mine\\u0007\\ud800')
    code, out, err = typed("fsck-merge", report)
    assert (code, err) == (4, "")
    assert "mine" in out
    assert all(line.isprintable() for line in out.splitlines())


@pytest.mark.parametrize("kind", ["audit-wrong", "content-zero"])
def test_a_check_that_cannot_see_a_problem_does_not_take_it_back(
    store: Store, tmp_path: Path, typed: Typed, kind: str
) -> None:
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    level: Level = "data" if kind == "audit-wrong" else "thorough"
    said = Finding(kind, "error", "false", shard=1, samples=("sample-3",), generation=1)
    summary = Summary(level, 4, 0, complete=True, findings={"error": 1, "warning": 0, "note": 0})
    run = Run(store.identity.uuid, "x", level, 0, store.plan.samples, 4, "2026-01-31T12:00:00Z")
    lines = ReportLines()
    made = [lines.run(run), lines.finding(said)]
    made.append(lines.checked("2026-01-31T12:00:01Z", [Checked(n, 1, 3, 9) for n in range(4)]))
    old.write_text("".join([*made, lines.summary(summary)]))
    assert typed("fsck", store.root, "--report", new)[0] == 0
    code, out, _ = typed("fsck-merge", old, new, "--level", "data")
    assert (code, kind in out) == (4, True)
    forged(new, "[1, 1, ", "[1, 2, ")
    assert typed("fsck-merge", old, new, "--level", "data")[0] == 0, "it was replaced since"
