"""Several shards in flight: whatever the order of answers, the store ends as if filled in turn."""

import contextlib
import errno
import os
import random
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hsstore.errors import IdentityMismatch, InvalidDocument, MalformedInput, SourceUnavailable
from hsstore.extraction import extractor
from hsstore.extraction.account import Account, ExtractionSummary, Ledger
from hsstore.extraction.extractor import Extraction, already_filled, extract
from hsstore.model import keys
from hsstore.model.source import Extracted, Failed, Origin, Request, Waiting
from hsstore.storage import writer
from hsstore.storage.claim import Claim, acquire
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.space import Space
from hsstore.storage.stage import open_stage, take_over
from hsstore.storage.status import status
from hsstore.storage.store import Store
from hsstore.testing.faults import Crash, FaultyFilesystem
from hsstore.testing.sources import ManyInFlight, SeededSource
from hsstore.testing.stores import contents, empty_store, fill, key_of
from hsstore.testing.verdicts import assert_complete, assert_exact, journalled

# Shards of 16 rows: {0, 1, 2}, {3}, {4, 5}, {6}, {7, 8}, {9}.
LENGTHS = [3, 4, 5, 16, 2, 9, 15, 7, 1, 8]
SHARDS = [[0, 1, 2], [3], [4, 5], [6], [7, 8], [9]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    opened = empty_store(tmp_path / "store", LENGTHS)
    assert [list(opened.samples.shard_samples(s)) for s in range(opened.plan.shards)] == SHARDS
    return opened


class Watched(ManyInFlight):
    """Sees that a sample is called settled once, and only when a crash could not cost it."""

    store: Store

    def settled(self, samples: Iterable[int]) -> None:
        told = list(samples)
        committed = {s for k in self.store.committed() for s in SHARDS[k]}
        assert set(told) <= journalled(self.store.root) | committed
        assert not set(told) & set(self.safe)
        assert set(told) <= set(self.answered)
        super().settled(told)


def watched(store: Store, **how: Any) -> Watched:  # noqa: ANN401 - whatever ManyInFlight takes
    source = Watched(store.identity, **how)
    source.store = store
    return source


class Events:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.total = self.done = 0
        self.notes: list[str] = []
        self.events: list[tuple[str, Mapping[str, Any]]] = []

    def start(self, total: int, done: int, unit: str) -> None:  # noqa: ARG002 - Progress
        self.total, self.done = total, done

    def advance(self, units: int) -> None:
        self.done += units

    def note(self, text: str) -> None:
        self.notes.append(text)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        self.events.append((name, members))

    def named(self, name: str) -> list[Mapping[str, Any]]:
        return [members for found, members in self.events if found == name]


# -- any order -------------------------------------------------------------------------------------


@settings(deadline=None, max_examples=25)
@given(
    seed=st.integers(0, 2**32),
    in_flight=st.integers(1, 12),
    order=st.sampled_from(["dataset", "length", "longest-first"]),
    failing=st.sets(st.integers(0, 9), max_size=2),
)
def test_any_interleaving_ends_as_a_sequential_fill(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    in_flight: int,
    order: str,
    failing: set[int],
) -> None:
    folder = tmp_path_factory.mktemp("any")
    broken = {key_of(sample): "broken" for sample in failing}
    expected = fill(empty_store(folder / "expected", LENGTHS), failing=broken)
    store = empty_store(folder / "store", LENGTHS)
    chance = random.Random(seed)  # noqa: S311 - no secret
    source = watched(
        store,
        failing=broken,
        in_flight=in_flight,
        seed=seed,
        before_answer=lambda _: Waiting("a moment") if chance.random() < 0.2 else None,
    )
    summary = extract(store, source, order=order)
    assert summary.complete
    assert contents(store) == contents(expected)
    assert sorted(source.safe) == list(range(len(LENGTHS)))
    assert summary.account == Account(extracted=10 - len(failing), failed=len(failing))
    shutil.rmtree(folder)


def test_the_next_shards_are_asked_for_while_one_is_unfinished(store: Store) -> None:
    source = watched(store, in_flight=5, silent={0})
    assert extract(store, source).complete
    assert source.answered[-1] == 0
    assert source.asked == list(range(10))
    assert_complete(store.root)


def test_a_shard_is_committed_as_soon_as_its_last_sample_is_there(store: Store) -> None:
    seen: list[list[int]] = []
    source = watched(
        store, in_flight=5, silent={0}, before_answer=lambda _: seen.append(list(store.committed()))
    )
    extract(store, source)
    assert sorted(seen[-1]) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("order", "asked"),
    [
        ("dataset", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]),
        ("length", [4, 0, 1, 2, 5, 6, 3, 8, 7, 9]),
        ("longest-first", [3, 6, 5, 2, 1, 0, 4, 9, 7, 8]),
    ],
)
def test_an_order_holds_among_the_shards_in_flight(
    store: Store, order: str, asked: list[int]
) -> None:
    source = watched(store, in_flight=1)
    assert extract(store, source, order=order).complete
    assert source.asked == asked


# -- what is durable, and when ---------------------------------------------------------------------


def test_a_moment_without_answers_makes_everything_durable(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SYNC_SECONDS", 1e9)
    counts: list[int] = []

    def wait_after_six(answers: int) -> Waiting | None:
        if answers == 6 and not counts:
            counts.append(len(source.safe))
            return Waiting("a moment")
        if answers == 6:
            counts.append(len(source.safe))
        return None

    source = watched(store, in_flight=10, silent={2, 5, 8}, before_answer=wait_after_six)
    extract(store, source)
    assert counts[0] < 6
    assert counts[-1] == 6


def test_what_a_power_cut_may_cost_is_bounded_over_all_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = [4] * 40
    store = empty_store(tmp_path / "store", lengths, shard_rows=32)
    monkeypatch.setattr(writer, "SYNC_SECONDS", 1e9)
    monkeypatch.setattr(writer, "SYNC_BYTES", 6 * 4 * store.identity.geometry.row_bytes)
    unsynced = []
    source = ManyInFlight(
        store.identity,
        in_flight=40,
        before_answer=lambda answers: unsynced.append(answers - len(source.safe)),
    )
    assert extract(store, source).complete
    assert max(unsynced) == 5


# -- every ending ----------------------------------------------------------------------------------


def run(store: Store, source: SeededSource, **how: Any) -> tuple[ExtractionSummary, Events]:  # noqa: ANN401
    """The summary of a run however it ends, after its account was checked against the store."""
    events = Events()
    extraction = Extraction(store, source, progress=events, **how)
    with contextlib.suppress(SourceUnavailable):
        extraction.run()
    summary = extraction.summary()
    check(store, summary, how.get("shards") or range(len(SHARDS)))
    return summary, events


def check(store: Store, summary: ExtractionSummary, wanted: range) -> None:
    account, found = summary.account, status(store)
    samples = {s for shard in wanted for s in SHARDS[shard]}
    held = {s for shard in summary.shards_claimed_by_others for s in SHARDS[shard]}
    stored = {
        s.sample for shard in store.committed() for s in store.manifest(store.marker(shard)).samples
    }
    assert account.total == len(samples)
    assert account.held_by_others == len(held)
    assert account.committed_before + account.extracted + account.resumed == len(
        (stored & samples) - held
    )
    assert account.staged == len((journalled(store.root) & samples) - held)
    if len(wanted) == len(SHARDS) and not held:
        assert account.absent_before + account.failed == found.samples_absent
        assert account.not_reached == found.samples_missing


def test_complete(store: Store) -> None:
    summary, events = run(store, watched(store))
    assert summary.account == Account(extracted=10)
    assert (events.done, events.total) == (sum(LENGTHS), sum(LENGTHS))
    assert [e["shard"] for e in events.named("shard-committed")] != []
    again, events = run(store, watched(store))
    assert again.account == Account(committed_before=10)
    assert (events.done, events.total) == (sum(LENGTHS), sum(LENGTHS))
    found = already_filled(store)
    assert found is not None
    assert found.account == again.account


def test_absent(store: Store) -> None:
    failing = {key_of(1): "broken", key_of(6): "broken"}
    summary, events = run(store, watched(store, failing=failing))
    assert summary.account == Account(extracted=8, failed=2)
    (first, _) = events.named("sample-failed")
    assert first["attempts"] == ["seeded: broken"]
    again, _ = run(store, watched(store))
    assert again.account == Account(committed_before=8, absent_before=2)


def test_a_range(store: Store) -> None:
    summary, events = run(store, watched(store), shards=range(1, 3))
    assert summary.account == Account(extracted=3)
    assert (events.done, events.total) == (27, 27)


def test_an_unreadable_marker(store: Store) -> None:
    fill(store, failing={key_of(1): "broken"})
    path = store.root / store.marker(0).name
    path.write_bytes(path.read_bytes()[:-2])
    assert extract(store, watched(store)).account == Account(committed_before=7, unreadable=3)
    whole = store.root / store.marker(1).name
    whole.write_bytes(whole.read_bytes()[:-2])
    assert extract(store, watched(store)).account == Account(committed_before=6, unreadable=4)


@pytest.mark.parametrize("after", range(10))
def test_stopped_with_answers_on_their_way(store: Store, after: int) -> None:
    source = watched(store, in_flight=4, seed=after)
    summary, _ = run(store, source, stop=lambda: len(source.answered) >= after)
    assert sorted(source.answered) == sorted(source.asked)
    assert sorted(source.safe) == sorted(source.asked)
    assert summary.stopped == (not summary.complete)
    assert summary.samples_extracted == len(source.asked)
    again = watched(store)
    summary, _ = run(store, again)
    assert sorted(source.asked + again.asked) == list(range(10))
    assert summary.account.resumed + summary.account.extracted == 10 - (
        summary.account.committed_before
    )
    assert_complete(store.root)


def test_stopped_in_an_outage_ends_at_once(store: Store) -> None:
    source = watched(
        store,
        in_flight=5,
        before_answer=lambda n: Waiting("away: 3 s of 1800", outage=True) if n == 4 else None,
    )
    summary, events = run(store, source, stop=lambda: len(source.answered) == 4)
    assert len(source.answered) == len(source.safe) == 4
    assert summary.stopped
    assert summary.account.not_reached == 6
    assert events.notes[0] == "away: 3 s of 1800"
    assert [name for name, _ in events.events if name.startswith("outage")] == [
        "outage-began",
        "outage-ended",
    ]
    assert run(store, watched(store))[0].complete


def test_an_outage_that_ends_is_told_once(store: Store) -> None:
    left = iter(range(5))

    def outage(answers: int) -> Waiting | None:
        if answers == 2 and (n := next(left, None)) is not None:
            return Waiting(f"away: waiting {n} s of 1800", outage=True)
        return None

    summary, events = run(store, watched(store, before_answer=outage))
    assert summary.complete
    assert events.notes[0] == "away: waiting 0 s of 1800"
    assert len(events.notes) == 2


def test_news_of_a_source_are_told_at_once(store: Store) -> None:
    moments = iter(
        [Waiting("on their way"), Waiting("out for good: b", news=True), Waiting("on their way")]
    )
    source = watched(store, before_answer=lambda n: next(moments, None) if n == 2 else None)
    summary, events = run(store, source)
    assert summary.complete
    assert events.notes == ["out for good: b"]
    assert events.named("source-news") == [{"detail": "out for good: b"}]


def test_what_ended_the_source_is_not_its_own_cause(store: Store) -> None:
    lost = SourceUnavailable("lost")

    def lose(_answers: int) -> None:
        raise lost

    with pytest.raises(SourceUnavailable) as caught:
        extract(store, watched(store, before_answer=lose))
    assert caught.value is lost
    assert lost.__cause__ is None


def test_an_unknown_order_is_refused_before_anything_is_done(store: Store) -> None:
    source = watched(store)
    with pytest.raises(MalformedInput, match=r"'size'.*dataset, length, longest-first"):
        extract(store, source, order="size")
    assert source.asked == []


def test_a_filesystem_that_hides_its_space_ends_no_run(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hidden(path: Path) -> Space:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(extractor, "available", hidden)
    summary, events = run(store, watched(store))
    assert summary.complete
    assert events.named("figures")[0]["free_bytes"] is None


@pytest.mark.parametrize("after", range(10))
def test_a_source_that_is_lost_costs_nothing_that_it_answered(store: Store, after: int) -> None:
    def lost(answers: int) -> None:
        if answers == after:
            raise SourceUnavailable("lost")

    source = watched(store, in_flight=5, seed=after, before_answer=lost)
    summary, _ = run(store, source)
    assert sorted(source.safe) == sorted(source.answered)
    assert summary.account.not_reached == 10 - after
    assert not summary.complete
    again = watched(store)
    assert run(store, again)[0].complete
    assert not set(again.asked) & set(source.answered)
    assert_complete(store.root)


def test_a_shard_that_cannot_be_opened_does_not_cost_those_in_flight(store: Store) -> None:
    path = store.root / keys.tokens(0, 4)
    _ = store.samples
    path.write_bytes(path.read_bytes()[:-1])
    source = watched(store, in_flight=8)
    extraction = Extraction(store, source)
    with pytest.raises(InvalidDocument, match="differs from the plan"):
        extraction.run()
    assert sorted(store.committed()) == [0, 1, 2, 3]
    check(store, extraction.summary(), range(6))


# -- rivals ----------------------------------------------------------------------------------------


def rob(store: Store, shard: int) -> Claim:
    """Take a shard over, as after a long stall of its writer."""
    (held,) = (store.root / keys.CLAIM).glob(f"{shard:08d}-*")
    os.utime(held, (0, time.time() - 61))
    claim = acquire(store.filesystem, store.root, store.identity.uuid, shard, "b" * 16)
    assert take_over(store, claim) is None
    return claim


@pytest.mark.parametrize("verify_seconds", [0.0, 1e9])
def test_a_shard_lost_in_the_middle_costs_only_that_shard(
    store: Store, monkeypatch: pytest.MonkeyPatch, verify_seconds: float
) -> None:
    monkeypatch.setattr(extractor, "VERIFY_SECONDS", verify_seconds)
    claims: list[Claim] = []

    def rival(answers: int) -> None:
        if answers == 1:
            claims.append(rob(store, 0))

    source = ManyInFlight(store.identity, in_flight=8, silent={1, 2}, before_answer=rival)
    summary, events = run(store, source)
    assert summary.shards_claimed_by_others == [0]
    assert sorted(store.committed()) == [1, 2, 3, 4, 5]
    assert summary.account == Account(extracted=7, held_by_others=3)
    assert summary.samples_extracted == 7
    assert len(events.named("shard-held")) == len(events.notes) == 1
    # What the source keeps for the answers that nobody stores here may go too.
    assert sorted(source.safe) == list(range(10))
    claims[0].release()
    assert run(store, watched(store))[0].complete
    assert_complete(store.root)


def test_a_robbed_shard_that_the_rival_commits_is_not_committed_again(store: Store) -> None:
    def rival(answers: int) -> None:
        if answers == 2:
            claim = rob(store, 0)
            open_stage(
                store.filesystem, store.root, store.identity, keys.ShardVersion(0, 1), claim
            ).close()
            claim.release()
            extract(Store.open(store.root), SeededSource(store.identity), shards=range(1))

    source = ManyInFlight(store.identity, in_flight=8, silent={1, 2}, before_answer=rival)
    summary, _ = run(store, source)
    assert summary.shards_claimed_by_others == [0]
    assert sorted(store.committed()) == [0, 1, 2, 3, 4, 5]
    assert_complete(store.root)


def test_a_shard_that_another_run_committed_costs_one_look_at_the_commits(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[Path] = []
    names = Filesystem.names

    def counted(this: Filesystem, path: Path) -> list[str]:
        listed.extend([path] * (path.name == keys.COMMIT))
        return names(this, path)

    def rival(answers: int) -> None:
        if answers == 1:
            other = SeededSource(store.identity, failing={key_of(7): "broken"})
            extract(Store.open(store.root), other, shards=range(1, 6))
            monkeypatch.setattr(Filesystem, "names", counted)

    extraction = Extraction(store, ManyInFlight(store.identity, in_flight=1, before_answer=rival))
    extraction.run()
    # And one for the shard that this run commits.
    assert len(listed) == 5 + 1
    account = extraction.summary().account
    assert account == Account(extracted=3, committed_before=6, absent_before=1)


def test_the_commits_are_listed_once_to_begin_with(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Store] = []

    class Counted(Ledger):
        def __init__(self, of: Store, wanted: range) -> None:
            made.append(of)
            super().__init__(of, wanted)

    monkeypatch.setattr(extractor, "Ledger", Counted)
    assert extract(store, watched(store)).complete
    assert made == [store]


def test_shards_held_from_the_start_are_passed_over(store: Store) -> None:
    claim = acquire(store.filesystem, store.root, store.identity.uuid, 2, "a" * 16)
    summary, events = run(store, watched(store))
    assert summary.account == Account(extracted=8, held_by_others=2)
    assert "shard 2 is held" in events.notes[0]
    claim.release()


# -- faults ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["crash", "full"])
def test_a_fault_at_any_operation_costs_only_what_was_not_journalled(
    tmp_path: Path, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "SYNC_BYTES", 400)
    template = empty_store(tmp_path / "template", LENGTHS).root
    root, done, n = tmp_path / "store", False, 0
    while not done:
        shutil.copytree(template, root)
        filesystem = FaultyFilesystem()
        if fault == "crash":
            filesystem.crash(n)
        else:
            filesystem.fail(n, errno.ENOSPC, forever=True)
        store = Store.open(root, filesystem=filesystem)
        source = watched(store, in_flight=6, seed=n)
        try:
            extract(store, source)
            done = True
        except (Crash, OSError):
            pass
        filesystem.heal()
        assert_exact(root)
        safe = journalled(root)
        assert set(source.safe) <= safe | {s for k in store.committed() for s in SHARDS[k]}
        again = SeededSource(store.identity)
        assert extract(Store.open(root, filesystem=filesystem), again).complete, n
        assert not safe & set(again.asked), n
        assert_complete(root)
        assert filesystem.touched_after_failure == []
        shutil.rmtree(root)
        n += 13
    assert n > 100


# -- origins ---------------------------------------------------------------------------------------


class TwoServers(ManyInFlight):
    """Every other answer comes from a second server."""

    second: Origin

    def answer(self, request: Request) -> Extracted | Failed:
        answer = super().answer(request)
        if isinstance(answer, Failed) or request.sample % 2 == 0:
            return answer
        return Extracted(answer.sample, answer.states, self.second)


def test_an_answer_may_come_from_elsewhere(store: Store) -> None:
    source = TwoServers(store.identity)
    source.second = Origin(source.origin().match, {"engine": "second"})
    assert extract(store, source).complete
    manifest = store.manifest(store.marker(0))
    engines = [manifest.origins[s.origin].recorded["engine"] for s in manifest.samples]
    assert engines == ["seeded", "second", "seeded"]


def test_an_answer_of_another_model_is_refused(store: Store) -> None:
    source = TwoServers(store.identity)
    source.second = Origin({**source.origin().match, "config": "f" * 32}, {"engine": "second"})
    with pytest.raises(IdentityMismatch, match="config is"):
        extract(store, source)
    assert all(s % 2 == 0 for s in journalled(store.root))
