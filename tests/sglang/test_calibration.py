"""Calibration of real 0.5.23 servers, launched by the lines that server-flags prints."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hsstore.demo import corpus
from hsstore.errors import IdentityMismatch
from hsstore.extraction.sglang.calibration import make_calibrator, prompt_of
from hsstore.extraction.sglang.launch import launch
from hsstore.model.calibration import Calibration
from hsstore.model.capture import Layer
from hsstore.storage.calibrations import calibrations
from hsstore.storage.create import create
from hsstore.storage.store import Store
from hsstore.testing.sglang_prompt import Ask, PastedServer, Served, ask_by_json

pytestmark = [pytest.mark.sglang, pytest.mark.xdist_group("calibration")]

RELEASE = "0.5.23"
LIMITS = {"float32": 1e-5, "bfloat16": 0.06}


@dataclass(frozen=True)
class Case:
    """A server that runs, and the store that it was launched for."""

    store: Store
    served: Served
    ask: Ask
    model: Path


def new_store(root: Path, model: Path, layers: tuple[Layer, ...], dtype: str) -> Store:
    dataset = root.with_suffix(".jsonl")
    lines = [{"input_ids": s.input_ids[:100]} for s in corpus.samples(3)]
    dataset.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return create(root, dataset, model, layers, dtype=dtype)


@pytest.fixture(
    scope="module",
    params=[
        (("final",), "bfloat16"),
        ((3, 1, 2), "float32"),
    ],
    ids=lambda param: f"{'-'.join(map(str, param[0]))}-{param[1]}",
)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, demo_model: Path
) -> Iterator[Case]:
    layers, dtype = request.param
    folder = tmp_path_factory.mktemp("case")
    store = new_store(folder / "store", demo_model, layers, dtype)
    line = launch(store.identity, RELEASE, model_path=str(demo_model), device="cpu").shell()
    ids = tuple(sorted(k - 1 for k in layers if isinstance(k, int)))
    with PastedServer(line, RELEASE, demo_model, folder / "log") as server:
        served = Served(RELEASE, str(demo_model), ids or None)
        yield Case(store, served, ask_by_json(server.url, store.identity.capture), demo_model)


def calibrate(
    case: Case, root: Path, served: Served | None = None, ask: Ask | None = None
) -> Calibration:
    """Calibrate for a store of its own; the document that this added."""
    capture = case.store.identity.capture
    store = new_store(root, case.model, capture.layers, capture.dtype)
    make_calibrator(store, None, print, spool=False)(ask or case.ask, served or case.served)
    (found,) = calibrations(store)
    return found


def test_it_passes_by_reference(case: Case, tmp_path: Path) -> None:
    found = calibrate(case, tmp_path / "store")
    limit = LIMITS[case.store.identity.capture.dtype]
    assert found.method == "reference"
    assert max(layer.relative_error for layer in found.agreement) < limit


def test_it_passes_by_structure(case: Case, tmp_path: Path) -> None:
    found = calibrate(
        case, tmp_path / "store", Served(RELEASE, aux_layer_ids=case.served.aux_layer_ids)
    )
    assert found.method == "structure"
    assert "no reference was at hand" in found.doubt


def test_a_resume_is_within_noise(case: Case) -> None:
    for _ in range(2):
        make_calibrator(case.store, None, print, spool=False)(case.ask, case.served)
    assert len(calibrations(case.store)) == 1


def test_rows_that_are_wrong_are_refused(case: Case, tmp_path: Path) -> None:
    whole = case.ask(np.append(prompt_of(case.store), 1).astype(np.int32))
    with pytest.raises(IdentityMismatch, match="rows shifted: they come one token early"):
        calibrate(case, tmp_path / "store", ask=lambda ids: whole[1 : len(ids) + 1].copy())


def test_layers_in_another_order_or_of_nobody_are_refused(case: Case, tmp_path: Path) -> None:
    several = len(case.store.identity.capture.layers) > 1
    expected = "layer 1 of the store looks like the state after 2" if several else "other weights"

    def wrong(ids: NDArray[np.int32]) -> NDArray[Any]:
        states = case.ask(ids)
        return states[:, [0, 2, 1]].copy() if several else states[..., ::-1].copy()

    with pytest.raises(IdentityMismatch, match=expected):
        calibrate(case, tmp_path / "store", ask=wrong)
