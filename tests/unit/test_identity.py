"""What hsstore.json may say of a store's shape: nothing that a reader would drown in."""

from dataclasses import replace

import pytest

from hsstore.errors import InvalidDocument
from hsstore.model.capture import Capture, ModelIdentity
from hsstore.model.document import seal, unseal
from hsstore.model.identity import KIND, StoreIdentity

DIGEST = "0" * 32
MODEL = ModelIdentity("m", None, None, "llama", 4, 8, 64, DIGEST, None, None)
GOOD = StoreIdentity(DIGEST, "now", MODEL, Capture((1, "final"), "bfloat16"), 16, 64, "none")


def read_back(identity: StoreIdentity) -> StoreIdentity:
    return StoreIdentity.from_document(unseal(seal(identity.to_document()), KIND))


def test_an_identity_is_read_back() -> None:
    assert read_back(GOOD) == GOOD


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"shard_rows": 65}, "65 rows is no positive multiple of 16-row"),
        ({"shard_rows": 8}, "8 rows is no positive multiple"),
        ({"chunk_rows": 1 << 40, "shard_rows": 1 << 40}, "bytes of a chunk"),
        ({"shard_rows": 1 << 40}, "rows of a shard"),
        ({"chunk_rows": 1, "shard_rows": 1 << 21}, "2097152 chunks of a shard"),
        ({"model": replace(MODEL, hidden_size=1 << 40)}, "bytes of a chunk"),
        ({"capture": Capture((), "bfloat16")}, "layers: empty"),
        ({"capture": Capture((1, "final", 1), "bfloat16")}, "1 is listed twice"),
        ({"capture": Capture((4,), "bfloat16")}, "4 of a model with 4 blocks"),
    ],
)
def test_a_shape_that_the_format_does_not_allow_is_refused(
    change: dict[str, object], told: str
) -> None:
    with pytest.raises(InvalidDocument, match=told):
        read_back(replace(GOOD, **change))  # type: ignore[arg-type]


def test_all_problems_are_told_at_once() -> None:
    bad = replace(GOOD, shard_rows=65, capture=Capture((9, 9), "bfloat16"))
    with pytest.raises(InvalidDocument, match=r"multiple.*listed twice.*9 of a model"):
        read_back(bad)


def test_an_integer_that_no_array_could_hold_is_refused() -> None:
    with pytest.raises(InvalidDocument, match=r"shard_rows: above 2\^63 - 1"):
        read_back(replace(GOOD, shard_rows=1 << 64))
