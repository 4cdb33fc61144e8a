"""speculators' own trainer gets from a store, bit for bit, what it gets from its files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.interop.exporting import export_tree
from hsstore.storage.store import Store
from hsstore.testing.trainers import PROGRAMS, run_trainer

pytestmark = pytest.mark.trainers

STEPS = 20
PRE_NORM = (2, 4, 5, "final:pre")


def train(trees: Path, data: Path, work: Path, *words: object) -> str:
    """``speculators train``; no vLLM is there, so what is lacking ends it."""
    return run_trainer(
        "python", PROGRAMS / "speculators_on_cpu.py", "train",
        "--verifier-name-or-path", trees / "target", "--data-path", data, "--save-path", work,
        "--speculator-type", "eagle3", "--draft-arch", "llama", "--mask-token-id", 1,
        "--target-layer-ids", 2, 4, 5, "--draft-attn-impl", "eager",
        "--loss-implementation", "eager", "--total-seq-len", 96, "--train-data-ratio", 0.8,
        "--epochs", 4, "--max-steps", STEPS, "--lr", 1e-3, "--on-missing", "raise", *words,
    )  # fmt: skip


def losses(printed: str) -> list[float]:
    lines = [json.loads(line) for line in printed.splitlines() if line.startswith('{"')]
    values = [line["loss"] for line in lines]
    assert len(set(values)) == len(values) == STEPS
    return values


@pytest.fixture(scope="module")
def theirs(trees: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses over their own files."""
    work = tmp_path_factory.mktemp("files")
    return losses(train(trees, trees / "speculators", work, "--num-workers", 0))


def test_training_from_the_store_is_training_from_the_files(
    theirs: list[float], trees: Path, tokens_only: Path, store_of: Callable[..., Store],
    tmp_path: Path,
) -> None:  # fmt: skip
    printed = train(
        trees, tokens_only, tmp_path / "out", "--hidden-states-backend", "hsstore",
        "--hsstore-path", store_of(PRE_NORM).root, "--hsstore-verify", "always",
        "--num-workers", 1,  # spawned
    )  # fmt: skip
    assert losses(printed) == theirs


def test_training_from_an_exported_tree_is_training_from_the_files(
    theirs: list[float], trees: Path, store_of: Callable[..., Store], tmp_path: Path
) -> None:
    tree = tmp_path / "tree"
    export_tree("speculators", store_of(PRE_NORM).root, tree)
    assert losses(train(trees, tree, tmp_path / "out", "--num-workers", 0)) == theirs
