"""SpecForge's own training code gets from a store, bit for bit, what it gets from its files."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.interop.exporting import export_tree
from hsstore.storage.store import Store
from hsstore.testing.trainers import PROGRAMS, run_trainer

pytestmark = pytest.mark.trainers

STEPS = 20
DRAFT = {
    "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 64,
    "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
    "num_hidden_layers": 1, "vocab_size": 128, "draft_vocab_size": 96, "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256, "hidden_act": "silu", "tie_word_embeddings": False,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
TRAINING = {
    "strategy": "eagle3", "num_epochs": 2, "max_steps": STEPS, "batch_size": 2,
    "learning_rate": 1e-3, "ttt_length": 3, "attention_backend": "sdpa", "log_interval": 1,
    "fsdp_sharding": "NO_SHARD",
}  # fmt: skip
LOGGED = re.compile(r"^step (\d+): .*'loss': ([0-9.e+-]+),", re.MULTILINE)


def configuration(folder: Path, trees: Path, tree: Path) -> Path:
    """A run as SpecForge's users write it."""
    folder.mkdir()
    (folder / "draft.json").write_text(json.dumps(DRAFT))
    run = {
        "run_id": "small",
        "output_dir": str(folder / "out"),
        "model": {
            "target_model_path": str(trees / "target"),
            "draft_model_config": str(folder / "draft.json"),
        },
        "data": {
            "hidden_states_path": str(tree),
            "max_length": 32,  # some samples are longer
            "cache_dir": str(folder / "cache"),
        },
        "training": TRAINING,
    }
    path = folder / "run.json"
    path.write_text(json.dumps(run))
    return path


def losses(printed: str) -> list[str]:
    """The loss of each step, as printed: the shortest decimal of its float."""
    found = LOGGED.findall(printed)
    assert [int(step) for step, _ in found] == list(range(1, STEPS + 1))
    values = [loss for _, loss in found]
    assert len(set(values)) == STEPS
    return values


@pytest.fixture(scope="module")
def run(trees: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("specforge") / "run"
    return configuration(folder, trees, trees / "specforge")


@pytest.fixture(scope="module")
def theirs(run: Path) -> list[str]:
    """What the command line of SpecForge logs over its own files."""
    return losses(run_trainer("specforge", "train", "-c", run))


@pytest.fixture(scope="module")
def store(store_of: Callable[..., Store]) -> Store:
    return store_of((2, 4, 5, "final"))


def test_training_from_the_store_is_training_from_the_files(
    run: Path, theirs: list[str], store: Store
) -> None:
    (vocabulary,) = run.parent.glob("cache/vocab_mapping/*.pt")
    program = PROGRAMS / "specforge_losses.py"
    assert losses(run_trainer("python", program, run, store.root, vocabulary)) == theirs


def test_training_from_an_exported_tree_is_training_from_the_files(
    theirs: list[str], trees: Path, store: Store, tmp_path: Path
) -> None:
    export_tree("specforge", store.root, tmp_path / "tree")
    run = configuration(tmp_path / "run", trees, tmp_path / "tree")
    assert losses(run_trainer("specforge", "train", "-c", run)) == theirs
