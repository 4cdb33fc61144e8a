"""What a dataset serves: layers, the trainers' items, other dtypes, cut and selected samples."""

import itertools
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hsstore.errors import InvalidDocument, MalformedInput, SampleDamaged
from hsstore.model import keys
from hsstore.model.capture import Layer
from hsstore.storage.store import Store
from hsstore.testing.sources import seeded_states
from hsstore.testing.stores import empty_store, fill, ids_of, key_of
from hsstore.training.dataset import HiddenStateDataset, Verify
from hsstore.views.item import Item
from hsstore.views.where import Where

LENGTHS = [5, 3, 9, 16, 1, 2]
FINAL: tuple[Layer, ...] = (1, 3, 5, "final")
PRE: tuple[Layer, ...] = (1, 3, 5, "final:pre")


def make(root: Path, layers: tuple[Layer, ...] = FINAL, **options: str) -> Store:
    return fill(empty_store(root, LENGTHS, layers=layers, **options))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """For tests that change nothing in it."""
    return make(tmp_path_factory.mktemp("views") / "store")


@pytest.fixture
def own(tmp_path: Path) -> Store:
    """For a test that damages it."""
    return make(tmp_path / "store")


def stored(store: Store, sample: int) -> Tensor:
    """[tokens, layers, hidden], from the source itself."""
    bits = torch.from_numpy(seeded_states(store.identity, ids_of(sample, LENGTHS[sample])))
    return bits.view(torch.bfloat16)


def memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


# -- layers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layers", "positions", "is_view"),
    [
        ((1, 3, 5, "final"), [0, 1, 2, 3], True),
        ((3, 5), [1, 2], True),
        ((1, 5), [0, 2], True),
        ((3, "final"), [1, 3], True),
        (("final",), [3], True),
        ((5, 1), [2, 0], False),
        ((1, 3, "final"), [0, 1, 3], False),
        (("final", 5, 3, 1), [3, 2, 1, 0], False),
    ],
)
def test_layers_come_in_the_order_asked_for(
    store: Store, layers: tuple[Layer, ...], positions: list[int], *, is_view: bool
) -> None:
    dataset = HiddenStateDataset(store.root, layers=layers)
    assert dataset.layers == layers
    out = torch.empty((16, *dataset.row_shape), dtype=dataset.stored_dtype)
    for sample in range(len(LENGTHS)):
        item = dataset.read_into(sample, out)
        assert torch.equal(item["hidden_states"], stored(store, sample)[:, positions])
        assert (memory(item["hidden_states"]) == memory(out)) is is_view
        assert torch.equal(dataset[sample]["hidden_states"], item["hidden_states"])


def test_layers_apart_are_never_copied(store: Store) -> None:
    wanted: tuple[Layer, ...] = ("final", 1, 5)
    dataset = HiddenStateDataset(store.root, view="by_layer", layers=wanted)
    out = torch.empty((16, *dataset.row_shape), dtype=dataset.stored_dtype)
    item = dataset.read_into(2, out)
    assert tuple(item["hidden_states"]) == wanted
    for layer, position in zip(wanted, (3, 0, 2), strict=True):
        rows = item["hidden_states"][layer]
        assert memory(rows) == memory(out)
        assert torch.equal(rows, stored(store, 2)[:, position])
    assert item["input_ids"].tolist() == ids_of(2, 9).tolist()


@pytest.mark.parametrize(
    ("layers", "problem"),
    [
        ((2,), r"does not have layer 2; choose among its layers: 1, 3, 5, final"),
        (("final:pre",), "does not have layer 'final:pre'"),
        ((1, 1), "names 1 twice"),
        ((), "names no layer"),
    ],
)
def test_layers_that_cannot_be_served_are_refused(
    store: Store, layers: tuple[Layer, ...], problem: str
) -> None:
    with pytest.raises(MalformedInput, match=problem) as caught:
        HiddenStateDataset(store.root, layers=layers)
    assert caught.value.place == str(store.root)


# -- the trainers' items ------------------------------------------------------------------------


def test_specforge_gets_what_its_normaliser_makes(store: Store) -> None:
    dataset = HiddenStateDataset(store.root, view="specforge")
    assert dataset.layers == FINAL
    for sample, tokens in enumerate(LENGTHS):
        item, states = dataset[sample], stored(store, sample)
        assert list(item) == ["attention_mask", "loss_mask", "target", "hidden_state", "input_ids"]
        mask = [0, *[1] * (tokens - 2), 0][-tokens:]
        for name, row in (
            ("attention_mask", [1] * tokens),
            ("loss_mask", mask),
            ("input_ids", ids_of(sample, tokens).tolist()),
        ):
            tensor: Tensor = item[name]  # type: ignore[literal-required]
            assert tensor.dtype == torch.int64
            assert tensor.tolist() == [row]
        assert torch.equal(item["hidden_state"], states[:, :3].flatten(1)[None])
        assert torch.equal(item["target"], states[None, :, 3])
        assert item["hidden_state"].dtype == item["target"].dtype == torch.bfloat16


def test_speculators_gets_what_its_dataset_returns(tmp_path: Path) -> None:
    store = make(tmp_path / "store", PRE)
    dataset = HiddenStateDataset(store.root, view="speculators")
    assert dataset.layers == PRE
    for sample, tokens in enumerate(LENGTHS):
        item, states = dataset[sample], stored(store, sample)
        for name, row in (
            ("input_ids", ids_of(sample, tokens).tolist()),
            ("loss_mask", [0] + [1] * (tokens - 1)),
            ("lengths", [tokens]),
            ("position_ids", list(range(tokens))),
        ):
            tensor: Tensor = item[name]  # type: ignore[literal-required]
            assert tensor.dtype == torch.int64
            assert tensor.tolist() == row
        assert torch.equal(item["hidden_states"], states[:, :3].flatten(1))
        assert torch.equal(item["verifier_last_hidden_states"], states[:, 3])
        assert len(item) == 6


def test_adjacent_auxiliary_layers_are_not_copied(store: Store) -> None:
    dataset = HiddenStateDataset(store.root, view="specforge")
    out = torch.empty((16, *dataset.row_shape), dtype=dataset.stored_dtype)
    item = dataset.read_into(3, out)
    assert memory(item["hidden_state"]) == memory(item["target"]) == memory(out)


@pytest.mark.parametrize("stored_order", [("final", 5, 1, 3), (5, "final", 3, 2, 1)])
def test_auxiliary_layers_ascend_however_they_are_stored(
    tmp_path: Path, stored_order: tuple[Layer, ...]
) -> None:
    store = make(tmp_path / "store", stored_order)
    item = HiddenStateDataset(store.root, view="specforge", layers=FINAL)[2]
    ordered = stored(store, 2)[:, [stored_order.index(layer) for layer in FINAL]]
    assert torch.equal(item["hidden_state"], ordered[:, :3].flatten(1)[None])
    assert torch.equal(item["target"], ordered[None, :, 3])


def test_a_store_with_both_norms_serves_both_trainers(tmp_path: Path) -> None:
    store = make(tmp_path / "store", (1, 3, 5, "final:pre", "final"))
    target = HiddenStateDataset(store.root, view="specforge")[2]["target"]
    last = HiddenStateDataset(store.root, view="speculators")[2]["verifier_last_hidden_states"]
    assert torch.equal(target[0], stored(store, 2)[:, 4])
    assert torch.equal(last, stored(store, 2)[:, 3])


def test_the_other_side_of_the_norm_is_refused(tmp_path: Path) -> None:
    for layers, view, problem in (
        (PRE, "specforge", r"after the final norm \('final'\), and the store has it before the"),
        (FINAL, "speculators", r"before the final norm \('final:pre'\), and the store has it aft"),
        ((1, 3, 5), "specforge", "after the final norm .* the store has no last state"),
    ):
        store = make(tmp_path / f"{view}-{len(layers)}", layers)
        with pytest.raises(MalformedInput, match=problem) as caught:
            HiddenStateDataset(store.root, view=view)  # type: ignore[call-overload]
        assert "never converted" in str(caught.value)
        assert caught.value.place == str(store.root)


@pytest.mark.parametrize(
    ("stored_layers", "layers", "problem"),
    [
        (FINAL, (5, 3, 1, "final"), "the view's layers are 1,3,5,final, in this order, not 5,3,1"),
        (FINAL, (1, 3, 5), "the view's layers are 1,3,5,final, in this order, not 1,3,5"),
        (FINAL, (1, 3, "final"), "takes 3 auxiliary layers, not 2"),
        ((1, 2, 3, 5, "final"), None, "takes 3 auxiliary layers, not 4"),
        (("final",), None, "needs auxiliary layers"),
    ],
)
def test_layers_that_the_trainer_does_not_take_are_refused(
    tmp_path: Path,
    stored_layers: tuple[Layer, ...],
    layers: tuple[Layer, ...] | None,
    problem: str,
) -> None:
    store = make(tmp_path / "store", stored_layers)
    with pytest.raises(MalformedInput, match=problem):
        HiddenStateDataset(store.root, view="specforge", layers=layers)


def test_a_mask_of_specforge_leaves_the_next_read_alone(store: Store) -> None:
    dataset = HiddenStateDataset(store.root, view="specforge")
    dataset[2]["loss_mask"].fill_(7)
    assert dataset[2]["loss_mask"].tolist() == [[0, *[1] * 7, 0]]


def tokens_of(item: Item) -> tuple[str, int, torch.Size]:
    return item["id"], len(item["input_ids"]), item["hidden_states"].shape


def test_a_function_is_a_view_too(store: Store) -> None:
    dataset = HiddenStateDataset(store.root, view=tokens_of, layers=("final", 1))
    assert dataset[2] == (key_of(2), 9, (9, 2, 8))
    assert pickle.loads(pickle.dumps(dataset))[2] == dataset[2]  # noqa: S301 - our own bytes


@pytest.mark.parametrize("view", ["raw", "by_layer", "specforge"])
def test_every_view_goes_to_spawned_workers(store: Store, view: str) -> None:
    dataset = HiddenStateDataset(store.root, view=view)  # type: ignore[call-overload]
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301 - our own bytes
    assert list(copy[1]) == list(dataset[1])


def test_unknown_views_and_dtypes_are_refused(store: Store) -> None:
    with pytest.raises(ValueError, match="view is 'eagle', not one of raw, by_layer, specforge"):
        HiddenStateDataset(store.root, view="eagle")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"dtype is torch.int64, not one of"):
        HiddenStateDataset(store.root, dtype=torch.int64)


# -- dtype --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_states_are_cast_in_every_view(store: Store, dtype: torch.dtype) -> None:
    expected = stored(store, 2).to(dtype)
    raw = HiddenStateDataset(store.root, dtype=dtype)[2]
    apart = HiddenStateDataset(store.root, view="by_layer", dtype=dtype)[2]
    trainer = HiddenStateDataset(store.root, view="specforge", dtype=dtype)[2]
    assert raw["hidden_states"].dtype == dtype
    assert torch.equal(raw["hidden_states"], expected)
    assert torch.equal(apart["hidden_states"][5], expected[:, 2])
    assert torch.equal(trainer["hidden_state"][0], expected[:, :3].flatten(1))
    assert torch.equal(trainer["target"][0], expected[:, 3])


def test_a_value_too_large_for_the_dtype_is_never_infinite(own: Store) -> None:
    extent, row_bytes = own.samples.extent(2), own.identity.geometry.row_bytes
    path = own.root / keys.shard_file(extent.shard)
    raw = bytearray(path.read_bytes())
    large = torch.tensor([1e5], dtype=torch.bfloat16).view(torch.uint8).tolist()
    raw[extent.first_row * row_bytes : extent.first_row * row_bytes + 2] = bytes(large)
    path.write_bytes(raw)
    assert HiddenStateDataset(own.root, dtype=torch.float32)[2]["hidden_states"].max() > 65504
    with pytest.raises(MalformedInput, match=r"sample 'sample-2' has values beyond 65504"):
        HiddenStateDataset(own.root, dtype=torch.float16)[2]


# -- length -------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_long_samples_are_cut_at_the_right(tmp_path: Path, codec: str) -> None:
    store = make(tmp_path / "store", codec=codec)
    modes: tuple[Verify, ...] = ("never", "always")
    for verify, longest in itertools.product(modes, (1, 4, 6, 8, 9, 11, 99)):
        dataset = HiddenStateDataset(store.root, verify=verify, max_length=longest)
        lengths = [min(tokens, longest) for tokens in LENGTHS]
        assert dataset.lengths.tolist() == lengths
        for sample, tokens in enumerate(lengths):
            item = dataset[sample]
            assert item["input_ids"].tolist() == ids_of(sample, LENGTHS[sample])[:tokens].tolist()
            assert item["loss_mask"].shape == (tokens,)
            assert torch.equal(item["hidden_states"], stored(store, sample)[:tokens])


def test_what_lies_behind_the_cut_is_not_read(own: Store) -> None:
    """Sample 3 has four chunks of 4 rows; the third is damaged."""
    extent = own.samples.extent(3)
    path = own.root / keys.shard_file(extent.shard)
    raw = bytearray(path.read_bytes())
    raw[(extent.first_row + 8) * own.identity.geometry.row_bytes] ^= 1
    path.write_bytes(raw)
    for longest in (8, 5, 3):
        HiddenStateDataset(own.root, verify="always", max_length=longest)[3]
    for longest in (9, 12, 13):
        with pytest.raises(SampleDamaged, match="chunk 2"):
            HiddenStateDataset(own.root, verify="always", max_length=longest)[3]


def test_specforge_clears_the_last_position_that_is_served(store: Store) -> None:
    item = HiddenStateDataset(store.root, view="specforge", max_length=4)[2]
    assert item["loss_mask"].tolist() == [[0, 1, 1, 0]]
    assert item["target"].shape == (1, 4, 8)


@pytest.mark.parametrize("value", [-1, "3", 2.5, float("nan"), True])
@pytest.mark.parametrize("name", ["max_length", "max_skipped"])
def test_numbers_that_are_none_are_refused(store: Store, name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} is .*must be a whole number, at least"):
        HiddenStateDataset(store.root, **options)


@pytest.mark.parametrize("name", ["min_length", "max_length", "min_loss_tokens"])
@pytest.mark.parametrize("value", [-1, "3", 2.5, float("nan")])
def test_bounds_that_are_no_numbers_are_refused(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=f"{name} is .*must be a whole number, at least"):
        Where(**options)


@pytest.mark.parametrize("name", ["keys", "key_prefixes"])
@pytest.mark.parametrize("value", [3, [3], ["a", 1], iter(["a"])])
def test_keys_that_are_no_texts_are_refused(name: str, value: object) -> None:
    options: dict[str, Any] = {name: value}
    with pytest.raises(ValueError, match=rf"^{name} (is|has)"):
        Where(**options)


@pytest.mark.parametrize(
    "options",
    [{"where": {"min_length": 3}}, {"layers": "final"}, {"layers": 3}, {"layers": [True]}],
)
def test_other_options_of_another_type_are_refused(store: Store, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ValueError, match=f"^{name}"):
        HiddenStateDataset(store.root, **options)


# -- where --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("where", "left", "counts"),
    [
        (Where(), [0, 1, 2, 3, 4, 5], {}),
        (Where(min_length=3), [0, 1, 2, 3], {"min_length": 2}),
        (Where(min_length=3, max_length=9), [0, 1, 2], {"min_length": 2, "max_length": 1}),
        (Where(min_loss_tokens=4), [0, 2, 3], {"min_loss_tokens": 3}),
        (Where(keys={"sample-5", "sample-0"}), [0, 5], {"keys": 4}),
        (Where(key_prefixes=["sample-3", "sample-4"]), [3, 4], {"key_prefixes": 4}),
        (Where(min_length=2, keys=["sample-4", "sample-1"]), [1], {"min_length": 1, "keys": 4}),
    ],
)
def test_samples_are_selected_by_their_tokens(
    store: Store, where: Where, left: list[int], counts: dict[str, int]
) -> None:
    dataset = HiddenStateDataset(store.root, where=where)
    assert [dataset[n]["id"] for n in range(len(dataset))] == [key_of(n) for n in left]
    assert dataset.lengths.tolist() == [LENGTHS[n] for n in left]
    assert dataset.filtered == counts


def test_a_selection_reads_no_states_and_is_logged(
    own: Store, caplog: pytest.LogCaptureFixture
) -> None:
    for shard in own.committed():
        (own.root / keys.shard_file(shard)).unlink()
    with caplog.at_level(logging.INFO):
        dataset = HiddenStateDataset(own.root, where=Where(min_length=3, min_loss_tokens=4))
    assert len(dataset) == 3
    assert "3 samples selected, left out 1 by min_loss_tokens, 2 by min_length" in caplog.text


def test_loss_tokens_count_as_far_as_they_are_served(store: Store) -> None:
    dataset = HiddenStateDataset(store.root, where=Where(min_loss_tokens=3), max_length=4)
    assert [dataset[n]["id"] for n in range(len(dataset))] == [key_of(n) for n in (0, 2, 3)]
    with pytest.raises(MalformedInput):
        HiddenStateDataset(store.root, where=Where(min_loss_tokens=4), max_length=4)


@pytest.mark.parametrize(
    ("where", "problem"),
    [
        (Where(keys=["sample-0", "sampel-1"]), "fits 1 of keys, first: 'sampel-1'"),
        (Where(key_prefixes=["sampel"]), "fits 1 of key_prefixes, first: 'sampel'"),
        (Where(min_length=17), "selects no sample: 0 samples selected, left out 6 by min_length"),
    ],
)
def test_a_selection_that_cannot_be_meant_is_refused(
    store: Store, where: Where, problem: str
) -> None:
    with pytest.raises(MalformedInput, match=problem):
        HiddenStateDataset(store.root, where=where)


def test_one_text_is_no_collection_of_keys() -> None:
    with pytest.raises(ValueError, match="keys is one text"):
        Where(keys="sample-0")


def test_tokens_that_cannot_be_trusted_select_nothing(own: Store) -> None:
    path = own.root / keys.tokens(0, 1)
    path.write_bytes(path.read_bytes() + b"x")
    assert len(HiddenStateDataset(own.root, where=Where(min_length=3))) == 4
    with pytest.raises(InvalidDocument, match="the token file differs from the plan"):
        HiddenStateDataset(own.root, where=Where(min_loss_tokens=1))


def test_a_selection_names_what_it_serves(store: Store) -> None:
    options = [
        HiddenStateDataset(store.root),
        HiddenStateDataset(store.root, where=Where(min_length=3)),
        HiddenStateDataset(store.root, max_length=4),
    ]
    assert len({dataset.fingerprint for dataset in options}) == 3
    assert HiddenStateDataset(store.root, view="specforge").fingerprint == options[0].fingerprint


def test_memory_that_is_filled_has_what_is_stored(store: Store) -> None:
    dataset = HiddenStateDataset(store.root, max_length=6)
    out, ids, mask = dataset.memory(8).fill_(1), torch.full((8,), 7), torch.ones(8).bool()
    assert dataset.fill(2, out, ids, mask) == key_of(2)
    assert torch.equal(out[:6], stored(store, 2)[:6])
    assert ids.tolist() == [*ids_of(2, 9)[:6].tolist(), 7, 7]
    assert mask.tolist() == [False, *[True] * 7]
    assert out[6:].eq(1).all()
    assert dataset.shards.tolist() == [store.samples.extent(n).shard for n in range(6)]


@pytest.mark.parametrize(
    "options", [{"layers": (1,)}, {"dtype": torch.float32}, {"view": "by_layer"}]
)
def test_memory_is_not_filled_past_a_view(store: Store, options: dict[str, object]) -> None:
    dataset = HiddenStateDataset(store.root, **options)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="fill reads what is stored"):
        dataset.fill(0, dataset.memory(5), torch.zeros(5).long(), torch.zeros(5).bool())
