"""A disk that fills up is waited for: nothing that was done is lost, and it goes on by itself."""

import contextlib
import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hsstore.errors import OutOfSpace
from hsstore.extraction import room
from hsstore.extraction.extractor import Extraction, extract
from hsstore.extraction.room import SpacePolicy
from hsstore.model import keys
from hsstore.model.progress import Silent
from hsstore.storage import ballast, space, writer
from hsstore.storage.filesystem import Buffer, Filesystem
from hsstore.storage.store import Store
from hsstore.testing.faults import GROWING, FaultyFilesystem
from hsstore.testing.sources import ManyInFlight, SeededSource
from hsstore.testing.stores import contents, empty_store, fill
from hsstore.testing.verdicts import assert_complete, assert_exact, journalled, leftovers

LENGTHS = (3, 4, 16, 2, 9, 16)


@pytest.fixture(autouse=True)
def journal_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SYNC_BYTES", 1)


class Told(Silent):
    """Keeps what a run tells of its pauses."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.notes: list[str] = []
        self.done = 0

    def advance(self, units: int) -> None:
        self.done += units

    def note(self, text: str) -> None:
        self.notes.append(text)

    def event(self, name: str, members: Mapping[str, Any]) -> None:  # noqa: ARG002 - Progress's own
        if name in ("paused", "resumed"):
            self.events.append(name)


class Clock:
    """Time that passes only in sleep; ``when_waiting`` is called at each."""

    def __init__(self, when_waiting: Callable[[], None] = lambda: None) -> None:
        self.now = 0.0
        self.when_waiting = when_waiting

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.when_waiting()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(room, "time", clock)
    return clock


PATIENT = SpacePolicy(min_free_bytes=0)


CODECS = ["none", pytest.param("blosc-zstd", marks=pytest.mark.sweep)]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    "code", [errno.ENOSPC, pytest.param(errno.EDQUOT, marks=pytest.mark.sweep)]
)
@pytest.mark.usefixtures("clock")
def test_whatever_is_refused_once_the_run_goes_on_by_itself(
    tmp_path: Path, code: int, codec: str
) -> None:
    expected = contents(fill(empty_store(tmp_path / "whole", LENGTHS, codec=codec)))
    template = empty_store(tmp_path / "template", LENGTHS, codec=codec).root
    n, seen = 0, 0
    while True:
        root = shutil.copytree(template, tmp_path / f"{n}")
        filesystem = FaultyFilesystem(GROWING)
        store = Store.open(root, filesystem=filesystem)
        source, told = SeededSource(store.identity), Told()
        filesystem.fail(n, code)
        assert extract(store, source, space=PATIENT, progress=told).complete, n
        if len(filesystem.operations) <= n:
            break
        seen += 1
        assert contents(store) == expected
        assert_complete(root)
        assert len(source.asked) == len(LENGTHS)
        assert sorted(set(source.safe)) == list(range(len(LENGTHS)))
        assert told.done == sum(LENGTHS)
        n += 1
    assert seen > 100


@pytest.mark.parametrize("codec", CODECS)
def test_a_disk_that_stays_full_is_waited_for_and_nothing_is_computed_twice(
    tmp_path: Path, clock: Clock, codec: str
) -> None:
    template = empty_store(tmp_path / "template", LENGTHS, codec=codec).root
    count = operations(Path(shutil.copytree(template, tmp_path / "counted")))
    for n in range(0, count, 7):
        root = shutil.copytree(template, tmp_path / f"{n}")
        filesystem = FaultyFilesystem(GROWING - {"sync"})
        store = Store.open(root, filesystem=filesystem)
        source, told = SeededSource(store.identity), Told()
        filesystem.fail(n, errno.ENOSPC, forever=True)
        began = clock.now
        clock.when_waiting = lambda began=began, disk=filesystem: (  # type: ignore[misc]
            disk.heal() if clock.now - began > 20 else None
        )
        assert extract(store, source, space=PATIENT, progress=told).complete, n
        assert told.events == ["paused", "resumed"] * (len(told.events) // 2), n
        assert len(source.asked) == len(set(source.asked)) == len(LENGTHS), n
        assert_complete(root)


def operations(root: Path) -> int:
    filesystem = FaultyFilesystem(GROWING - {"sync"})
    store = Store.open(root, filesystem=filesystem)
    extract(store, SeededSource(store.identity), space=PATIENT)
    return len(filesystem.operations)


def test_a_disk_that_refuses_to_cut_a_file_too_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    class Full(FaultyFilesystem):
        """Takes nothing for a while; a filesystem that copies on writing needs room to cut, too."""

        writes = refusals = 0

        def _count(self, kind: str, path: Path) -> None:
            super()._count(kind, path)
            if path.name == keys.STAGED_DATA and kind in ("write", "truncate"):
                self.writes += kind == "write"
                if self.writes > 1 and clock.now < 20:
                    self.refusals += 1
                    assert self.refusals < 100
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    root = empty_store(tmp_path / "store", LENGTHS).root
    store = Store.open(root, filesystem=Full(frozenset({"write", "truncate"})))
    source = SeededSource(store.identity)
    assert extract(store, source, space=PATIENT).complete
    assert clock.now >= 20
    assert len(source.asked) == len(LENGTHS)
    assert_complete(root)


@pytest.mark.usefixtures("clock")
def test_the_source_hears_of_what_was_kept_by_a_journal_whose_sync_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server keeps the rows of a sample until then, and takes no more than it can keep."""
    monkeypatch.setattr(writer, "SYNC_BYTES", 64 << 20)
    template = empty_store(tmp_path / "template", LENGTHS, shard_rows=64).root
    kept = 0
    for n in range(100):
        root = shutil.copytree(template, tmp_path / f"{n}")
        filesystem = FaultyFilesystem(frozenset({"sync"}))
        store = Store.open(root, filesystem=filesystem)
        source = SeededSource(store.identity)
        filesystem.fail(n, errno.ENOSPC)
        assert extract(store, source, space=PATIENT).complete
        if len(filesystem.operations) <= n:
            break
        kept += filesystem.operations[n][1].name == keys.STAGED_JOURNAL
        assert sorted(set(source.safe)) == list(range(len(LENGTHS))), filesystem.operations[n]
    assert kept


def test_a_disk_that_is_full_from_the_start_is_waited_for(tmp_path: Path, clock: Clock) -> None:
    """Also by a run that finds leftovers, which takes a claim to clear."""
    root = empty_store(tmp_path / "store", LENGTHS).root
    extract(Store.open(root), SeededSource(Store.open(root).identity), shards=range(1))
    (root / keys.stage(0, "a" * 16)).mkdir()
    filesystem = FaultyFilesystem(GROWING)
    store = Store.open(root, filesystem=filesystem)
    filesystem.fail(0, errno.ENOSPC, forever=True)
    clock.when_waiting = lambda: filesystem.heal() if clock.now > 20 else None
    told = Told()
    assert extract(store, SeededSource(store.identity), space=PATIENT, progress=told).complete
    assert clock.now > 20
    assert told.events == ["paused", "resumed"]
    assert_complete(root)


def test_in_the_end_it_gives_up_and_says_so(tmp_path: Path, clock: Clock) -> None:
    root = empty_store(tmp_path / "store", LENGTHS).root
    filesystem = FaultyFilesystem(GROWING)
    store = Store.open(root, filesystem=filesystem)
    filesystem.fail(30, errno.ENOSPC, forever=True)
    with pytest.raises(
        OutOfSpace, match=r"although it says .*; waited for 60. s, .* are safe"
    ) as refused:
        extract(store, SeededSource(store.identity), space=PATIENT)
    assert clock.now == pytest.approx(600, abs=2)
    assert (refused.value.place, "same command" in str(refused.value)) == (str(root), True)
    assert_exact(root)
    kept = journalled(root)
    filesystem.heal()
    again = SeededSource(store.identity)
    assert extract(Store.open(root), again).complete
    assert not kept & set(again.asked)
    assert_complete(root)


def test_the_largest_size_of_a_file_is_not_waited_for(tmp_path: Path, clock: Clock) -> None:
    filesystem = FaultyFilesystem(GROWING)
    root = empty_store(tmp_path / "store", LENGTHS).root
    store = Store.open(root, filesystem=filesystem)
    filesystem.fail(30, errno.EFBIG)
    with pytest.raises(OSError, match="File too large"):
        extract(store, SeededSource(store.identity), space=PATIENT)
    assert clock.now == 0
    assert_exact(root)


def test_it_pauses_before_the_disk_is_full_and_asks_for_nothing_meanwhile(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = empty_store(tmp_path / "store", LENGTHS)
    free = 10**9
    real = space.available

    def look(path: Path) -> space.Space:
        found = real(path)
        return space.Space(found.path, found.device, 10**10, 0, free, None)

    monkeypatch.setattr(room, "available", look)
    source, told, asked = ManyInFlight(store.identity, in_flight=3), Told(), list[int]()

    def fill_up(answers: int) -> None:
        nonlocal free
        free = 10**9 if answers < 2 or clock.now > 100 else 1000

    source.before_answer = fill_up

    def wait() -> None:
        asked.append(len(source.asked))
        fill_up(9)

    clock.when_waiting = wait
    summary = extract(store, source, space=SpacePolicy(min_free_bytes=100_000), progress=told)
    assert summary.complete
    assert clock.now == pytest.approx(100.5)
    assert told.events == ["paused", "resumed"]
    assert len(set(asked)) == 1
    assert len(source.answered) == len(LENGTHS) > asked[0]
    assert any("1 kB of the disk are free, 1" in note for note in told.notes)


def test_a_little_more_than_the_least_does_not_end_a_pause(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = empty_store(tmp_path / "store", (3,))
    free = [1000]
    found = space.available(store.root)
    monkeypatch.setattr(
        room,
        "available",
        lambda _: space.Space(found.path, found.device, 10**10, 0, free[-1], None),
    )
    later = {10.0: 10_050_000, 20.0: 15_000_000}
    clock.when_waiting = lambda: free.append(later.get(clock.now, free[-1]))
    extract(store, SeededSource(store.identity), space=SpacePolicy(min_free_bytes=10_000_000))
    assert clock.now == 20


@pytest.mark.parametrize(
    ("free", "inodes", "said"),
    [
        (999, None, "0 kB of the disk are free, 2 kB are needed to go on"),
        (1250, None, "the disk takes no more: 1 kB are free"),
        (10**9, 3, "too few inodes of the disk are free for more files: 3"),
        (10**9, 99, "the disk takes no more, although it says that 1.00 GB are free"),
    ],
)
def test_a_pause_says_what_is_lacking(
    tmp_path: Path,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    free: int,
    inodes: int | None,
    said: str,
) -> None:
    store, told = empty_store(tmp_path / "store", LENGTHS), Told()
    found = space.Space(store.root, 0, 10**10, 0, free, inodes)
    monkeypatch.setattr(room, "available", lambda _: found)
    waiting = room.Room(store, SpacePolicy(min_free_bytes=1000), told)
    waiting.refused()
    waiting.wait(lambda: clock.now > 0, lambda _: None)
    assert told.notes == [f"extraction paused: {said}"]


def test_a_pause_that_turns_out_to_need_more_says_so(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, told, free = empty_store(tmp_path / "store", LENGTHS), Told(), [0]
    monkeypatch.setattr(
        room, "available", lambda _: space.Space(store.root, 0, 10**10, 0, free[-1], None)
    )
    waiting = room.Room(store, SpacePolicy(min_free_bytes=1000), told)
    for needed, enough in ((0, 1250), (10**8, 10**9)):
        clock.when_waiting = lambda enough=enough: free.append(enough)  # type: ignore[misc]
        assert not waiting.has(needed)
        waiting.wait(lambda: False, lambda _: None)
    assert told.notes == [
        "extraction paused: 0 kB of the disk are free, 2 kB are needed to go on",
        "extraction still paused: 1 kB of the disk are free, 0.11 GB are needed to go on",
    ]
    assert told.events == ["paused"]


def test_stopping_ends_a_pause(tmp_path: Path, clock: Clock) -> None:
    filesystem = FaultyFilesystem(GROWING)
    store = Store.open(empty_store(tmp_path / "store", LENGTHS).root, filesystem=filesystem)
    filesystem.fail(30, errno.ENOSPC, forever=True)
    summary = extract(
        store, SeededSource(store.identity), space=PATIENT, stop=lambda: clock.now > 10
    )
    assert summary.stopped
    assert clock.now < 12
    assert_exact(store.root)


def test_a_pause_that_nothing_came_of_leaves_nothing(tmp_path: Path, clock: Clock) -> None:
    store = empty_store(tmp_path / "store", LENGTHS)
    too_much = SpacePolicy(min_free_bytes=10**18)
    for stop in (lambda: clock.now > 10, lambda: False):
        with contextlib.suppress(OutOfSpace):
            extract(store, SeededSource(store.identity), space=too_much, stop=stop)
        assert leftovers(store.root) == []
    assert clock.now > 600


def test_the_ballast_makes_room_for_what_was_done(tmp_path: Path, clock: Clock) -> None:
    class Full(FaultyFilesystem):
        """Full as long as the ballast is there, once it has had some writes."""

        def _count(self, kind: str, path: Path) -> None:
            self._failing = len(self.operations) > 40 and (root / keys.BALLAST).exists()
            super()._count(kind, path)

    root = empty_store(tmp_path / "store", LENGTHS).root
    filesystem = Full(GROWING - {"sync"})
    store = Store.open(root, filesystem=filesystem)
    filesystem.fail(0, errno.ENOSPC, forever=True)
    source = SeededSource(store.identity)
    assert extract(store, source, space=PATIENT).complete
    assert clock.now == 0
    assert len(source.asked) == len(LENGTHS)
    assert_complete(root)


def test_a_commit_counts_though_the_ballast_cannot_be_made_after_it(
    tmp_path: Path, clock: Clock
) -> None:
    class Failing(Filesystem):
        """Full for the first writes of states, and broken where the ballast is made again."""

        refusals, ballasts = 2, 0

        def write_at(self, fd: int, data: Buffer, offset: int, path: Path) -> None:
            if path.name == keys.STAGED_DATA and self.refusals:
                self.refusals -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            super().write_at(fd, data, offset, path)

        def write_new(self, path: Path, data: Buffer) -> None:
            self.ballasts += path.name == keys.BALLAST
            if self.ballasts > 1:
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            super().write_new(path, data)

    root = empty_store(tmp_path / "store", [16, 16]).root
    store = Store.open(root, filesystem=Failing())
    extraction = Extraction(store, SeededSource(store.identity), space=PATIENT)
    with pytest.raises(OSError, match="ballast"):
        extraction.run()
    assert clock.now > 0
    summary = extraction.summary()
    assert (summary.shards_committed, summary.account.extracted) == (1, 1)
    assert len(Store.open(root).committed()) == 1


def test_the_ballast_takes_space_and_is_gone_in_the_end(tmp_path: Path) -> None:
    store, seen = empty_store(tmp_path / "store", LENGTHS), list[int]()
    source = ManyInFlight(
        store.identity,
        before_answer=lambda _: seen.append((store.root / keys.BALLAST).stat().st_blocks),
    )
    assert extract(store, source, space=PATIENT).complete
    assert min(seen) * space.STATUS_BLOCK_BYTES >= ballast.BALLAST_BYTES
    assert not (store.root / keys.BALLAST).exists()
    assert not (fill(empty_store(tmp_path / "other", LENGTHS)).root / keys.BALLAST).exists()


def test_a_shard_has_its_space_from_the_start(tmp_path: Path) -> None:
    lengths = [64] * 16
    store = empty_store(tmp_path / "store", lengths, hidden_size=256, shard_rows=1024)
    allocated = list[int]()

    def look(_: int) -> None:
        (data,) = (store.root / keys.STAGE).glob(f"*/{keys.STAGED_DATA}")
        allocated.append(data.stat().st_blocks * space.STATUS_BLOCK_BYTES)

    source = ManyInFlight(store.identity, {"sample-3": "cannot"}, before_answer=look)
    assert extract(store, source, space=PATIENT).samples_failed == 1
    payload = sum(lengths) * store.identity.geometry.row_bytes
    assert min(allocated) >= payload
    shard = (store.root / keys.shard_file(0)).stat().st_blocks * space.STATUS_BLOCK_BYTES
    assert shard < payload


@pytest.mark.root
@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_a_full_disk_that_is_enlarged_ends_the_pause(
    tmp_path: Path, small_disk: Path, clock: Clock, codec: str
) -> None:
    lengths = np.random.default_rng(3).integers(1, 40, 40).tolist()
    shape: dict[str, Any] = {"hidden_size": 512, "shard_rows": 512, "codec": codec}
    expected = contents(fill(empty_store(tmp_path / "elsewhere", lengths, **shape)))
    store = empty_store(small_disk / "store", lengths, **shape)
    source, told = SeededSource(store.identity), Told()

    def enlarge() -> None:
        if clock.now == 30:
            assert assert_exact(store.root) < store.plan.samples
            subprocess.run(["/bin/mount", "-o", "remount,size=16m", small_disk], check=True)

    clock.when_waiting = enlarge
    assert extract(store, source, space=SpacePolicy(), progress=told).complete
    assert clock.now >= 30
    assert told.events == ["paused", "resumed"]
    assert contents(store) == expected
    assert len(source.asked) == len(set(source.asked))
    assert_complete(store.root)
