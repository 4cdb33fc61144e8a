"""The model of a power cut allows all that weak POSIX does, and keeps what was synced."""

import os
from pathlib import Path

import pytest

from hsstore.testing.crash_states import RecordingFilesystem, State, snapshot, write_state


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "disk"
    (place / "a").mkdir(parents=True)
    (place / "b").mkdir()
    (place / "a" / "old").write_bytes(b"old")
    return place


def now(filesystem: RecordingFilesystem, draws: int = 60) -> list[dict[str, bytes | None]]:
    """Everything that may be there after a cut at this moment."""
    states = {state for _ in range(draws) for state in filesystem.possible()}
    return [{entry.path: entry.data for entry in state} for state in states]


def test_unsynced_bytes_are_there_or_not_or_zero_or_torn(folder: Path) -> None:
    filesystem = RecordingFilesystem(folder)
    path, data = folder / "a" / "old", b"x" * 512 + b"y" * 512
    with filesystem.opened(path, os.O_RDWR) as fd:
        filesystem.write_at(fd, data, 0, path)
        found = {state["a/old"] for state in now(filesystem)}
        behind = b"old".ljust(512, b"\0") + data[512:]
        assert found == {b"old", data, b"old".ljust(1024, b"\0"), data[:512], behind}
        filesystem.sync_data(fd, path)
        assert {state["a/old"] for state in now(filesystem)} == {data}
        filesystem.truncate(fd, 3, path)
        assert {state["a/old"] for state in now(filesystem)} == {data, b"xxx"}


def test_syncing_a_file_says_nothing_of_its_name(folder: Path) -> None:
    filesystem = RecordingFilesystem(folder)
    filesystem.write_new(folder / "a" / "new", b"data")
    assert {state.get("a/new") for state in now(filesystem)} == {None, b"data"}
    filesystem.sync_folder(folder)
    assert {"a/new" in state for state in now(filesystem)} == {True, False}
    filesystem.sync_folder(folder / "a")
    assert {state.get("a/new") for state in now(filesystem)} == {b"data"}


def test_of_a_rename_to_another_folder_both_one_or_none(folder: Path) -> None:
    filesystem = RecordingFilesystem(folder)
    filesystem.rename(folder / "a" / "old", folder / "b" / "new")
    found = {("a/old" in state, "b/new" in state) for state in now(filesystem)}
    assert found == {(True, True), (True, False), (False, True), (False, False)}
    filesystem.sync_folder(folder / "b")
    assert {"b/new" in state for state in now(filesystem)} == {True}


def test_a_rename_within_a_folder_is_done_or_not(folder: Path) -> None:
    filesystem = RecordingFilesystem(folder)
    filesystem.rename(folder / "a" / "old", folder / "a" / "new")
    found = {("a/old" in state, "a/new" in state) for state in now(filesystem)}
    assert found == {(True, False), (False, True)}


def test_changes_of_names_arrive_in_any_order(folder: Path) -> None:
    filesystem = RecordingFilesystem(folder)
    filesystem.link(folder / "a" / "old", folder / "a" / "second")
    filesystem.unlink(folder / "a" / "old")
    found = {("a/old" in state, "a/second" in state) for state in now(filesystem)}
    assert found == {(True, True), (True, False), (False, True), (False, False)}


def test_a_folder_that_is_lost_takes_all_below_along(folder: Path) -> None:
    filesystem = RecordingFilesystem(folder)
    os.mkdir(folder / "a" / "sub")  # noqa: PTH102 - beside the seam, which syncs the parent
    filesystem.write_new(folder / "a" / "sub" / "file", b"data")
    filesystem.sync_folder(folder / "a" / "sub")
    found = {("a/sub" in state, "a/sub/file" in state) for state in now(filesystem)}
    assert found == {(True, True), (False, False)}


def test_a_state_becomes_files_with_their_second_names(folder: Path, tmp_path: Path) -> None:
    (folder / "b" / "again").hardlink_to(folder / "a" / "old")
    state: State = snapshot(folder)
    write_state(state, tmp_path / "copy")
    assert (tmp_path / "copy" / "b" / "again").samefile(tmp_path / "copy" / "a" / "old")
    assert [entry[:2] for entry in snapshot(tmp_path / "copy")] == [entry[:2] for entry in state]
