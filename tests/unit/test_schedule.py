"""Which shards a run looks at, and in which order."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsstore.errors import MalformedInput
from hsstore.integrity.scrub.schedule import Scrub, Subset, refuse_within, schedule
from hsstore.integrity.scrub.verdicts import Standing


@given(st.integers(0, 500), st.integers(1, 40))
def test_subsets_have_each_shard_once_and_are_alike_in_size(shards: int, of: int) -> None:
    buckets = [Scrub(subset=(number, of)).shards(range(shards)) for number in range(1, of + 1)]
    assert sorted(shard for bucket in buckets for shard in bucket) == [*range(shards)]
    sizes = [len(bucket) for bucket in buckets]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 200), st.integers(0, 200), st.integers(1, 40))
def test_a_growing_store_moves_no_shard_to_another_subset(before: int, more: int, of: int) -> None:
    for number in range(1, of + 1):
        scrub = Scrub(subset=(number, of))
        grown = scrub.shards(range(before + more))
        assert scrub.shards(range(before)) == [shard for shard in grown if shard < before]


@pytest.mark.parametrize(
    "typed", ["", "3", "0/7", "8/7", "3/0", "-1/7", "1/2/3", "a/b", "1/2.5", "²/3"]
)
def test_what_is_no_subset_is_refused(typed: str) -> None:
    with pytest.raises(MalformedInput, match="give n/t with n from 1 to t"):
        Subset.parse(typed)


def test_never_looked_at_comes_first_then_what_was_longest_ago() -> None:
    standings = {
        0: Standing(50, sound=True),
        2: Standing(10, sound=False),
        3: Standing(20, sound=True),
    }
    assert schedule(range(5), standings, None) == ([1, 4, 2, 3, 0], [])


def test_only_what_is_sound_and_recent_is_left_out() -> None:
    standings = {
        0: Standing(50, sound=True),
        1: Standing(49, sound=True),
        2: Standing(60, sound=False),
    }
    assert schedule(range(4), standings, 50) == ([3, 1, 2], [0])


@pytest.mark.parametrize("name", ["state", "report"])
def test_nothing_is_written_into_the_store(tmp_path: Path, name: str) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    (tmp_path / "store").mkdir()
    inside, beside = tmp_path / "link" / "x", tmp_path / "store-x"
    scrub = Scrub(state=inside) if name == "state" else Scrub(report=inside)
    with pytest.raises(MalformedInput, match="fsck writes nothing there"):
        refuse_within(tmp_path / "store", scrub)
    refuse_within(tmp_path / "store", Scrub(state=beside, report=beside))
