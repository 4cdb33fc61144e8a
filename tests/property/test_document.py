import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsstore.errors import StoreError
from hsstore.model.document import canonical, seal, unseal

names = st.text(st.characters(codec="utf-8"), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | names,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=4),
    max_leaves=5,
)
documents = st.dictionaries(names.filter(lambda n: n not in ("format", "kind", "seal")), values)


@given(documents)
def test_what_is_sealed_can_be_unsealed(members: dict[str, object]) -> None:
    document = {**members, "format": 1, "kind": "note"}
    raw = seal(document)
    back = unseal(raw, "note")
    assert {k: v for k, v in back.items() if k != "seal"} == document
    assert canonical(back) == raw


@given(documents, st.data())
def test_any_changed_byte_is_noticed(members: dict[str, object], data: st.DataObject) -> None:
    raw = bytearray(seal({**members, "format": 1, "kind": "note"}))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(StoreError):
        unseal(bytes(raw), "note")


@given(documents, st.data())
def test_removed_and_added_bytes_are_noticed(
    members: dict[str, object], data: st.DataObject
) -> None:
    raw = seal({**members, "format": 1, "kind": "note"})
    at = data.draw(st.integers(0, len(raw)))
    piece = data.draw(st.binary(min_size=1, max_size=3))
    for changed in (raw[:at] + piece + raw[at:], raw[:at] + raw[at + 1 :]):
        if changed != raw:
            with pytest.raises(StoreError):
                unseal(changed, "note")


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_politely(raw: bytes) -> None:
    with pytest.raises(StoreError):
        unseal(raw, "note")
