import pytest

from hsstore.capture.layer_ids import FAMILIES, Family, engine_ids
from hsstore.errors import InvalidDocument, MalformedInput
from hsstore.model.capture import Capture, Layer, ModelIdentity, parse_layers
from hsstore.model.document import validate


@pytest.mark.parametrize(
    ("typed", "expected"),
    [("0", (0,)), ("2, 30,final", (2, 30, "final")), ("final:pre,0", ("final:pre", 0))],
)
def test_layers_are_counted_in_blocks(typed: str, expected: tuple[Layer, ...]) -> None:
    assert parse_layers(typed, 32) == expected


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("32", "last of a 32-block model.*say 'final'"),
        ("33", "does not exist: the model has 32 blocks"),
        ("1,2,1", "layer 1 is listed twice"),
        ("final,final", "listed twice"),
        ("", "'' is no layer"),
        ("-1", "'-1' is no layer"),
        ("1.0", "is no layer"),
        ("²", "is no layer"),
        ("Final", "is no layer"),
        ("9" * 5000, "is no layer"),
    ],
)
def test_what_is_no_layer_is_refused(typed: str, told: str) -> None:
    with pytest.raises(MalformedInput, match=told):
        parse_layers(typed, 32)


@pytest.mark.parametrize(
    ("convention", "model_type", "expected"),
    [
        (None, "qwen3", (2, 29)),
        ("vllm", "qwen3", (2, 29)),
        ("specforge", "qwen3", (3, 30)),
        ("sglang", "llama", (3, 30)),
    ],
)
def test_other_tools_counts_are_converted(
    convention: str | None, model_type: str, expected: tuple[Layer, ...]
) -> None:
    assert parse_layers("2,29", 32, convention=convention, model_type=model_type) == expected


def test_the_last_block_of_another_count_has_no_number() -> None:
    with pytest.raises(MalformedInput, match="say 'final'"):
        parse_layers("31", 32, convention="specforge")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: str(family.model_type))
def test_sglangs_count_of_every_family_is_converted_or_refused(family: Family) -> None:
    typed = ("2,29", 32)
    if family.uneven:
        with pytest.raises(MalformedInput, match=f"model type '{family.model_type}' is not known"):
            parse_layers(*typed, convention="sglang", model_type=family.model_type)
    else:
        layers = parse_layers(*typed, convention="sglang", model_type=family.model_type)
        assert layers == (3, 30)
        assert model_types(family.model_type) == {(2, 29)}


def model_types(model_type: str) -> set[tuple[int, ...]]:
    """The ids that SGLang's classes of a model type are given for our layers 3 and 30."""
    classes = [name for name, family in FAMILIES.items() if family.model_type == model_type]
    return {engine_ids(name, (3, 30), 32) for name in classes}


@pytest.mark.parametrize("model_type", ["gpt2", "deepseek_v3", None])
def test_an_unknown_count_is_refused(model_type: str | None) -> None:
    with pytest.raises(MalformedInput, match="not known here"):
        parse_layers("2", 32, convention="sglang", model_type=model_type)
    with pytest.raises(MalformedInput, match="unknown layer convention 'other'"):
        parse_layers("2", 32, convention="other")


def test_documents_round_trip() -> None:
    capture = Capture((0, 7, "final:pre", "final"), "float16")
    assert Capture.from_document(capture.to_document()) == capture
    assert (capture.itemsize, capture.layers_text()) == (2, "0,7,final:pre,final")
    model = ModelIdentity("m", None, "fp8", "llama", 1, 2, 3, "0" * 32, None, "1" * 32)
    assert ModelIdentity.from_document(model.to_document()) == model


@pytest.mark.parametrize(
    ("capture", "told"),
    [
        ({"dtype": "int8", "layers": [0]}, "capture.dtype: 'int8' is none of"),
        ({"dtype": "float16", "layers": [-1]}, r"capture.layers\[0\]: -1 is below 0"),
        ({"dtype": "float16", "layers": ["last"]}, r"capture.layers\[0\]: 'last' is none of"),
        ({"dtype": "float16", "layers": [True]}, r"capture.layers\[0\]: not an integer"),
    ],
)
def test_a_capture_document_is_checked(capture: object, told: str) -> None:
    document = {"format": 1, "kind": "k", "seal": "0" * 32, "capture": capture}
    with pytest.raises(InvalidDocument, match=told):
        validate(document, {"capture": Capture.fields()})
