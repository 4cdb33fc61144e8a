"""What the plug-ins answer where a store is whole, damaged, lacking or of another kind."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.trainers import PROGRAMS, run_trainer

pytestmark = pytest.mark.trainers

SAMPLES = 24
PRE, POST = (2, 4, 5, "final:pre"), (2, 4, 5, "final")
LACKING = "prompt-7"


@pytest.fixture(scope="module")
def stores(store_of: Callable[..., Store]) -> dict[str, str]:
    made = {
        "whole": store_of(PRE),
        "damaged": store_of(PRE),
        "lacking": store_of(PRE, failing={LACKING: "too long"}),
        "post": store_of(POST),
        "post damaged": store_of(POST),
        "post lacking": store_of(POST, failing={LACKING: "too long"}),
        "more layers": store_of((2, 4, 5, "final:pre", "final")),
    }
    for name in ("damaged", "post damaged"):
        damage.flip_bit(made[name].root / keys.shard_file(0), 100)
    return {name: str(store.root) for name, store in made.items()}


@pytest.fixture(scope="module")
def answers(
    stores: dict[str, str], trees: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    files = trees / "speculators"
    prepared = tmp_path_factory.mktemp("answers") / "prepared"
    prepared.mkdir()
    for file in files.glob("*.*"):
        (prepared / file.name).write_bytes(file.read_bytes())
    program = PROGRAMS / "plug_in_answers.py"
    printed = run_trainer("python", program, prepared, files, *stores.values())
    found: dict[str, Any] = json.loads(printed)
    return found


def one_other(answers: list[str], usual: str) -> tuple[int, str]:
    """Where the only answer is that is not the usual one, and which."""
    (other,) = [(n, each) for n, each in enumerate(answers) if each != usual]
    return other


def test_a_whole_store_gives_speculators_what_its_files_give(
    answers: dict[str, Any], stores: dict[str, str]
) -> None:
    for store in ("whole", "more layers"):
        assert answers["speculators"][stores[store]] == ["same"] * SAMPLES


def test_rows_find_their_samples_by_their_tokens(answers: dict[str, Any]) -> None:
    assert answers["reversed"] == ["same"] * SAMPLES
    assert answers["other tokens"].startswith("malformed-input")


def test_what_a_store_lacks_is_missing_and_what_is_damaged_is_not(
    answers: dict[str, Any], stores: dict[str, str]
) -> None:
    assert one_other(answers["speculators"][stores["lacking"]], "same") == (7, "missing")
    row, said = one_other(answers["speculators"][stores["damaged"]], "same")
    assert row == 0
    assert said.startswith("sample-damaged")
    assert "hsstore fsck" in said


def test_specforge_gets_what_is_there_and_no_other(
    answers: dict[str, Any], stores: dict[str, str]
) -> None:
    of = answers["specforge"]
    assert of[stores["post"]] == ["something"] * SAMPLES
    assert of[stores["more layers"]] == ["something"] * SAMPLES
    assert of[stores["post lacking"]] == ["something"] * (SAMPLES - 1)
    row, said = one_other(of[stores["post damaged"]], "something")
    assert (row, said.startswith("sample-damaged")) == (0, True)


def test_a_store_of_the_other_norm_is_refused(
    answers: dict[str, Any], stores: dict[str, str]
) -> None:
    for trainer, store in (("speculators", "post"), ("specforge", "whole")):
        said = answers[trainer][stores[store]]
        assert said.startswith("malformed-input")
        assert "never converted" in said


def test_the_layers_are_those_that_the_drafter_is_built_for(answers: dict[str, Any]) -> None:
    assert answers["default layers"] == "something"
    assert "does not have layer 1" in answers["other layers"]
    assert "--hsstore-layers" in answers["pretrained"]
    assert answers["pretrained, told"] == "something"
    assert "--hsstore-path" in answers["no store"]
