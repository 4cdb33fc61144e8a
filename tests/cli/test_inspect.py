"""hsstore inspect: the bytes it names are the bytes that are there."""

import json
from pathlib import Path
from typing import Any

import pytest
import xxhash

from hsstore.integrity.repair import repair
from hsstore.model.calibration import PROJECTIONS, Agreement, Calibration, Engine
from hsstore.storage.calibrations import publish_calibration
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import empty_store, fill, key_of
from hsstore_cli.main import main

LENGTHS = [5, 3, 9, 16, 1, 2]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = empty_store(tmp_path / "store", LENGTHS)
    return fill(store, shards=range(2), failing={key_of(1): "too long"})


def inspect(store: Store, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    assert main(["inspect", str(store.root), "--json", *options]) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    return shown


def test_a_store_shows_its_identity_geometry_and_plan(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = inspect(store, capsys)
    assert shown["uuid"] == store.identity.uuid
    assert shown["capture"] == {"dtype": "bfloat16", "layers": [1, "final"]}
    assert shown["geometry"]["row_bytes"] == 32
    assert shown["plan"]["samples"] == len(LENGTHS)


def test_a_store_shows_its_calibrations(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect(store, capsys)["calibrations"] == []
    found = Calibration(
        store=store.identity.uuid,
        number=0,
        when="2026-01-31T12:00:00Z",
        method="reference",
        engine=Engine("sglang", "0.5.23", "spool", (0, "final")),
        layers=(1, "final"),
        norm="post",
        agreement=(Agreement(0.0, 1.0), Agreement(0.02, 0.999)),
        doubt="",
        input_ids=(1,),
        sketch=((0.5,) * PROJECTIONS,) * 2,
    )
    publish_calibration(store, found)
    (shown,) = inspect(store, capsys)["calibrations"]
    assert shown["engine"] == "sglang 0.5.23"
    assert (shown["engine_layers"], shown["norm"]) == ([0, "final"], "post")
    assert (shown["relative_error"], shown["cosine"]) == ([0.0, 0.02], [1.0, 0.999])
    assert main(["inspect", str(store.root)]) == 0
    assert "  - number 0, when 2026-01-31T12:00:00Z, method reference" in capsys.readouterr().out


def test_a_shard_shows_its_documents_and_samples(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = inspect(store, capsys, "--shard", "0")
    assert shown["committed"] is True
    assert [s["id"] for s in shown["stored"]] == [key_of(0)]
    assert [(a["key"], a["detail"]) for a in shown["absent"]] == [(key_of(1), "too long")]
    for path in (shown["path"], shown["marker"]["path"], shown["manifest"]["path"]):
        assert (store.root / path).is_file()
    assert inspect(store, capsys, "--shard", "2")["committed"] is False


@pytest.mark.parametrize("name", [key_of(2), "#2"])
def test_a_sample_is_found_by_key_and_by_number(
    store: Store, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    shown = inspect(store, capsys, "--sample", name)
    assert (shown["sample"], shown["id"], shown["state"]) == (2, key_of(2), "committed")
    assert shown["chunks"] == [0, 1, 2]
    raw = (store.root / shown["path"]).read_bytes()
    for chunk in shown["stored_chunks"]:
        first, end = chunk["byte_range"]
        assert xxhash.xxh3_64_hexdigest(raw[first:end]) == chunk["xxh3_64"]
    content = raw[: shown["tokens"] * store.identity.geometry.row_bytes]
    assert xxhash.xxh3_128_hexdigest(content) == shown["content_xxh3_128"]
    assert [layer["layer"] for layer in shown["statistics"]["layers"]] == [1, "final"]


def test_a_sample_that_is_not_there_says_why(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = inspect(store, capsys, "--sample", key_of(1))
    assert (absent["state"], absent["detail"]) == ("absent", "too long")
    assert inspect(store, capsys, "--sample", key_of(3))["state"] == "missing"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--sample", "nobody"], "there is no sample 'nobody'"),
        (["--sample", "#6"], "there is no sample '#6'"),
        (["--shard", "4"], "there is no shard 4: the store has shards 0 to 3"),
    ],
)
def test_what_does_not_exist_is_one_line(
    store: Store, capsys: pytest.CaptureFixture[str], options: list[str], told: str
) -> None:
    assert main(["inspect", str(store.root), *options]) == 8
    shown = capsys.readouterr()
    assert told in shown.err
    assert shown.err.count("\n") == 1
    assert not shown.out


def test_people_see_an_outline(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(store.root), "--sample", key_of(2)]) == 0
    shown = capsys.readouterr().out
    assert "id: sample-2\n" in shown
    assert "  - chunk 0, byte_range [0, 128]" in shown
    assert main(["inspect", str(store.root), "--shard", "0"]) == 0
    assert "revision -, " in capsys.readouterr().out


def test_shard_and_sample_together_are_wrong_usage(
    store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(store.root), "--shard", "0", "--sample", "x"]) == 2
    assert "not both" in capsys.readouterr().err


def test_every_attempt_of_an_absent_sample_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = {key_of(0): "too hot", key_of(1): "too long"}
    store = fill(empty_store(tmp_path / "tried", LENGTHS), failing=failing)
    source = SeededSource(store.identity, {key_of(1): "still too long"})
    repair(store.root, source=lambda: source, apply=True)
    attempts = ["seeded: too long", "seeded: still too long"]
    assert main(["inspect", str(store.root), "--sample", key_of(1), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["attempts"] == attempts
    for option in (("--sample", key_of(1)), ("--shard", "0")):
        assert main(["inspect", str(store.root), *option]) == 0
        shown = [line.strip() for line in capsys.readouterr().out.splitlines()]
        at = shown.index("attempts:")
        assert shown[at + 1 : at + 3] == [f"- {line}" for line in attempts]
