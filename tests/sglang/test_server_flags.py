"""The line that server-flags prints for a spool, pasted into a shell: the server it starts is the
one that the store needs. The lines for JSON are pasted by test_calibration."""

import json
from pathlib import Path

import pytest

from hsstore.demo import corpus
from hsstore.extraction.sglang.calibration import make_calibrator
from hsstore.storage.calibrations import calibrations
from hsstore.storage.create import create
from hsstore.testing.sglang_prompt import PastedServer, Served, ask_by_spool
from hsstore.testing.sglang_server import install_plugin
from hsstore_cli.main import main

pytestmark = pytest.mark.sglang

LAYERS = (3, 1, "final")


@pytest.mark.parametrize("release", ["0.5.23", "0.5.12"])
def test_the_plugin_captures_what_the_line_says(
    release: str, tmp_path: Path, demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dataset, spool = tmp_path / "data.jsonl", tmp_path / "a spool"
    lines = [{"input_ids": s.input_ids[:100]} for s in corpus.samples(2)]
    dataset.write_text("".join(json.dumps(line) + "\n" for line in lines))
    store = create(tmp_path / "store", dataset, demo_model, LAYERS, dtype="float32")
    spool.mkdir()
    options = ["--spool", str(spool), "--model-path", str(demo_model), "--device", "cpu"]
    assert main(["server-flags", str(store.root), *options, "--release", release]) == 0
    line = capsys.readouterr().out.strip()
    plugin = install_plugin(release, tmp_path / "plugin")
    with PastedServer(line, release, demo_model, tmp_path / "log", plugin) as server:
        (hello,) = [json.loads(path.read_bytes()) for path in spool.glob("hello.*.json")]
        assert (hello["refused"], hello["layers"]) == (None, list(LAYERS))
        ask = ask_by_spool(server.url, spool, store.identity.capture)
        told: list[str] = []
        calibrate = make_calibrator(store, None, told.append, spool=True)
        calibrate(ask, Served(release, str(demo_model)))
    (found,) = calibrations(store)
    assert (found.method, found.engine.layers) == ("reference", (2, 0, "final"))
    assert max(layer.relative_error for layer in found.agreement) < 1e-5
