"""Scrubs in slices and subsets, interrupted and killed: each shard is looked at, and none twice."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hsstore.integrity import examine
from hsstore.integrity import fsck as fsck_module
from hsstore.integrity.fsck import Fsck, Unopened, fsck
from hsstore.integrity.repair import repair
from hsstore.integrity.scrub.coverage import coverage
from hsstore.integrity.scrub.merge import merge
from hsstore.integrity.scrub.report_file import read_report
from hsstore.integrity.scrub.schedule import Clock, Scrub
from hsstore.integrity.scrub.state import State
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model import keys
from hsstore.storage.filesystem import LOCAL
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.stores import empty_store, fill, filled_store, replace

SHARDS, HOUR, DAY = 24, 3600, 86400
SECONDS_A_SHARD = 6 * HOUR / SHARDS


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A store of many shards, which no test changes."""
    return fill(empty_store(tmp_path_factory.mktemp("whole") / "store", [16] * SHARDS))


class Examined:
    """Counts what is examined, each shard in a quarter of an hour."""

    def __init__(self) -> None:
        self.shards: list[int] = []
        self.seconds = 2_000_000_000.0

    def __call__(self, subject: Subject, shard: int, listing: examine.Listing) -> ShardCase:
        self.seconds += SECONDS_A_SHARD
        self.shards.append(shard)
        return examine.examine(subject, shard, listing)

    @property
    def clock(self) -> Clock:
        return Clock(lambda: self.seconds, lambda: self.seconds)


@pytest.fixture
def examined(monkeypatch: pytest.MonkeyPatch) -> Examined:
    counting = Examined()
    monkeypatch.setattr(fsck_module, "examine", counting)
    return counting


def check(store: Store, scrub: Scrub) -> Fsck | Unopened:
    run = fsck(store.root, scrub=scrub, threads=1)
    assert list(run) == []
    return run


def test_slices_of_a_scrub_cover_each_shard_exactly_once_and_say_so(
    whole: Store, examined: Examined, tmp_path: Path
) -> None:
    """Six hours of work, an hour a night."""
    nights = 0
    while True:
        nights += 1
        report = tmp_path / f"{nights}.jsonl"
        scrub = Scrub(max_duration_seconds=HOUR, max_age_seconds=30 * DAY, state=tmp_path,
                      report=report, clock=examined.clock)  # fmt: skip
        began = examined.seconds
        summary = check(whole, scrub).summary
        assert examined.seconds - began <= HOUR + 2 * SECONDS_A_SHARD
        assert summary.shards_checked + summary.shards_recent == len(examined.shards)
        if summary.complete:
            break
        assert summary.stopped == "max-duration"
        assert summary.unverified == SHARDS - len(examined.shards)
        examined.seconds += DAY
    assert examined.shards == [*range(SHARDS)]
    assert 4 <= nights <= 6
    assert (summary.unverified, summary.stopped) == (0, None)
    known = State(tmp_path, whole.identity.uuid, print).known
    covered = coverage(whole, known, now=examined.seconds)
    assert (covered.verified, covered.never, covered.share) == (SHARDS, 0, 1.0)
    merged = merge([read_report(tmp_path / f"{n}.jsonl") for n in range(1, nights + 1)])
    assert (merged.missing, merged.unfinished, merged.summary.complete) == ((), (), True)
    assert merged.summary.unverified == 0


def test_without_an_age_the_longest_ago_comes_first(
    whole: Store, examined: Examined, tmp_path: Path
) -> None:
    for _ in range(20):
        check(whole, Scrub(max_duration_seconds=HOUR, state=tmp_path, clock=examined.clock))
    times = Counter(examined.shards)
    assert min(times.values()) > 2
    # Two that were looked at in one second may change places.
    assert max(times.values()) - min(times.values()) <= 2


def test_a_slice_shorter_than_its_shards_still_gets_on(
    whole: Store, examined: Examined, tmp_path: Path
) -> None:
    for _ in range(3):
        check(whole, Scrub(max_duration_seconds=1e-9, state=tmp_path, clock=examined.clock))
    assert sorted(set(examined.shards)) == sorted(examined.shards)
    assert 3 <= len(examined.shards) <= 6


def test_subsets_cover_each_shard_exactly_once(whole: Store, examined: Examined) -> None:
    for number in range(1, 8):
        summary = check(whole, Scrub(subset=(number, 7))).summary
        assert (summary.complete, summary.subset, summary.unverified) == (True, (number, 7), 0)
        assert summary.shards_checked == summary.shards_asked < SHARDS
    assert Counter(examined.shards) == Counter(range(SHARDS))


def test_what_concerns_the_whole_store_is_found_over_all_subsets(tmp_path: Path) -> None:
    """The table of digests spans all shards, and each subset knows only its own."""
    store = filled_store(tmp_path / "store")
    sample = store.plan.samples - 1
    damage.flip_bit(store.root / keys.array_chunk(keys.SAMPLE_DIGEST, 0), 16 * sample)
    found = {
        number: {f.kind for f in fsck(store, scrub=Scrub(subset=(number, 4)))}
        for number in range(1, 5)
    }
    last = store.samples.extent(sample).shard + 1
    assert found == {number: {"array-damaged"} if number == last else set() for number in found}


def test_replaced_changed_and_damaged_shards_are_not_left_out(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    scrub = Scrub(max_age_seconds=DAY, state=tmp_path / "state")
    damage.flip_bit(store.root / keys.shard_file(3), 100)
    run = fsck(store, scrub=scrub)
    assert {finding.shard for finding in run} == {3}
    replace(store, 0)
    os.utime(store.root / keys.shard_file(1))
    again = fsck(store, scrub=scrub)
    assert {finding.shard for finding in again} == {3}
    assert (again.summary.shards_checked, again.summary.shards_recent) == (3, 1)
    assert not again.summary.sound
    known = State(tmp_path / "state", store.identity.uuid, print).known
    covered = coverage(store, known, now=time.time())
    assert (covered.verified, covered.unsound, covered.never) == (3, 1, 0)


def test_what_is_wrong_between_shards_is_seen_again_by_who_leaves_verified_ones_out(
    tmp_path: Path,
) -> None:
    store = filled_store(tmp_path / "store")
    scrub = Scrub(max_age_seconds=DAY, state=tmp_path / "state")
    damage.flip_bit(store.root / keys.array_chunk(keys.SAMPLE_DIGEST, 0), 16)
    for _ in range(2):
        assert {finding.kind for finding in fsck(store, scrub=scrub)} == {"array-damaged"}
    repair(store, apply=True)
    for recent in (0, store.plan.shards):
        assert check(store, scrub).summary.shards_recent == recent


def test_a_shallower_run_leaves_what_a_deeper_one_proved(whole: Store, tmp_path: Path) -> None:
    scrub = Scrub(max_age_seconds=DAY, state=tmp_path)
    for level, recent in (("quick", 0), ("data", 0), ("quick", SHARDS), ("manifest", SHARDS)):
        run = fsck(whole, level, scrub=scrub)  # type: ignore[arg-type]
        assert list(run) == []
        assert run.summary.shards_recent == recent
        assert run.summary.complete


# -- ends --------------------------------------------------------------------------------------


def typed(*arguments: object) -> list[str]:
    return [str(argument) for argument in arguments]


@contextlib.contextmanager
def slow_check(log: Path, seconds: float, *arguments: object) -> Iterator["subprocess.Popen[str]"]:
    """A real command whose shards take their time."""
    command = [sys.executable, "-m", "hsstore.testing.slow_check", *typed(log, seconds, *arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def wait_until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 120
    while not done():
        assert time.monotonic() < end
        time.sleep(0.02)


def shards_in(log: Path) -> list[int]:
    return [*map(int, log.read_text().split())] if log.exists() else []


def verdicts(state: Path, store: Store) -> set[int]:
    return {verdict.shard for verdict in State(state, store.identity.uuid, print).known}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_keeps_its_verdicts_and_the_next_one_goes_on(
    whole: Store, tmp_path: Path, number: signal.Signals
) -> None:
    log, state, report = tmp_path / "log", tmp_path / "state", tmp_path / "report.jsonl"
    options = ("fsck", whole.root, "--state", state, "--max-age", "1d", "--threads", 1)
    with slow_check(log, 0.1, *options, "--report", report) as process:
        wait_until(lambda: len(shards_in(log)) >= 6)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 32, err
    assert out.startswith("Interrupted: ")
    assert "the same command goes on with them" in out
    seen = verdicts(state, whole)
    assert len(seen) >= 4
    kept = read_report(report)
    assert kept.summary is not None
    assert (kept.summary.stopped, set(kept.checked)) == ("interrupted", seen)
    with slow_check(tmp_path / "second", 0, *options, "--json") as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert set(shards_in(tmp_path / "second")) == {*range(SHARDS)} - seen
    assert json.loads(out.splitlines()[-1])["shards_recent"] == len(seen)


def test_a_killed_run_loses_seconds_of_verdicts_and_leaves_a_readable_report(
    whole: Store, tmp_path: Path
) -> None:
    log, state, report = tmp_path / "log", tmp_path / "state", tmp_path / "report.jsonl"
    options = ("fsck", whole.root, "--state", state, "--max-age", "1d", "--threads", 1)
    with slow_check(log, 0.2, *options, "--report", report) as process:
        wait_until(lambda: len(verdicts(state, whole)) >= 5)
        done = shards_in(log)
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=60)
    seen = verdicts(state, whole)
    # One more is in work and up to two are done but not saved: a save comes every 0.2 s here.
    assert set(done[:-3]) <= seen
    kept = read_report(report)
    assert (kept.summary, kept.finished) == (None, False)
    assert set(kept.checked) <= {*range(SHARDS)}
    assert kept.checked
    with slow_check(tmp_path / "second", 0, *options) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert set(shards_in(tmp_path / "second")) == {*range(SHARDS)} - seen
    assert f"left out, verified within --max-age: {len(seen)} shards" in out


def test_the_array_of_a_batch_system_shares_one_state(whole: Store, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with contextlib.ExitStack() as stack:
        runs = [
            stack.enter_context(
                slow_check(tmp_path / f"log-{n}", 0.02, "fsck", whole.root, "--state", state,
                           "--subset", f"{n}/3", "--report", tmp_path / f"{n}.jsonl")
            )
            for n in (1, 2, 3)
        ]  # fmt: skip
        for run in runs:
            out, err = run.communicate(timeout=180)
            assert run.returncode == 0, err
            assert "33.3% of the store" in out
    assert verdicts(state, whole) == {*range(SHARDS)}
    merged = merge([read_report(tmp_path / f"{n}.jsonl") for n in (1, 2, 3)])
    assert (merged.summary.complete, merged.summary.shards_checked) == (True, SHARDS)


def test_a_report_is_durable_with_its_name(
    whole: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    monkeypatch.setattr(LOCAL, "sync_folder", synced.append)
    list(fsck(whole, "quick", scrub=Scrub(report=tmp_path / "report.jsonl")))
    assert synced == [tmp_path]
