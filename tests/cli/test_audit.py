"""The command fsck --audit: what it refuses, prints and ends with."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.demo.corpus import samples
from hsstore.demo.model import build_model
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.model import keys
from hsstore.model.source import Failed, Request
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.fake_sglang import FakeSGLang
from hsstore.testing.falsities import falsify, swapped
from hsstore.testing.stores import filled_store
from hsstore_cli.main import main

Args = Callable[..., list[str]]


@pytest.fixture(scope="module")
def made(demo_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of eight samples of real text, filled by the small model."""
    folder = tmp_path_factory.mktemp("audit")
    dataset = folder / "dataset.jsonl"
    lines = [{"id": s.id, "input_ids": [*s.input_ids[:40]]} for s in samples(8)]
    dataset.write_text("".join(json.dumps(line) + "\n" for line in lines))
    store = str(folder / "store")
    given = ["--dataset", str(dataset), "--model", str(demo_model), "--layers", "1,3,final"]
    assert main(["create", store, *given, "--chunk-rows", "8", "--shard-rows", "128"]) == 0
    assert main(["extract", store, "--source", f"transformers:{demo_model}"]) == 0
    return Path(store)


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(made, tmp_path / "a store"))


@pytest.fixture
def arguments(root: Path, demo_model: Path) -> Args:
    """The command, audited by the model that filled the store."""

    def typed(*more: str) -> list[str]:
        source = ["--source", f"transformers:{demo_model}"]
        return ["fsck", str(root), "--level", "quick", *source, *more]

    return typed


def test_an_exact_audit_says_what_it_means(
    arguments: Args, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("--audit", "3", "--seed", "7")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "audited 3 of 8 samples: 3 exact, 0 within noise, 0 wrong" in lines
    assert (
        "with 95 % confidence, at most 64 % of the samples are wrong; --seed 7 draws the same ones"
    ) in lines


def test_false_states_end_with_4_and_the_command(
    root: Path, arguments: Args, capsys: pytest.CaptureFixture[str]
) -> None:
    falsify(Store.open(root), 2, swapped(0, 1))
    assert main(arguments("--audit", "100")) == 4
    out = capsys.readouterr().out
    assert "error audit-wrong: computed again, it has other states; layer 1: the state of" in out
    lines = out.splitlines()
    assert "audited 8 of 8 samples: 7 exact, 0 within noise, 1 wrong" in lines
    assert "that is all of them" in lines
    assert lines[-1] == (
        f"To mend it: hsstore repair '{root}' --from-report REPORT "
        "--source transformers:PATH --apply"
    )
    report = root.parent / "a report"
    assert main(arguments("--audit", "100", "--report", str(report))) == 4
    assert f"--from-report '{report}' --source" in capsys.readouterr().out.splitlines()[-1]


def test_a_time_limit_ends_the_audit_and_its_claims(
    arguments: Args, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("--audit", "3", "--max-duration", "1e-9")) == 32
    *_, counts, claim = capsys.readouterr().out.splitlines()
    assert counts.startswith("audited 0 of 8 samples: ")
    assert claim == "not all 3 that were drawn: it says nothing of the others"
    assert main(arguments("--audit", "3", "--max-duration", "1e-9", "--level", "data")) == 32
    assert capsys.readouterr().out.splitlines()[-1] == "no sample was audited"


def test_json_has_the_counts_and_a_seed_draws_the_same_again(
    arguments: Args, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments("--audit", "3", "--json")) == 0
    *_, summary = map(json.loads, capsys.readouterr().out.splitlines())
    found = summary["audit"]
    assert (found["audited"], found["exact"], found["population"]) == (3, 3, 8)
    assert (found["confidence"], found["complete"]) == (0.95, True)
    assert found["wrong_share_at_most"] == pytest.approx(1 - 0.05 ** (1 / 3))
    assert main(arguments("--audit", "3", "--json", "--seed", str(found["seed"]))) == 0
    *_, again = map(json.loads, capsys.readouterr().out.splitlines())
    assert again["audit"] == found


def test_damage_is_told_as_ever(
    root: Path, arguments: Args, capsys: pytest.CaptureFixture[str]
) -> None:
    damage.flip_bit(root / keys.shard_file(0), 100)
    assert main(arguments("--audit", "100", "--json")) == 4
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (finding,), summary = [line for line in lines if line["type"] == "finding"], lines[-1]
    assert finding["kind"] == "chunk-damaged"
    assert (summary["audit"]["damaged"], summary["audit"]["exact"]) == (1, 7)


def test_another_model_ends_with_8_before_anything_is_checked(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    build_model(tmp_path / "other", seed=1)
    source = f"transformers:{tmp_path / 'other'}"
    assert main(["fsck", str(root), "--audit", "3", "--source", source, "--json"]) == 8
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "a model other than the store's" in captured.err


def test_an_unreachable_server_ends_with_8(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--server", "http://127.0.0.1:9", "--spool", str(root.parent), "--max-wait", "1"]
    assert main(["fsck", str(root), "--audit", "3", *given]) == 8
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_a_sample_that_cannot_be_computed_ends_with_32(
    arguments: Args, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: TransformersSource, request: Request) -> Failed:
        return Failed(request.sample, "too-long", "the model takes 3 tokens")

    monkeypatch.setattr(TransformersSource, "_refusal", refused)
    assert main(arguments("--audit", "2")) == 32
    lines = capsys.readouterr().out.splitlines()
    assert "warning audit-failed: too-long: the model takes 3 tokens" in lines
    assert lines[-2:] == [
        "audited 0 of 8 samples: 0 exact, 0 within noise, 0 wrong, 2 that could not be computed",
        "not all 2 that were drawn: it says nothing of the others",
    ]


def test_a_server_is_asked_one_by_one_and_its_calibration_is_not_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded: list[bool] = []

    def make(*_: object, spool: bool, recording: bool) -> object:
        recorded.append(spool and recording)
        return lambda _ask, _facts: None

    monkeypatch.setattr("hsstore.extraction.sglang.calibration.make_calibrator", make)
    store, spool = filled_store(tmp_path / "store"), tmp_path / "spool"
    spool.mkdir()
    with FakeSGLang(store.identity, spool=spool, seconds=0.01) as server:
        served = ["--server", server.url, "--spool", str(spool)]
        assert main(["fsck", str(store.root), "--level", "quick", "--audit", "5", *served]) == 0
    assert "audited 5 of 12 samples: 5 exact" in capsys.readouterr().out
    assert (server.peak, recorded) == (1, [False])
    assert not any(path.suffix == ".states" for path in spool.iterdir())


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["--audit", "3"], "Nothing to compute with"),
        (["--audit", "0", "--source", "transformers:M"], "0 is not in the range"),
        (["--seed", "3"], "--seed is for an --audit"),
        (["--source", "transformers:M"], "--source is for an --audit"),
        (["--server", "http://h:1"], "--server is for an --audit"),
        (["--audit", "3", "--source", "transformers:M", "--server", "http://h:1"], "exclude"),
        (["--audit", "3", "--source", "transformers:M", "--max-wait", "5"], "for a --server"),
        (["--audit", "3", "--source", "M"], "is no source"),
        (["--audit", "3", "--source", "transformers:M", "--batch-tokens", "99"], "No such option"),
        (["--audit", "3", "--server", "http://h:1", "--concurrency", "9"], "No such option"),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, typed: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = filled_store(tmp_path / "store").root
    assert main(["fsck", str(root), *typed]) == 2
    assert words in capsys.readouterr().err
