from hsstore.model.capture import Capture, ModelIdentity
from hsstore.model.source import Origin, differences, expected_match

MODEL = ModelIdentity("m", "main", None, "llama", 2, 8, 10, "0" * 32, "1" * 32, None)
EXPECTED = expected_match(MODEL, Capture((1, "final"), "bfloat16"))


def test_a_store_demands_its_model_its_layers_and_its_dtype() -> None:
    assert EXPECTED == {
        "config": "0" * 32,
        "weights": "1" * 32,
        "quantisation": "none",
        "revision": "main",
        "tokenizer": None,
        "dtype": "bfloat16",
        "layers": "1,final",
    }


def test_nothing_differs_from_itself_or_from_the_unknown() -> None:
    assert differences(EXPECTED, EXPECTED) == []
    assert differences(EXPECTED, dict.fromkeys(EXPECTED)) == []
    assert differences(EXPECTED, {"tokenizer": "x", "unheard-of": "y"}) == []


def test_every_difference_is_named() -> None:
    found = {**EXPECTED, "weights": "2" * 32, "layers": "2,final"}
    assert differences(EXPECTED, found) == [
        "layers is '2,final', not '1,final'",
        f"weights is '{'2' * 32}', not '{'1' * 32}'",
    ]


def test_an_origin_round_trips() -> None:
    origin = Origin(EXPECTED, {"engine": "a"})
    assert Origin.from_document(origin.to_document()) == origin
    assert Origin.fields()(origin.to_document(), "") == []
