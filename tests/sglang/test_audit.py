"""An audit of a store that a real server filled, by that server."""

import json
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hsstore.demo import corpus
from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing.falsities import falsify, shifted
from hsstore.testing.sglang_server import SGLangServer

pytestmark = pytest.mark.sglang

LAYERS, SAMPLES = "1,2,3,final", 12

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture
def passages(tmp_path: Path) -> Path:
    path = tmp_path / "passages.jsonl"
    lines = [{"id": s.id, "input_ids": [*s.input_ids[:300]]} for s in corpus.samples(SAMPLES)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_what_a_server_stored_is_right_and_a_falsity_is_named(
    passages: Path,
    demo_model: Path,
    plugin: Path,
    spool: Path,
    tmp_path: Path,
    hsstore: Run,
) -> None:
    store = tmp_path / "store"
    made = hsstore("create", store, "--dataset", passages, "--model", demo_model, "--layers",
                   LAYERS, "--dtype", "bfloat16", "--shard-rows", 1024)  # fmt: skip
    assert made.returncode == 0, made.stderr
    env = {"HSSTORE_SPOOL": str(spool), "HSSTORE_LAYERS": LAYERS}
    with SGLangServer(
        "0.5.23", demo_model, tmp_path / "log", env=env, plugin=plugin, dtype="bfloat16"
    ) as server:
        served = ("--server", server.url, "--spool", spool)
        filled = hsstore("extract", store, *served, "--concurrency", "8")
        assert filled.returncode == 0, filled.stderr
        before = files(store)
        audit = ("fsck", store, "--level", "quick", "--audit", SAMPLES, "--json")
        clean = hsstore(*audit, *served)
        assert clean.returncode == 0, clean.stdout + clean.stderr
        *notes, summary = map(json.loads, clean.stdout.splitlines())
        assert {line["kind"] for line in notes if line["type"] == "finding"} <= {"audit-noise"}
        assert summary["audit"]["audited"] == SAMPLES
        assert files(store) == before
        falsify(Store.open(store), 5, shifted(1))
        false = hsstore(*audit, *served)
        other = hsstore(*audit, "--source", f"transformers:{demo_model}")
    for found in (false, other):
        assert found.returncode == 4, found.stderr
        lines = [json.loads(line) for line in found.stdout.splitlines()]
        (wrong,) = [line for line in lines if line.get("kind") == "audit-wrong"]
        assert "every layer: rows that come 1 too late" in wrong["detail"]
        assert lines[-1]["audit"]["wrong"] == 1
    assert [path for path in spool.iterdir() if not path.name.startswith("hello.")] == []


def files(store: Path) -> dict[Path, int]:
    """Every file of a store and when it was written; calibrations too."""
    assert (store / keys.CALIBRATION).is_dir()
    return {path: path.stat().st_mtime_ns for path in store.rglob("*")}
