"""Verdicts outlive their runs, each other's saves, and what becomes of their files."""

import os
from pathlib import Path

import pytest

from hsstore.integrity.scrub import state as state_module
from hsstore.integrity.scrub.state import State, default_folder
from hsstore.integrity.scrub.verdicts import FileHint, Standing, Verdict, Verdicts, file_hint
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.finding import Level
from hsstore.storage.store import Store
from hsstore.testing.stores import filled_store, replace

UUID, FILE = "0" * 32, FileHint(1 << 40, -1, 2**64 - 1)


def verdict(shard: int, time: int = 100, *, sound: bool = True, level: Level = "data") -> Verdict:
    return Verdict(shard, 1, level, time, sound, FILE)


class Notes(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def notes() -> Notes:
    return Notes()


def keep(folder: Path, notes: Notes, *verdicts: Verdict) -> None:
    state = State(folder, UUID, notes)
    for each in verdicts:
        state.add(each)
    state.close()


def known(folder: Path, notes: Notes, store: str = UUID) -> set[Verdict]:
    return set(State(folder, store, notes).known)


def test_what_one_run_saw_the_next_one_knows(tmp_path: Path, notes: Notes) -> None:
    keep(tmp_path, notes, verdict(1), verdict(2, sound=False))
    assert known(tmp_path, notes) == {verdict(1), verdict(2, sound=False)}
    assert known(tmp_path, notes, "1" * 32) == set()
    assert notes == []


def test_a_newer_verdict_replaces_one_of_its_level_only(tmp_path: Path, notes: Notes) -> None:
    keep(tmp_path, notes, verdict(1, 100), verdict(1, 90, level="thorough"))
    keep(tmp_path, notes, verdict(1, 200), verdict(1, 80, level="thorough"))
    assert known(tmp_path, notes) == {verdict(1, 200), verdict(1, 90, level="thorough")}


def test_runs_at_one_time_lose_nothing_of_each_other(tmp_path: Path, notes: Notes) -> None:
    now = 0.0
    states = [State(tmp_path, UUID, notes, elapsed=lambda: now) for _ in range(4)]
    for turn in range(5):
        now += 100
        for number, state in enumerate(states):
            state.add(verdict(10 * turn + number))
            state.save_when_due()
    for state in states[:2]:
        state.close()  # the others are killed
    expected = {verdict(10 * turn + number) for turn in range(5) for number in range(4)}
    assert known(tmp_path, notes) == expected
    keep(tmp_path, notes, verdict(99))
    assert known(tmp_path, notes) == expected | {verdict(99)}


def test_a_run_that_gathers_while_another_saves_loses_nothing(tmp_path: Path, notes: Notes) -> None:
    slow = State(tmp_path, UUID, notes, elapsed=iter(range(0, 9999, 100)).__next__)
    slow.add(verdict(1))
    slow.save_when_due()
    for number in range(2, 6):
        keep(tmp_path, notes, verdict(number))
    slow.add(verdict(6))
    slow.close()
    assert known(tmp_path, notes) == {verdict(n) for n in range(1, 7)}


def test_files_of_ended_runs_do_not_pile_up(tmp_path: Path, notes: Notes) -> None:
    for number in range(20):
        keep(tmp_path, notes, verdict(number))
    assert len([*(tmp_path / UUID).iterdir()]) == 1
    assert known(tmp_path, notes) == {verdict(n) for n in range(20)}


@pytest.mark.parametrize("how", ["torn", "zeroed", "edited", "not verdicts", "no time"])
def test_a_file_that_is_not_whole_is_told_and_counts_for_nothing(
    tmp_path: Path, notes: Notes, how: str
) -> None:
    keep(tmp_path, notes, verdict(1))
    (file,) = (tmp_path / UUID).iterdir()
    raw = file.read_bytes()
    envelope = {"format": 1, "store": UUID, "finished": True}
    row = [1, 1, "data", -1, True, 1, 1, 1]
    damaged = {
        "torn": raw[: len(raw) // 2],
        "zeroed": bytes(len(raw)),
        "edited": raw.replace(b"true", b"false", 1),
        "not verdicts": seal({**envelope, "kind": "commit", "verdicts": []}),
        "no time": seal({**envelope, "kind": "verdicts", "verdicts": [row]}),
    }
    file.write_bytes(damaged[how])
    assert known(tmp_path, notes) == set()
    assert len(notes) == 1
    assert notes[0].startswith(f"{file}: ")
    assert notes[0].endswith("; the verdicts in it do not count")
    keep(tmp_path, Notes(), verdict(2))
    assert known(tmp_path, later := Notes()) == {verdict(2)}
    assert later == []


def test_a_place_that_takes_nothing_is_told_once_and_no_reason_to_end(
    tmp_path: Path, notes: Notes
) -> None:
    (tmp_path / "file").write_text("in the way")
    state = State(tmp_path / "file", UUID, notes, elapsed=iter(range(0, 9999, 100)).__next__)
    for number in range(3):
        state.add(verdict(number))
        state.save_when_due()
    state.close()
    assert len(notes) == 1
    assert notes[0].endswith("; give --state another folder")


def test_a_default_place_is_absolute_or_at_home(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert default_folder() == tmp_path / "hsstore"
    monkeypatch.setenv("HOME", "/home/somebody")
    for given in ("", "relative/path"):
        monkeypatch.setenv("XDG_STATE_HOME", given)
        assert default_folder() == Path("/home/somebody/.local/state/hsstore")


def test_saving_never_takes_most_of_the_time(tmp_path: Path, notes: Notes) -> None:
    now = 0.0

    def elapsed() -> float:
        nonlocal now
        now += 10  # and so long does every save take
        return now

    state = State(tmp_path, UUID, notes, elapsed)
    saves = 0
    for number in range(100):
        state.add(verdict(number))
        state.save_when_due()
        saves += not state._unsaved
    assert 0 < saves < 100 / state_module.SAVE_SHARE * 2


# -- what a verdict is about -----------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return filled_store(tmp_path / "store")


def seen(store: Store, time: int, level: Level = "data", *, sound: bool = True) -> Verdict:
    file = file_hint(store, 1)
    assert file is not None
    return Verdict(1, 1, level, time, sound, file)


def test_deeper_counts_and_shallower_does_not(store: Store) -> None:
    verdicts = Verdicts([seen(store, 100), seen(store, 200, "quick")])
    assert verdicts.standing(store, 1, 1, "data", 300) == Standing(100, sound=True)
    assert verdicts.standing(store, 1, 1, "manifest", 300) == Standing(100, sound=True)
    assert verdicts.standing(store, 1, 1, "quick", 300) == Standing(200, sound=True)
    assert verdicts.standing(store, 1, 1, "thorough", 300) is None


def test_what_a_shallower_check_found_since_counts_against_a_shard(store: Store) -> None:
    verdicts = Verdicts([seen(store, 100), seen(store, 200, "quick", sound=False)])
    assert verdicts.standing(store, 1, 1, "data", 300) == Standing(100, sound=False)
    verdicts.add([seen(store, 250)])
    assert verdicts.standing(store, 1, 1, "data", 300) == Standing(250, sound=True)


def test_what_a_deep_check_found_no_shallower_one_takes_back(store: Store) -> None:
    verdicts = Verdicts([seen(store, 100, "thorough", sound=False), seen(store, 200)])
    assert verdicts.standing(store, 1, 1, "data", 300) == Standing(200, sound=False)
    verdicts.add([seen(store, 250, "thorough")])
    assert verdicts.standing(store, 1, 1, "data", 300) == Standing(250, sound=True)


def test_a_replaced_shard_was_never_verified(store: Store) -> None:
    verdicts = Verdicts([seen(store, 100)])
    replace(store, 1)
    assert verdicts.standing(store, 1, 2, "data", 300) is None


def test_a_shard_whose_file_changed_was_never_verified(store: Store) -> None:
    verdicts = Verdicts([seen(store, 100)])
    path = store.root / keys.shard_file(1)
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1))
    assert verdicts.standing(store, 1, 1, "data", 300) is None
    path.unlink()
    assert verdicts.standing(store, 1, 1, "data", 300) is None


def test_a_verdict_from_the_future_does_not_count(store: Store) -> None:
    assert Verdicts([seen(store, 9999)]).standing(store, 1, 1, "data", 300) is None
