"""What is concluded from many samples: where most agree, and where nobody can be accused."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from hsstore.integrity.content import beginnings, norms
from hsstore.integrity.content.beginnings import Beginnings
from hsstore.integrity.content.norms import Norms, Outlier
from hsstore.integrity.content.sample_scan import Looked
from hsstore.integrity.content.twins import Twin, Twins
from hsstore.integrity.content.words import by_layer, some
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import Manifest, Statistics, StoredSample
from hsstore.storage.token_file import ShardTokens

Floats = NDArray[np.float32]


def stored(sample: int, figures: Statistics | None = None) -> StoredSample:
    figures = figures or Statistics(8, (1.0,), (1.0,))
    return StoredSample(sample, f"s{sample}", 0, figures.rows, f"{sample:032x}", figures, 0)


def looked(sample: int, sketches: Floats | None = None, **hashes: int) -> Looked:
    nothing = np.zeros((0, 1), np.bool_)
    return Looked(
        stored=stored(sample),
        content=f"{hashes.pop('content', 1000 + sample):016x}" + "0" * 16,
        statistics=Statistics(8, (1.0,), (1.0,)),
        padding=True,
        highest=nothing.astype(np.uint16),
        repeats=nothing,
        hashes={int(name[3:]): value for name, value in hashes.items()},
        sketches=np.zeros((0, 1, 4), np.float32) if sketches is None else sketches,
    )


def ids(*tokens: int) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


# -- beginnings ------------------------------------------------------------------------------------

TRUE, FALSE = np.ones((1, 1, 4), np.float32), -np.ones((1, 1, 4), np.float32)


def strays(sketches: Sequence[Floats], *, same_text: bool = False) -> list[int]:
    kept = Beginnings()
    for sample, sketch in enumerate(sketches):
        kept.add(0, looked(sample, sketch), ids(7, 0 if same_text else sample))
    return [stray.sample for stray in kept.strays()]


def test_one_against_three_is_astray() -> None:
    assert strays([TRUE, FALSE, TRUE, TRUE]) == [1]


def test_one_against_two_is_not() -> None:
    assert strays([TRUE, FALSE, TRUE]) == []


def test_half_against_half_is_not() -> None:
    assert strays([TRUE, FALSE] * 5) == []


def test_three_times_the_same_text_are_one_witness() -> None:
    assert strays([TRUE, FALSE, TRUE, TRUE], same_text=True) == []


def test_numeric_noise_is_not_astray() -> None:
    assert strays([TRUE, TRUE * 1.3, TRUE * 0.7, TRUE, TRUE]) == []


def test_rows_that_nobody_shares_accuse_nobody() -> None:
    chance = np.random.default_rng(0)
    assert strays([*chance.standard_normal((500, 1, 1, 4), np.float32)]) == []


@pytest.mark.parametrize("first", [True, False])
def test_most_are_found_among_more_kinds_than_are_kept(*, first: bool) -> None:
    chance = np.random.default_rng(0)
    wrong = [*-np.abs(chance.standard_normal((40, 1, 1, 4), np.float32))]
    found = strays([TRUE] * 4 + wrong + [TRUE] * 100 if first else wrong + [TRUE] * 104)
    assert all(sample in (range(4, 44) if first else range(40)) for sample in found)
    # What came before anybody agreed was not kept, and is only counted.
    assert len(found) == 40 if first else len(found) >= beginnings.KINDS_KEPT - 1


def test_beginnings_of_one_sample_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beginnings, "BEGINNINGS_KEPT", 8)
    kept = Beginnings()
    for sample in range(200):
        sketch, first = (FALSE if sample == 150 else TRUE), sample if sample % 2 else 5000
        kept.add(0, looked(sample, sketch), ids(first, sample))
    assert len(kept._kept) <= 8
    assert [stray.sample for stray in kept.strays()] == [150]


def test_what_is_kept_of_a_sample_is_a_sketch_of_one_beginning() -> None:
    """Not all five, for the sake of one; and of kinds that made room, none."""
    kept, chance = Beginnings(), np.random.default_rng(0)
    for sample in range(4):
        kept.add(0, looked(sample, np.ones((2, 1, 4), np.float32)), ids(7, 8, sample))
    for sample in range(4, 40):
        sketches = chance.standard_normal((2, 1, 4), np.float32)
        kept.add(0, looked(sample, -np.abs(sketches)), ids(7, 8, sample))
    for beginning in kept._kept.values():
        assert all(kind.sketch.base is None for kind in beginning.kinds)
        dropped = [victim for victim, _, _ in beginning._dropped]
        assert len(dropped) > 20
        assert all(victim.sketch.size == 0 for victim in dropped)


# -- equal rows ------------------------------------------------------------------------------------


def twins(*seen: tuple[Looked, NDArray[np.int32]]) -> list[Twin]:
    kept = Twins()
    kept.add(0, list(seen))
    return list(kept.found())


def test_equal_rows_of_equal_tokens_are_right() -> None:
    assert twins((looked(0, row0=5), ids(1, 2)), (looked(1, row0=5), ids(1, 3))) == []


def test_one_of_two_is_false_and_nobody_knows_which() -> None:
    found = twins((looked(0, row0=5), ids(1, 2)), (looked(1, row0=5), ids(4, 3)))
    assert found == [
        Twin(0, 0, "first", 1, "first", certain=False),
        Twin(0, 1, "first", 0, "first", certain=False),
    ]


def test_who_is_alone_with_his_token_is_false() -> None:
    right = [(looked(n, row0=5), ids(1, n)) for n in range(3)]
    assert twins(*right, (looked(3, row0=5), ids(4, 3))) == [
        Twin(0, 3, "first", 0, "first", certain=True)
    ]


def test_two_against_one_prove_nothing() -> None:
    right = [(looked(n, row0=5), ids(1, n)) for n in range(2)]
    found = twins(*right, (looked(2, row0=5), ids(4, 3)))
    assert [(t.sample, t.certain) for t in found] == [(0, False), (1, False), (2, False)]


def test_the_first_row_of_one_at_the_end_of_another_is_a_shift() -> None:
    found = twins((looked(0, row0=5), ids(1, 2)), (looked(1, row2=5), ids(8, 4, 3)))
    assert [(t.sample, t.shifted) for t in found] == [(0, True), (1, True)]


def test_a_store_of_one_row_is_told_without_comparing_all_with_all() -> None:
    found = twins(*((looked(n, row0=5), ids(n % 50, n)) for n in range(20_000)))
    assert len(found) == 20_000
    assert all(twin.sample % 50 != twin.other % 50 for twin in found)


def test_equal_content_of_other_tokens_is_found() -> None:
    found = twins(
        (looked(0, content=9, row0=1), ids(1, 2)), (looked(1, content=9, row0=1), ids(1, 3))
    )
    assert [(t.sample, t.place) for t in found] == [(0, "all"), (1, "all")]
    assert twins((looked(0, content=9), ids(1, 2)), (looked(1, content=9), ids(1, 2))) == []


# -- norms -----------------------------------------------------------------------------------------


def outliers(
    median_norms: NDArray[np.float64], *, rows: int = 64, repeats: int = 0
) -> list[Outlier]:
    """Of samples in one shard; each begins with that many repetitions of its first token."""
    count, width = len(median_norms), max(rows, 64)
    samples = tuple(
        stored(n, Statistics(rows, tuple(norm), tuple(norm))) for n, norm in enumerate(median_norms)
    )
    text = np.concatenate([np.zeros(1 + repeats, np.int32), np.arange(1, width - repeats)])
    tokens = ShardTokens(
        0,
        tuple(s.key for s in samples),
        np.full(count, width, np.int32),
        np.tile(text.astype(np.int32), count),
        np.ones(count * width, np.uint8),
    )
    kept = Norms()
    manifest = Manifest("0" * 32, ShardVersion(0, 1), "0" * 16, 1, "0" * 16, (), samples, (), ())
    kept.add(manifest, tokens)
    return list(kept.outliers())


def usual(samples: int) -> NDArray[np.float64]:
    """Two layers as measured: a spread of 5 %, the second 1.65 times the first."""
    spread = np.exp(0.05 * np.random.default_rng(0).standard_normal((samples, 2)))
    return spread * [95.0, 157.0]


def test_usual_norms_hold_no_outlier() -> None:
    assert outliers(usual(5000)) == []


@pytest.mark.parametrize("norm", [157.0, 5.0, 0.0, np.nan, np.inf])
def test_an_unusual_norm_is_an_outlier(norm: float) -> None:
    found = usual(100)
    found[7, 0] = norm
    (outlier,) = outliers(found)
    assert (outlier.sample, outlier.layer) == (7, 0)
    assert outlier.usual == pytest.approx(95, rel=0.02)
    assert outlier.like == (1 if norm == 157 else None)


def test_a_tenth_of_the_store_may_be_wrong() -> None:
    found = usual(1000)
    found[:100, 1] = 95
    assert {(o.sample, o.layer) for o in outliers(found)} == {(n, 1) for n in range(100)}


@pytest.mark.parametrize("hidden", [4, 8, 64])
def test_norms_of_random_states_hold_no_outlier(hidden: int) -> None:
    chance = np.random.default_rng(hidden)
    values = chance.standard_normal((8000, norms.JUDGED_ROWS, hidden), np.float32)
    of_rows = np.median(np.linalg.norm(values, axis=2), axis=1)
    assert outliers(of_rows[:, None].astype(np.float64), rows=norms.JUDGED_ROWS) == []


def test_few_or_short_samples_or_repeated_tokens_are_not_judged() -> None:
    few, many = usual(norms.PEERS - 1), usual(100)
    few[0, 0] = many[0, 0] = 9000
    assert outliers(few) == []
    assert outliers(many, rows=norms.JUDGED_ROWS - 1) == []
    assert outliers(many, repeats=40) == []
    assert [o.sample for o in outliers(many)] == [0]


# -- words -----------------------------------------------------------------------------------------


def test_rows_and_layers_in_words() -> None:
    mask = np.zeros((20, 3), np.bool_)
    mask[[2, 3, 9], 0] = mask[[2, 3, 9], 1] = True
    mask[:, 2] = True
    assert by_layer(mask, ["layer 1", "layer 2", "final"]) == (
        "layer 1, layer 2: rows 2-3, 9 of 20; final: all rows"
    )
    mask[::2, 1] = True
    assert "and 4 more spans of 20" in by_layer(mask, ["a", "b", "c"])
    assert some(["a", "b", "c", "d"]) == "a, b, c and 1 more"
