from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsstore.errors import MalformedInput
from hsstore.model.assessment import Assessment, Reserve, Target, alternatives, parse_size
from hsstore.model.capacity import Workload, plan_capacity

KIMI = Workload(tokens=87_793_206, samples=37_312, layers=4, hidden_size=7168)
ENDLESS = Target(available_bytes=1 << 60, available_inodes=None)
FIVE_PERCENT = Reserve.parse("5%")


@pytest.mark.parametrize(
    ("tokens", "payload_bytes"), [(87_793_206, 5_034_413_604_864), (21_033_536, 1_206_147_088_384)]
)
def test_the_payload_of_a_large_model(tokens: int, payload_bytes: int) -> None:
    plan = plan_capacity(replace(KIMI, tokens=tokens))
    assert plan.payload_bytes == payload_bytes
    # A row of 4 x 7168 bfloat16 is whole blocks, so everything else is a trifle.
    assert payload_bytes < plan.estimated_bytes <= plan.store_bytes < payload_bytes * 1.0005


def test_a_torch_save_tree_of_the_same_states_is_larger_by_its_int64_tokens() -> None:
    # A reported tree of 3 + 1 layers of width 2880 had 23,056 bytes a token: 16 of them int64
    # ids and masks. Here both are held twice, in 10 bytes.
    lengths = [50_738] * 53
    plan = plan_capacity(Workload(lengths=lengths, layers=4, hidden_size=2880))
    states_bytes = 4 * 2880 * 2
    assert plan.payload_bytes == sum(lengths) * states_bytes
    assert sum(lengths) * (states_bytes + 10) < plan.store_bytes
    assert plan.store_bytes < sum(lengths) * (states_bytes + 16)


def test_one_layer_of_68k_conversations_takes_what_was_reported() -> None:
    tokens = 740_000_000_000 // (4096 * 2)
    plan = plan_capacity(
        Workload(tokens=tokens, samples=68_000, layers=1, hidden_size=4096, dtype="float16")
    )
    assert plan.estimated_bytes == pytest.approx(740e9, rel=0.005)


def test_lengths_make_the_plan_exact_and_totals_make_it_a_bound() -> None:
    chance = np.random.default_rng(1)
    for hidden_size, mean in ((64, 30), (576, 300), (7168, 2000)):
        lengths = chance.integers(1, 2 * mean, 3000).tolist()
        known = plan_capacity(Workload(lengths=lengths, layers=3, hidden_size=hidden_size))
        totals = plan_capacity(
            Workload(tokens=sum(lengths), samples=3000, layers=3, hidden_size=hidden_size)
        )
        assert known.exact
        assert not totals.exact
        assert known.store_bytes == known.estimated_bytes
        assert totals.store_bytes >= known.store_bytes
        assert totals.shards >= known.shards
        assert totals.inodes >= known.inodes
        assert totals.peak_bytes >= known.peak_bytes


@given(
    lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=80),
    hidden_size=st.sampled_from([1, 64, 577, 7168]),
    layers=st.integers(1, 4),
    codec=st.sampled_from(["none", "blosc-zstd"]),
    shard_chunks=st.none() | st.integers(40, 300),
)
def test_the_bound_holds_for_any_lengths(
    lengths: list[int], hidden_size: int, layers: int, codec: str, shard_chunks: int | None
) -> None:
    known = Workload(
        lengths=lengths,
        layers=layers,
        hidden_size=hidden_size,
        codec=codec,
        chunk_rows=shard_chunks and 128,
        shard_rows=shard_chunks and shard_chunks * 128,
    )
    plan, bound = plan_capacity(known), plan_capacity(replace(known, lengths=None))
    assert bound.store_bytes >= plan.store_bytes >= plan.payload_bytes
    assert bound.shards >= plan.shards
    assert bound.inodes >= plan.inodes


@pytest.mark.parametrize("lengths", [[1], [200_000], [1, 200_000, 1], [1] * 2000, [32_768] * 3])
def test_the_bound_holds_for_awkward_lengths(lengths: list[int]) -> None:
    for dtype in ("bfloat16", "float32"):
        for codec in ("none", "blosc-zstd"):
            known = Workload(lengths=lengths, layers=2, hidden_size=100, dtype=dtype, codec=codec)
            totals = replace(known, lengths=None)
            assert plan_capacity(totals).store_bytes >= plan_capacity(known).store_bytes
            assert plan_capacity(totals).shards >= plan_capacity(known).shards


def test_an_estimate_from_a_part_is_that_of_the_whole() -> None:
    lengths = [40] * 120_000
    known = plan_capacity(Workload(lengths=lengths, layers=1, hidden_size=64))
    totals = plan_capacity(
        Workload(tokens=sum(lengths), samples=len(lengths), layers=1, hidden_size=64)
    )
    assert totals.estimated_bytes == pytest.approx(known.store_bytes, rel=0.005)
    assert totals.estimated_shards == pytest.approx(known.shards, abs=2)


def test_a_codec_has_a_bound_above_and_an_estimate_below() -> None:
    plan = plan_capacity(replace(KIMI, codec="blosc-zstd"))
    assert plan.store_bytes > plan.payload_bytes
    assert plan.estimated_bytes == pytest.approx(plan.payload_bytes / 1.38, rel=0.005)
    assert plan.peak_bytes > plan.store_bytes


def test_a_ratio_that_is_vouched_for_decides_the_peak() -> None:
    plan = plan_capacity(replace(KIMI, codec="blosc-zstd", ratio=2.0))
    assert plan.estimated_bytes == pytest.approx(plan.payload_bytes / 2, rel=0.005)
    assert plan.peak_bytes == plan.estimated_peak_bytes < plan.store_bytes


def test_each_writer_stages_a_shard() -> None:
    one, three = plan_capacity(KIMI), plan_capacity(replace(KIMI, writers=3))
    assert one.store_bytes == three.store_bytes
    shard_bytes = one.geometry.shard_rows * one.geometry.row_bytes
    assert three.peak_bytes - one.peak_bytes >= 2 * shard_bytes


def test_longer_keys_take_more() -> None:
    short = Workload(lengths=[100] * 3000, layers=1, hidden_size=64)
    long = replace(short, key_bytes=[400] * 3000)
    assert plan_capacity(long).store_bytes - plan_capacity(short).store_bytes > 2 * 3000 * 380


@pytest.mark.parametrize(
    "change",
    [
        {"layers": 0},
        {"hidden_size": 0},
        {"samples": 0},
        {"writers": 0},
        {"tokens": 37_311},
        {"lengths": [3, 0]},
        {"dtype": "int8"},
        {"codec": "gzip"},
        {"ratio": 1.5},
        {"codec": "blosc-zstd", "ratio": 0.5},
        {"key_bytes": [1]},
    ],
)
def test_a_workload_that_cannot_be_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(MalformedInput):
        replace(KIMI, **change)  # type: ignore[arg-type]


def test_chunk_and_shard_rows_must_agree() -> None:
    with pytest.raises(MalformedInput, match="multiple"):
        plan_capacity(replace(KIMI, chunk_rows=64, shard_rows=100))


@pytest.mark.parametrize(
    ("typed", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("4096B", 4096),
        ("10GB", 10_000_000_000),
        ("10 GiB", 10 << 30),
        ("1.5k", 1500),
        ("2tib", 2 << 40),
    ],
)
def test_sizes_are_read_in_both_families(typed: str, size: int) -> None:
    assert parse_size(typed) == size


@pytest.mark.parametrize("typed", ["", "GB", "-1", "10 bananas", "1e9", "5%%", "nan"])
def test_what_is_no_size_is_refused(typed: str) -> None:
    with pytest.raises(MalformedInput, match="no size"):
        Reserve.parse(typed)


def test_a_reserve_is_a_share_of_the_peak_or_fixed() -> None:
    assert FIVE_PERCENT.of(1000) == 50
    assert Reserve.parse("0%").of(1000) == 0
    assert Reserve.parse("10kB").of(1000) == 10_000


def test_a_plan_fits_to_the_byte() -> None:
    required = Assessment(plan_capacity(KIMI), ENDLESS, FIVE_PERCENT).required_bytes
    enough = Assessment(plan_capacity(KIMI), Target(required, None), FIVE_PERCENT)
    short = Assessment(plan_capacity(KIMI), Target(required - 1, None), FIVE_PERCENT)
    helped = Assessment(plan_capacity(KIMI), Target(required - 9, None, 9), FIVE_PERCENT)
    assert enough.fits
    assert enough.missing_bytes == 0
    assert not short.fits
    assert short.missing_bytes == 1
    assert helped.fits


def test_inodes_must_fit_too() -> None:
    plan = plan_capacity(KIMI)
    target = Target(1 << 60, plan.inodes - 5)
    short = Assessment(plan, target, FIVE_PERCENT)
    assert not short.fits
    assert short.missing_inodes == 5
    assert Assessment(plan, replace(target, reclaimable_inodes=5), FIVE_PERCENT).fits


def test_an_estimate_may_fit_where_the_bound_does_not() -> None:
    plan = plan_capacity(replace(KIMI, codec="blosc-zstd"))
    target = Target(plan.payload_bytes, None)
    assessment = Assessment(plan, target, FIVE_PERCENT)
    assert not assessment.fits
    assert assessment.fits_estimated


def test_alternatives_are_smaller_and_named() -> None:
    workload = replace(KIMI, dtype="float32")
    own = plan_capacity(workload)
    others = dict(alternatives(workload))
    assert len(others) == 2 * 4 * 2 - 1
    assert "--dtype bfloat16" in others
    assert "2 of 4 layers, --codec blosc-zstd" in others
    assert all(other.estimated_bytes < own.estimated_bytes for other in others.values())
    assert {plan.workload.samples for plan in others.values()} == {KIMI.samples}
