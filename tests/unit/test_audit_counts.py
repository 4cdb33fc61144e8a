"""What an audit may claim, and which samples it draws."""

import itertools
import math
from collections import Counter

import pytest

from hsstore.integrity.auditing.selection import draw, in_order_of_origin
from hsstore.model.audit import AuditCounts, audit_member, upper_bound


@pytest.mark.parametrize(("of", "expected"), [(1, 0.95), (20, 0.1391), (100, 0.02951)])
def test_the_bound_of_a_clean_audit(of: int, expected: float) -> None:
    assert upper_bound(0, of) == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(("found", "of"), [(1, 20), (5, 20), (3, 10_000)])
def test_the_bound_is_where_so_few_would_be_found_once_in_20_times(found: int, of: int) -> None:
    share = upper_bound(found, of)
    chance = sum(math.comb(of, n) * share**n * (1 - share) ** (of - n) for n in range(found + 1))
    assert chance == pytest.approx(0.05, rel=1e-6)


def test_nothing_audited_proves_nothing() -> None:
    counts = AuditCounts(asked=5, population=9, seed=0, failed=5)
    assert (counts.wrong_share_at_most, counts.complete) == (1.0, False)
    assert upper_bound(4, 4) == 1.0


def test_of_all_samples_the_share_is_known() -> None:
    counts = AuditCounts(asked=100, population=8, seed=0, exact=6, wrong=2)
    assert (counts.wrong_share_at_most, counts.complete, counts.drawn) == (0.25, True, 8)


def test_damaged_samples_do_not_leave_an_audit_incomplete_and_failed_ones_do() -> None:
    assert AuditCounts(asked=3, population=9, seed=0, exact=2, damaged=1).complete
    assert not AuditCounts(asked=3, population=9, seed=0, exact=2, failed=1).complete


def test_a_part_of_a_draw_bounds_nothing() -> None:
    stopped = AuditCounts(asked=60, population=64, seed=0, exact=20)
    assert (stopped.wrong_share_at_most, stopped.complete) == (1.0, False)


def test_counts_are_read_back() -> None:
    counts = AuditCounts(asked=3, population=9, seed=4, exact=2, noise=1)
    assert audit_member(counts.to_json(), "audit") == []
    assert AuditCounts.from_json(counts.to_json()) == counts
    assert audit_member(counts.to_json() | {"wrong": -1}, "audit")
    assert audit_member("many", "audit")


def test_a_draw_is_spread_and_told_by_its_seed() -> None:
    counts = [50, 0, 1, 149]
    found = draw(counts, 20, seed=3)
    assert found == draw(counts, 20, seed=3) != draw(counts, 20, seed=4)
    assert len(set(found)) == 20
    assert all(0 <= place < counts[group] for group, place in found)
    assert Counter(group for group, _ in found)[0] in {4, 5, 6}


def test_all_are_drawn_where_there_are_no_more() -> None:
    every = [(0, 0), (0, 1), (2, 0)]
    assert draw([2, 0, 1], 3, seed=1) == draw([2, 0, 1], 99, seed=2) == every
    assert draw([], 5, seed=1) == draw([0, 0], 5, seed=1) == []


def test_every_sample_is_drawn_as_often_as_any_other() -> None:
    drawn = Counter(itertools.chain.from_iterable(draw([3, 4], 3, seed) for seed in range(7000)))
    assert len(drawn) == 7
    assert all(abs(count - 3000) < 200 for count in drawn.values())


def test_shards_of_one_origin_come_together() -> None:
    origins = {0: [1], 1: [0], 2: [1], 3: [0, 1]}
    assert in_order_of_origin(range(4), origins.__getitem__) == [1, 3, 0, 2]
