"""speculators' own trainer gets from a store, bit for bit, what it gets from its files."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.trainers import PROGRAMS, run_trainer

pytestmark = pytest.mark.trainers

STEPS = 20
PRE_NORM = (2, 4, 5, "final:pre")


def train(trees: Path, data: Path, work: Path, *words: object, fails: bool = False) -> str:
    """``speculators train``; no vLLM is there, so what is lacking ends it."""
    return run_trainer(
        "python", PROGRAMS / "speculators_on_cpu.py", "train",
        "--verifier-name-or-path", trees / "target", "--data-path", data, "--save-path", work,
        "--speculator-type", "eagle3", "--draft-arch", "llama", "--mask-token-id", 1,
        "--target-layer-ids", 2, 4, 5, "--draft-attn-impl", "eager",
        "--loss-implementation", "eager", "--total-seq-len", 96, "--train-data-ratio", 0.8,
        "--epochs", 4, "--max-steps", STEPS, "--lr", 1e-3, "--on-missing", "raise", *words,
        fails=fails,
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


@pytest.fixture
def tokens_only(trees: Path, tmp_path: Path) -> Path:
    """What speculators prepared, without the files of hidden states."""
    folder = tmp_path / "prepared"
    folder.mkdir()
    for file in (trees / "speculators").iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())
    return folder


@pytest.mark.parametrize("workers", [0, 2])
def test_training_from_the_store_is_training_from_the_files(
    workers: int, theirs: list[float], trees: Path, tokens_only: Path,
    store_of: Callable[..., Store], tmp_path: Path,
) -> None:  # fmt: skip
    store = store_of(PRE_NORM)
    printed = train(
        trees, tokens_only, tmp_path / "out", "--hidden-states-backend", "hsstore",
        "--hsstore-path", store.root, "--hsstore-verify", "always", "--num-workers", workers,
    )  # fmt: skip
    assert losses(printed) == theirs


def test_damage_ends_the_training_and_is_not_passed_off_as_missing(
    trees: Path, tokens_only: Path, store_of: Callable[..., Store], tmp_path: Path
) -> None:
    store = store_of(PRE_NORM)
    damage.flip_bit(store.root / keys.shard_file(0), 100)
    said = train(
        trees, tokens_only, tmp_path / "out", "--hidden-states-backend", "hsstore",
        "--hsstore-path", store.root, "--num-workers", 0, "--on-missing", "skip", fails=True,
    )  # fmt: skip
    assert "SampleDamaged" in said
    assert "hsstore fsck" in said


def test_a_store_of_the_other_norm_is_refused(
    trees: Path, tokens_only: Path, store_of: Callable[..., Store], tmp_path: Path
) -> None:
    store = store_of((2, 4, 5, "final"))
    said = train(
        trees, tokens_only, tmp_path / "out", "--hidden-states-backend", "hsstore",
        "--hsstore-path", store.root, "--num-workers", 0, fails=True,
    )  # fmt: skip
    assert "MalformedInput" in said
    assert "final:pre" in said
