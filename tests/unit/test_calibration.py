"""The calibration document: what it refuses, and that nothing is lost on its way."""

import dataclasses
from typing import Any

import pytest

from hsstore.errors import InvalidDocument
from hsstore.model import keys
from hsstore.model.calibration import (
    PROJECTIONS,
    Agreement,
    Calibration,
    Engine,
    Norm,
    norm_of,
    projection_bits,
)
from hsstore.model.capture import Layer
from hsstore.model.document import seal, unseal

FOUND = Calibration(
    store="0" * 32,
    number=3,
    when="2026-01-31T12:00:00Z",
    method="reference",
    engine=Engine("sglang", "0.5.23", "spool", (0, "final")),
    layers=(1, "final"),
    norm="post",
    agreement=(Agreement(1.5e-7, 1.0), Agreement(0.0, 0.25)),
    doubt="",
    input_ids=(5, 6, 7),
    sketch=((0.1,) * 3 * PROJECTIONS, (-1e30, 2.5, 0.0) * PROJECTIONS),
)


def test_it_survives_the_disk_but_for_rounding_to_float32() -> None:
    again = Calibration.from_document(unseal(seal(FOUND.to_document()), "calibration"))
    assert dataclasses.replace(again, sketch=FOUND.sketch) == FOUND
    for kept, given in zip(again.sketch, FOUND.sketch, strict=True):
        assert kept == pytest.approx(given, rel=1e-7)
    assert Calibration.from_document(unseal(seal(again.to_document()), "calibration")) == again


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"agreement": ()}, "agreement: not one item a layer"),
        ({"method": "structure"}, "agreement: not one item a layer"),
        ({"layers": (1,)}, r"engine.layers: not 1 items.*sketch: not 1 layers"),
        ({"layers": (1, -2)}, r"layers\[1\]: -2 is below 0"),
        ({"layers": (1, "last")}, r"layers\[1\]: 'last' is none of"),
        ({"norm": "pre"}, "norm: not what the layers say"),
        ({"input_ids": ()}, "input_ids: empty"),
        ({"input_ids": (1, 2)}, "sketch: not 2 layers of 48 values"),
        ({"sketch": ((), ())}, r"sketch\[0\]: not 8 hexadecimal digits"),
        ({"method": "guess"}, "method: 'guess' is none of"),
    ],
)
def test_what_does_not_fit_is_named(change: dict[str, Any], told: str) -> None:
    wrong = dataclasses.replace(FOUND, **change)
    with pytest.raises(InvalidDocument, match=told):
        Calibration.from_document(unseal(seal(wrong.to_document()), "calibration"))


def test_a_sketch_of_other_digits_is_named() -> None:
    document = FOUND.to_document() | {"sketch": ["zz" * 4, "00"]}
    with pytest.raises(InvalidDocument, match=r"sketch\[0\]: not 8.*sketch\[1\]: not 8"):
        Calibration.from_document(unseal(seal(document), "calibration"))


@pytest.mark.parametrize(
    ("layers", "norm"),
    [
        ((1, "final"), "post"),
        ((1, "final:pre"), "pre"),
        (("final:pre", "final"), "both"),
        ((1, 2), "none"),
    ],
)
def test_the_norm_follows_from_the_layers(layers: tuple[Layer, ...], norm: Norm) -> None:
    assert norm_of(layers) == norm


def test_projections_are_fixed_for_ever() -> None:
    assert projection_bits(0, 17).hex() == "b5df14"
    assert len({projection_bits(n, 512) for n in range(PROJECTIONS)}) == PROJECTIONS
    assert projection_bits(3, 7168)[:2] == projection_bits(3, 16)


def test_its_name_is_read_back() -> None:
    assert keys.calibration(12) == "calibration/00000012.json"
    assert keys.read_calibration("00000012.json") == 12
    assert keys.read_calibration("12.json") is None
