"""A view serves, bit for bit, the items that a trainer's own code makes of its own files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hsstore.storage.store import Store
from hsstore.testing.trainers import PROGRAMS, run_trainer

pytestmark = pytest.mark.trainers

SAMPLES = 24


@pytest.fixture(scope="module")
def compared(trees: Path, store_of: Callable[..., Store]) -> dict[str, Any]:
    stores = store_of((2, 4, 5, "final")).root, store_of((2, 4, 5, "final:pre")).root
    found: dict[str, Any] = json.loads(
        run_trainer("python", PROGRAMS / "view_items.py", trees, *stores)
    )
    return found


@pytest.mark.parametrize("length", ["specforge", "specforge, cut"])
def test_items_and_batches_are_those_of_specforge(compared: dict[str, Any], length: str) -> None:
    assert compared[length] == {"items": [], "older": [], "batch": []}


def test_items_and_batches_are_those_of_speculators(compared: dict[str, Any]) -> None:
    assert compared["speculators"] == {"items": [], "batch": []}


def test_samples_without_a_token_to_learn_from_are_left_out_as_by_speculators(
    compared: dict[str, Any],
) -> None:
    ours, theirs = compared["kept"]
    assert ours == theirs
    assert 0 < ours < SAMPLES
