from typing import Any

import numpy as np
import orjson
import pytest
from numpy.typing import NDArray

from hsstore.extraction.sglang.outcome import AttemptFailed
from hsstore.extraction.sglang.reply import Expected, Rows, checked_meta, json_states

EXPECTED = Expected("rid", 3, "default")
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def rows(dtype: str = "float32", order: tuple[int, ...] = (0, 1)) -> Rows:
    return Rows(2, 2, dtype, order)


def body(states: object = None, **changes: object) -> bytes:
    meta = {
        "id": "rid",
        "finish_reason": {"type": "length", "length": 1},
        "prompt_tokens": 3,
        "cached_tokens": 0,
        "num_retractions": 0,
        "weight_version": "default",
        "weight_versions": [{"version": "default", "start": 0, "end": 1}],
        "hidden_states": [VALUES.tolist()] if states is None else states,
    }
    kept = {name: value for name, value in (meta | changes).items() if value != "left out"}
    return orjson.dumps({"output_ids": [1], "meta_info": kept})


def states(raw: bytes, of: Rows | None = None) -> NDArray[Any]:
    return json_states(raw, EXPECTED, of or rows())


def test_rows_become_states() -> None:
    np.testing.assert_array_equal(states(body()), VALUES.reshape(3, 2, 2), strict=True)


def test_layers_take_the_stores_order() -> None:
    found = states(body(), rows(order=(1, 0)))
    np.testing.assert_array_equal(found, VALUES.reshape(3, 2, 2)[:, ::-1])
    assert found.flags.c_contiguous


def test_decoded_rows_are_left_out() -> None:
    assert states(body([VALUES.tolist(), [9.0] * 4])).shape == (3, 2, 2)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"id": "other"}, "id is 'other'"),
        ({"prompt_tokens": 2}, "prompt_tokens is 2, not 3"),
        ({"cached_tokens": 1}, "cached_tokens"),
        ({"num_retractions": 1}, "num_retractions"),
        ({"finish_reason": {"type": "stop"}}, "finish_reason is 'stop'"),
        ({"weight_version": "other"}, "weight versions"),
        ({"weight_versions": [{"version": "default"}, {"version": "new"}]}, "weight versions"),
        ({"id": "left out"}, "no answer"),
        ({"finish_reason": None}, "no answer"),
    ],
)
def test_a_reply_that_does_not_account_for_itself_is_not_believed(
    changes: dict[str, object], words: str
) -> None:
    with pytest.raises(AttemptFailed, match=words) as caught:
        states(body(**changes))
    assert caught.value.kind == "wrong-reply"


@pytest.mark.parametrize("raw", [b"", b"[]", b"{}", b'{"meta_info":5}', b"<html>"])
def test_something_else_is_no_reply(raw: bytes) -> None:
    with pytest.raises(AttemptFailed, match="no answer"):
        states(raw)


@pytest.mark.parametrize(
    "given",
    [
        [],
        [VALUES[1:].tolist()],
        [[*VALUES.tolist(), [0.0] * 4]],
        [VALUES[:, 1:].tolist()],
        [[[0.0], [0.0, 1.0], []]],
        [[["x"] * 4] * 3],
        [["1111"] * 3],
        {"0": 1},
        "left out",
    ],
)
def test_a_table_of_another_shape_is_not_believed(given: object) -> None:
    with pytest.raises(AttemptFailed) as caught:
        states(body(given))
    assert caught.value.kind == "wrong-shape"


def test_an_abort_is_told_as_one() -> None:
    raw = body(finish_reason={"type": "abort", "message": "by the operator"})
    with pytest.raises(AttemptFailed, match="by the operator") as caught:
        states(raw)
    assert caught.value.kind == "aborted"


def test_a_null_is_a_value_that_is_not_finite() -> None:
    given: list[list[float | None]] = [[None, 0.0, 0.0, 0.0], *VALUES[1:].tolist()]
    for dtype in ("float32", "float16", "bfloat16"):
        with pytest.raises(AttemptFailed) as caught:
            states(body([given]), rows(dtype))
        assert caught.value.kind == "non-finite"


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_what_the_stores_dtype_cannot_hold_is_of_another_dtype(dtype: str) -> None:
    exact = np.array([[1.5, -2.0, 0.25, 96.0]] * 3, np.float32)
    found = states(body([exact.tolist()]), rows(dtype)).reshape(3, 4)
    if dtype == "bfloat16":
        found = (found.astype(np.uint32) << 16).view(np.float32)
    np.testing.assert_array_equal(found, exact)
    exact[1, 1] = 1.0001
    with pytest.raises(AttemptFailed) as caught:
        states(body([exact.tolist()]), rows(dtype))
    assert caught.value.kind == "wrong-dtype"


def test_older_releases_name_one_weight_version_or_none() -> None:
    assert checked_meta(body(weight_versions="left out"), EXPECTED)
    assert checked_meta(body(weight_versions="left out", weight_version="left out"), EXPECTED)
