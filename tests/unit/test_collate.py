"""Items to batches: padded and packed say the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from hsstore.demo.drafter import Drafter, _loss
from hsstore.errors import MalformedInput
from hsstore.training.collate import pack_collate, pad_collate
from hsstore.training.dataset import Item
from hsstore.views.eagle3 import DraftLayers
from hsstore.views.plain import ByLayerView
from hsstore.views.specforge import SpecForgeView
from hsstore.views.speculators import SpeculatorsView


def item(number: int, tokens: int) -> Item:
    random = torch.Generator().manual_seed(number)
    return Item(
        id=f"sample-{number}",
        input_ids=torch.randint(1, 50, (tokens,), generator=random),
        loss_mask=torch.ones(tokens, dtype=torch.bool),
        hidden_states=torch.randn((tokens, 3, 8), generator=random).bfloat16(),
    )


ITEMS = [item(0, 3), item(1, 1), item(2, 4)]


def test_a_packed_batch_tells_its_samples_apart() -> None:
    batch = pack_collate(ITEMS, 10)
    assert batch["id"] == ["sample-0", "sample-1", "sample-2"]
    assert batch["document_ids"].tolist() == [[0, 0, 0, 1, 2, 2, 2, 2, -1, -1]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1, 2, 3, 0, 0]]
    assert batch["lengths"].tolist() == [3, 1, 4]
    assert batch["cumulative_lengths"].tolist() == [0, 3, 4, 8]
    assert batch["cumulative_lengths"].dtype == torch.int32
    assert batch["input_ids"].dtype == batch["document_ids"].dtype == torch.int64
    assert batch["loss_mask"].tolist() == [[True] * 8 + [False] * 2]
    assert batch["input_ids"][0, 8:].tolist() == [0, 0]
    assert batch["hidden_states"].shape == (1, 10, 3, 8)
    assert batch["hidden_states"].dtype == torch.bfloat16
    assert not batch["hidden_states"][0, 8:].any()
    bounds = batch["cumulative_lengths"].tolist()
    for number, each in enumerate(ITEMS):
        rows = slice(bounds[number], bounds[number + 1])
        assert torch.equal(batch["input_ids"][0, rows], each["input_ids"])
        assert torch.equal(batch["hidden_states"][0, rows], each["hidden_states"])


def test_an_exact_batch_has_no_padding() -> None:
    batch = pack_collate(ITEMS)
    assert batch["hidden_states"].shape == (1, 8, 3, 8)
    assert batch["document_ids"].tolist() == [[0, 0, 0, 1, 2, 2, 2, 2]]


def test_more_tokens_than_a_batch_holds_are_refused() -> None:
    with pytest.raises(ValueError, match="3 samples of 8 tokens for a batch of 7"):
        pack_collate(ITEMS, 7)


def test_a_packed_batch_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no items"):
        pack_collate([])


def test_a_drafter_loses_the_same_by_padded_and_by_packed_batches() -> None:
    """Every token counts here, the first of each sample too: no sample may learn from another."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        drafter = Drafter(auxiliary_layers=2, hidden_size=8, vocabulary=50)
    padded = _loss(drafter, pad_collate(ITEMS))
    assert _loss(drafter, pack_collate(ITEMS, 10)).item() == pytest.approx(padded.item(), rel=1e-5)
    assert _loss(drafter, pack_collate(ITEMS)).item() == pytest.approx(padded.item(), rel=1e-5)


OTHERS = {
    "by_layer": ByLayerView((1, "final"), (0, 2)),
    "specforge": SpecForgeView(DraftLayers((0, 1, 2, "final"), (0, 1, 2), 2)),
    "speculators": SpeculatorsView(DraftLayers((0, 1, "final:pre"), (0, 1), 2)),
    "a function": lambda each: each["hidden_states"],
}


@pytest.mark.parametrize("view", OTHERS.values(), ids=OTHERS)
@pytest.mark.parametrize("collate", [pad_collate, pack_collate])
def test_items_of_another_view_are_refused(
    view: Callable[[Item], Any], collate: Callable[[list[Item]], object]
) -> None:
    with pytest.raises(MalformedInput, match='view="raw"'):
        collate([view(each) for each in ITEMS])
