"""Filling a store from sources of every temper."""

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hsstore.errors import IdentityMismatch, InvalidDocument, SourceError, SourceUnavailable
from hsstore.extraction.extractor import extract
from hsstore.model import keys
from hsstore.model.source import Extracted, Failed, Request, Waiting
from hsstore.storage.claim import acquire
from hsstore.storage.journal import header_line
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import empty_store, fill, replace
from hsstore.testing.verdicts import (
    assert_complete,
    assert_exact,
    journalled,
    leftovers,
)

LENGTHS = [3, 4, 5, 16, 2]
Answers = Iterator[Extracted | Failed | Waiting]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return empty_store(tmp_path / "store", LENGTHS)


class Odd(SeededSource):
    """Passes the answers of a seeded source through a function."""

    def __init__(self, store: Store, how: Callable[[Answers], Answers]) -> None:
        super().__init__(store.identity)
        self.how = how

    def states(self, requests: Iterable[Request]) -> Answers:
        return self.how(super().states(requests))


def backwards(answers: Answers) -> Answers:
    yield from reversed(list(answers))


def twice(answers: Answers) -> Answers:
    for answer in answers:
        yield answer
        yield answer


def unasked(answers: Answers) -> Answers:
    for answer in answers:
        assert isinstance(answer, Extracted)
        yield Extracted(answer.sample + 1000, answer.states)


def silent(answers: Answers) -> Answers:
    yield from list(answers)[:-1]


def lazy(answers: Answers) -> Answers:
    """Does not even pull all requests."""
    yield next(answers)


def breaking(answers: Answers) -> Answers:
    yield next(answers)
    raise SourceUnavailable("lost")


def short(answers: Answers) -> Answers:
    for answer in answers:
        assert isinstance(answer, Extracted)
        yield Extracted(answer.sample, answer.states[:-1])


def reusing(answers: Answers) -> Answers:
    """Overwrites an answer's memory as soon as the next one is asked for."""
    for answer in answers:
        yield answer
        if isinstance(answer, Extracted):
            answer.states[:] = 0


@pytest.mark.parametrize("how", [backwards, reusing])
@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_a_source_may_answer_in_any_order_and_reuse_its_memory(
    tmp_path: Path, how: Callable[[Answers], Answers], codec: str
) -> None:
    store = empty_store(tmp_path / "store", LENGTHS, codec=codec)
    assert extract(store, Odd(store, how)).complete
    assert_complete(store.root)


@pytest.mark.parametrize(
    ("how", "error", "told", "kept"),
    [
        (twice, SourceError, "sample 0, which was not asked", {0}),
        (unasked, SourceError, "sample 1000, which was not asked", set()),
        (silent, SourceError, "left 1 samples unanswered", {0, 1, 2, 3}),
        (lazy, SourceError, "before it had asked for every sample", {0}),
        (breaking, SourceUnavailable, "lost", {0}),
        (short, SourceError, "sample 0: states are", set()),
    ],
)
def test_a_source_that_breaks_its_word_loses_nothing_that_was_right(
    store: Store,
    how: Callable[[Answers], Answers],
    error: type[Exception],
    told: str,
    kept: set[int],
) -> None:
    with pytest.raises(error, match=told):
        extract(store, Odd(store, how))
    committed = {s for shard in store.committed() for s in store.samples.shard_samples(shard)}
    assert journalled(store.root) == kept - committed
    again = SeededSource(store.identity)
    summary = extract(store, again)
    assert (summary.complete, summary.samples_resumed) == (True, len(kept - committed))
    assert not kept & set(again.asked)
    assert_complete(store.root)


def test_the_summary_counts(store: Store) -> None:
    fill(store, shards=range(1, 2))
    source = SeededSource(store.identity, {"sample-1": "broken"})
    summary = extract(store, source)
    assert summary.complete
    assert (summary.shards_total, summary.shards_committed_before, summary.shards_committed) == (
        3,
        1,
        2,
    )
    assert (summary.samples_extracted, summary.samples_failed, summary.samples_absent) == (3, 1, 1)
    assert summary.tokens_extracted == 3 + 5 + 2
    assert store.marker(0).absent == 1


def test_a_range_of_shards_is_all_that_is_touched(store: Store) -> None:
    source = SeededSource(store.identity)
    assert not extract(store, source, shards=range(1, 2)).complete
    assert (source.asked, list(store.committed())) == ([3], [1])


@pytest.mark.parametrize("after", range(9))
def test_stopping_keeps_what_was_done(store: Store, after: int) -> None:
    asked = iter(range(100))
    first, second = SeededSource(store.identity), SeededSource(store.identity)
    summary = extract(store, first, stop=lambda: next(asked) >= after)
    assert summary.stopped == (not summary.complete)
    assert_exact(store.root)
    assert extract(store, second).complete
    assert first.asked + second.asked == list(range(5))
    assert_complete(store.root)


@pytest.mark.parametrize(
    "match", [{"config": "f" * 32}, {"layers": "2,final"}, {"dtype": "float16"}]
)
def test_another_model_is_refused_before_anything_is_written(
    store: Store, match: dict[str, str | None]
) -> None:
    before = sorted(store.root.rglob("*"))
    with pytest.raises(IdentityMismatch, match=f"{next(iter(match))} is"):
        extract(store, SeededSource(store.identity, match=match))
    assert sorted(store.root.rglob("*")) == before


def test_the_first_shard_fixes_what_the_store_did_not_know(store: Store) -> None:
    extract(store, SeededSource(store.identity, match={"weights": "a" * 32}), shards=range(1))
    with pytest.raises(IdentityMismatch, match=r"weights is 'b+', not 'a+'"):
        extract(store, SeededSource(store.identity, match={"weights": "b" * 32}))


def test_a_journal_fixes_it_too(store: Store) -> None:
    first = Odd(store, breaking)
    first.origin = SeededSource(store.identity, match={"weights": "a" * 32}).origin  # type: ignore[method-assign]
    with pytest.raises(SourceUnavailable):
        extract(store, first)
    with pytest.raises(IdentityMismatch, match="journal"):
        extract(store, SeededSource(store.identity, match={"weights": "b" * 32}))
    assert journalled(store.root) == {0}


def test_both_origins_of_a_resumed_shard_are_in_its_manifest(store: Store) -> None:
    with pytest.raises(SourceUnavailable):
        extract(store, Odd(store, breaking))
    extract(store, SeededSource(store.identity, engine="another"))
    manifest = store.manifest(store.marker(0))
    assert [o.recorded["engine"] for o in manifest.origins] == ["seeded", "another"]
    assert [s.origin for s in manifest.samples] == [0, 1, 1]


def test_a_held_shard_is_passed_over(store: Store) -> None:
    claim = acquire(store.filesystem, store.root, store.identity.uuid, 1, "a" * 16)
    summary = extract(store, SeededSource(store.identity))
    assert (summary.shards_claimed_by_others, summary.complete) == ([1], False)
    claim.release()
    assert extract(store, SeededSource(store.identity)).complete


def test_leftovers_of_finished_work_are_removed(store: Store) -> None:
    fill(store)
    (store.root / keys.stage(0, "a" * 16)).mkdir()
    (store.root / keys.claim(1, 4)).write_bytes(b"")
    (store.root / keys.COMMIT / ".00000002-000002.json.1a2b3c4d").write_bytes(b"half")
    os.utime(store.root / keys.claim(1, 4), (0, 0))
    extract(store, SeededSource(store.identity))
    assert leftovers(store.root) == []


def test_unfinished_work_for_a_newer_generation_is_no_leftover(store: Store) -> None:
    fill(store)
    replace(store, 0)
    folder = store.root / keys.stage(0, "a" * 16)
    folder.mkdir()
    origin = SeededSource(store.identity).origin()
    line = header_line(store.identity.uuid, 0, 3, "a" * 16, origin)
    (folder / keys.STAGED_JOURNAL).write_bytes(line)
    extract(store, SeededSource(store.identity))
    (fenced,) = folder.parent.iterdir()
    assert (fenced / keys.STAGED_JOURNAL).read_bytes() == line


def test_a_damaged_token_file_stops_before_anything_is_computed(store: Store) -> None:
    _ = store.samples
    path = store.root / keys.tokens(0, 0)
    path.write_bytes(path.read_bytes()[:-1])
    source = SeededSource(store.identity)
    with pytest.raises(InvalidDocument, match="differs from the plan"):
        extract(store, source)
    assert source.asked == []


def test_a_missing_token_file_is_told_as_that(store: Store) -> None:
    _ = store.samples
    (store.root / keys.tokens(0, 0)).unlink()
    with pytest.raises(FileNotFoundError, match="npz"):
        extract(store, SeededSource(store.identity))


NON_FINITE = {"bfloat16": 0xFF80, "float16": -np.inf, "float32": np.nan}


@pytest.mark.parametrize("dtype", NON_FINITE)
def test_a_value_that_is_not_finite_fails_its_sample_whatever_the_source(
    tmp_path: Path, dtype: str
) -> None:
    store = empty_store(tmp_path / "store", LENGTHS, dtype=dtype)

    def spoil(answers: Answers) -> Answers:
        for answer in answers:
            assert isinstance(answer, Extracted)
            if answer.sample == 3:
                answer.states[12, 1, 7] = NON_FINITE[dtype]
            yield answer

    summary = extract(store, Odd(store, spoil))
    assert (summary.complete, summary.samples_failed) == (True, 1)
    (absent,) = store.manifest(store.marker(1)).absent
    assert (absent.key, absent.reason) == ("sample-3", "non-finite")
    assert absent.detail == "layer final, row 12"


def test_the_first_to_commit_decides_for_two_that_began_together(store: Store) -> None:
    """Neither sees the other when it starts, since the store itself knows no weights."""

    def overtaken(answers: Answers) -> Answers:
        rival = SeededSource(store.identity, match={"weights": "a" * 32})
        extract(Store.open(store.root), rival, shards=range(1, 2))
        yield from answers

    late = Odd(store, overtaken)
    late.origin = SeededSource(store.identity, match={"weights": "b" * 32}).origin  # type: ignore[method-assign]
    with pytest.raises(IdentityMismatch, match=r"weights is 'b+', not 'a+'"):
        extract(store, late)
    assert list(store.committed()) == [1]


def test_what_any_committed_shard_tells_binds(store: Store) -> None:
    """The first shard's source could not tell its weights; the second's could."""
    extract(store, SeededSource(store.identity), shards=range(1))
    extract(store, SeededSource(store.identity, match={"weights": "a" * 32}), shards=range(1, 2))
    with pytest.raises(IdentityMismatch, match=r"weights is 'b+', not 'a+'"):
        extract(store, SeededSource(store.identity, match={"weights": "b" * 32}))
