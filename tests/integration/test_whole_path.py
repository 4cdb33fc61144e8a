"""The whole path by its commands: a dataset and a model in, checked states and training out."""

import importlib
import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hsstore.demo.corpus import samples, write_dataset
from hsstore.errors import SampleAbsent
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.training.dataset import HiddenStateDataset
from hsstore_cli.main import main

SAMPLES = 20
LAYERS = ("0", "2", "final:pre", "final")
TOO_LONG = 2049  # one token more than the model has positions


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    write_dataset(tmp_path / "dataset.jsonl", SAMPLES)
    return tmp_path / "dataset.jsonl"


def capture(model: Path, dtype: str) -> list[str]:
    return ["--model", str(model), "--layers", ",".join(LAYERS), "--dtype", dtype]


def run(*arguments: object, code: int = 0) -> None:
    assert main([str(argument) for argument in arguments]) == code


def said(capfd: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> dict[str, Any]:
    capfd.readouterr()
    run(*arguments, "--json", code=code)
    document: dict[str, Any] = json.loads(capfd.readouterr().out.splitlines()[-1])
    return document


def direct(model: Path, ids: list[int], dtype: str) -> torch.Tensor:
    """What transformers itself answers for the layers [tokens, layers, hidden]."""
    transformers = importlib.import_module("transformers")
    decoder = transformers.AutoModel.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
    before: list[torch.Tensor] = []
    decoder.norm.register_forward_pre_hook(lambda _, given: before.append(given[0]))
    with torch.inference_mode():
        states = decoder(torch.tensor([ids]), output_hidden_states=True).hidden_states
    wanted = [states[0], states[2], before[0], states[-1]]
    return torch.stack([layer[0] for layer in wanted], dim=1)


@pytest.mark.parametrize(
    ("dtype", "codec"), [("bfloat16", "none"), ("float32", "blosc-zstd"), ("float16", "none")]
)
def test_tokens_in_states_out(
    demo_model: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    dtype: str, codec: str,
) -> None:  # fmt: skip
    root, shape = tmp_path / "store", [*capture(demo_model, dtype), "--codec", codec]
    geometry = ["--chunk-rows", 64, "--shard-rows", 2048]
    planned = said(capfd, "plan", dataset, *shape, *geometry, "--dest", tmp_path)
    run("create", root, "--dataset", dataset, *shape, *geometry)
    run("fsck", root, code=4)
    run("extract", root, "--source", f"transformers:{demo_model}")
    assert said(capfd, "status", root)["samples_committed"] == SAMPLES
    assert said(capfd, "fsck", root)["bytes_checked"] > 0
    taken = sum(path.lstat().st_blocks for path in (root, *root.rglob("*"))) * 512
    assert taken <= planned["store_bytes"] * 1.005
    assert codec != "none" or taken >= planned["payload_bytes"]

    stored = HiddenStateDataset(root, verify="always")
    zarr = importlib.import_module("zarr")
    array = zarr.open_group(root / keys.ZARR, mode="r")["hidden_states"]
    starts = Store.open(root).samples.start
    assert len(stored) == SAMPLES
    for number, sample in enumerate(samples(SAMPLES)):
        item = stored[number]
        assert item["id"] == sample.id
        assert item["input_ids"].tolist() == sample.input_ids
        assert item["loss_mask"].tolist() == [bool(n) for n in sample.loss_mask]
        if number % 7 == 0:
            states = direct(demo_model, sample.input_ids, dtype)
            assert torch.equal(item["hidden_states"], states)
            rows = np.ascontiguousarray(array[starts[number] :][: len(sample.input_ids)])
            assert rows.tobytes() == states.contiguous().view(torch.uint8).numpy().tobytes()


def test_a_sample_that_the_model_cannot_take_is_absent_by_name(
    demo_model: Path, dataset: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with dataset.open("a") as file:
        file.write(json.dumps({"id": "endless", "input_ids": [65] * TOO_LONG}) + "\n")
    root, source = tmp_path / "store", ["--source", f"transformers:{demo_model}"]
    run("create", root, "--dataset", dataset, *capture(demo_model, "bfloat16"))
    summary = said(capfd, "extract", root, *source, code=4)
    assert (summary["samples_extracted"], summary["samples_failed"]) == (SAMPLES, 1)
    run("fsck", root, code=4)
    assert "samples: endless" in capfd.readouterr().out
    run("repair", root, *source, "--apply", code=4)
    with pytest.raises(SampleAbsent, match="endless"):
        HiddenStateDataset(root)
    dataset_without = HiddenStateDataset(root, absent="exclude")
    assert (len(dataset_without), dataset_without.excluded) == (SAMPLES, 1)
    zarr = importlib.import_module("zarr")
    array = zarr.open_group(root / keys.ZARR, mode="r")["hidden_states"]
    start = int(Store.open(root).samples.start[SAMPLES])
    bits = array[start : start + TOO_LONG].astype(np.uint32) << 16
    assert np.isnan(bits.view(np.float32)).all()


def test_the_demo_shows_each_step_and_ends_well(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    computed: list[int] = []
    close = TransformersSource.close

    def counted(source: TransformersSource) -> None:
        computed.append(source.forwards)
        close(source)

    monkeypatch.setattr(TransformersSource, "close", counted)
    run("demo")
    out = capfd.readouterr().out
    steps = [line.split()[2] for line in out.splitlines() if line.startswith("$ hsstore ")]
    walk = ["plan", "create", "extract", "status", "fsck", "fsck", "repair", "fsck"]
    assert steps == walk
    assert "flipped bit" in out
    assert "To mend it: hsstore repair" in out
    assert "all corrected" in out
    assert "the loss fell from" in out
    assert computed[0] == 64
    assert computed[1] < 8


def test_make_demo_is_this_demo() -> None:
    makefile = Path(__file__).parents[2]
    told = subprocess.run(
        ["/usr/bin/make", "--no-print-directory", "--dry-run", "demo"],
        cwd=makefile, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert told.stdout.splitlines()[-1].endswith("/hsstore demo")
