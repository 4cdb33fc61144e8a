"""What every implementation of the seam promises, those that tests break things with included."""

import ctypes
import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.storage import filesystem as filesystem_module
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.testing.crash_states import RecordingFilesystem
from hsstore.testing.faults import FaultyFilesystem

IMPLEMENTATIONS: dict[str, Callable[[Path], Filesystem]] = {
    "local": lambda _: LOCAL,
    "faulty": lambda _: FaultyFilesystem(),
    "recording": RecordingFilesystem,
}


@pytest.fixture(params=IMPLEMENTATIONS)
def filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    return IMPLEMENTATIONS[request.param](tmp_path)


def held(path: Path) -> dict[str, bytes]:
    return {found.name: found.read_bytes() for found in path.iterdir() if found.is_file()}


# -- whole small files -----------------------------------------------------------------------------


def test_what_is_written_is_read(filesystem: Filesystem, tmp_path: Path) -> None:
    data = bytes(range(256)) * 5000  # more than one read takes
    filesystem.write_new(tmp_path / "file", data)
    assert filesystem.read(tmp_path / "file") == data
    assert stat.S_IMODE(filesystem.status(tmp_path / "file").st_mode) & 0o111 == 0


def test_a_new_file_is_never_written_over_another(filesystem: Filesystem, tmp_path: Path) -> None:
    filesystem.write_new(tmp_path / "file", b"first")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("file", "link"):
        with pytest.raises(FileExistsError) as refused:
            filesystem.write_new(tmp_path / name, b"second")
        assert refused.value.filename == str(tmp_path / name)
    assert held(tmp_path) == {"file": b"first"}


def test_publishing_is_for_the_first(filesystem: Filesystem, tmp_path: Path) -> None:
    filesystem.publish(tmp_path / "file", b"first")
    with pytest.raises(FileExistsError):
        filesystem.publish(tmp_path / "file", b"second")
    assert held(tmp_path) == {"file": b"first"}


def test_publishing_goes_through_the_folder_that_is_named(
    filesystem: Filesystem, tmp_path: Path
) -> None:
    filesystem.make_folder(tmp_path / "own")
    filesystem.publish(tmp_path / "file", b"data", within=tmp_path / "own")
    assert held(tmp_path) == {"file": b"data"}
    assert held(tmp_path / "own") == {}
    with pytest.raises(FileNotFoundError):
        filesystem.publish(tmp_path / "other", b"data", within=tmp_path / "gone")
    assert held(tmp_path) == {"file": b"data"}


def test_replacing_puts_one_in_place_of_another_or_of_none(
    filesystem: Filesystem, tmp_path: Path
) -> None:
    for data in (b"old", b"newer"):
        filesystem.replace(tmp_path / "file", data)
        assert held(tmp_path) == {"file": data}


# -- open files ------------------------------------------------------------------------------------


def test_links_and_folders_are_not_opened_for_files(filesystem: Filesystem, tmp_path: Path) -> None:
    filesystem.write_new(tmp_path / "file", b"data")
    (tmp_path / "link").symlink_to("file")
    with pytest.raises(OSError, match="symbolic links") as refused:
        filesystem.read(tmp_path / "link")
    assert (refused.value.errno, refused.value.filename) == (errno.ELOOP, str(tmp_path / "link"))
    with pytest.raises(IsADirectoryError):
        filesystem.open(tmp_path, os.O_WRONLY)


def test_a_pipe_is_not_waited_for(filesystem: Filesystem, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="No such device"):
        filesystem.open(tmp_path / "pipe", os.O_WRONLY)


def test_a_descriptor_is_closed_at_the_end_and_not_inherited(
    filesystem: Filesystem, tmp_path: Path
) -> None:
    filesystem.write_new(tmp_path / "file", b"data")
    with filesystem.opened(tmp_path / "file") as fd:
        assert not os.get_inheritable(fd)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


@pytest.mark.parametrize("size", [1, 3, 4096])
def test_a_system_that_takes_and_gives_little_at_a_time_is_gone_on_with(
    filesystem: Filesystem, tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:size], at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:size]], at))
    data, path, out = bytes(range(250)) * 2, tmp_path / "file", bytearray(600)
    filesystem.write_new(path, data)
    assert path.read_bytes() == data
    with filesystem.opened(path) as fd:
        assert filesystem.read_at(fd, out, 100, path) == 400
        assert bytes(out) == data[100:] + bytes(200)
        assert filesystem.read_at(fd, bytearray(4), 500, path) == 0


def test_a_write_of_which_nothing_is_taken_is_an_error(
    filesystem: Filesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    with filesystem.opened(path, os.O_RDWR | os.O_CREAT) as fd:
        monkeypatch.setattr(os, "pwrite", lambda *_: 0)
        with pytest.raises(OSError, match="nothing") as refused:
            filesystem.write_at(fd, b"data", 0, path)
        assert (refused.value.errno, refused.value.filename) == (errno.EIO, str(path))
        filesystem.write_at(fd, b"", 0, path)


def test_an_interrupted_call_is_made_again_by_python(
    filesystem: Filesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PEP 475 repeats what a signal interrupted; what is raised all the same is passed on."""
    path = tmp_path / "file"

    def interrupted(*_: object) -> int:
        raise InterruptedError(errno.EINTR, "interrupted")

    with filesystem.opened(path, os.O_RDWR | os.O_CREAT) as fd:
        monkeypatch.setattr(os, "pwrite", interrupted)
        with pytest.raises(InterruptedError) as refused:
            filesystem.write_at(fd, b"data", 0, path)
    assert refused.value.filename == str(path)


@pytest.mark.parametrize(
    ("call", "act"),
    [
        ("pwrite", lambda f, fd, path: f.write_at(fd, b"x", 0, path)),
        ("preadv", lambda f, fd, path: f.read_at(fd, bytearray(1), 0, path)),
        ("ftruncate", lambda f, fd, path: f.truncate(fd, 0, path)),
        ("fsync", lambda _, fd, path: LOCAL.sync(fd, path)),
        ("fdatasync", lambda _, fd, path: LOCAL.sync_data(fd, path)),
    ],
)
def test_errors_of_descriptors_name_the_path(
    filesystem: Filesystem,
    tmp_path: Path,
    call: str,
    act: Callable[[Filesystem, int, Path], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = tmp_path / "file"

    def refuse(*_: object) -> int:
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    with filesystem.opened(path, os.O_RDWR | os.O_CREAT) as fd:
        monkeypatch.setattr(os, call, refuse)
        with pytest.raises(OSError, match="quota") as refused:
            act(filesystem, fd, path)
    assert (refused.value.errno, refused.value.filename) == (errno.EDQUOT, str(path))


def test_a_file_is_made_shorter_and_longer(filesystem: Filesystem, tmp_path: Path) -> None:
    path = tmp_path / "file"
    with filesystem.opened(path, os.O_RDWR | os.O_CREAT) as fd:
        filesystem.write_at(fd, b"0123456789", 0, path)
        filesystem.truncate(fd, 4, path)
        filesystem.truncate(fd, 6, path)
        filesystem.write_at(fd, b"z", 7, path)
        filesystem.sync_data(fd, path)
        filesystem.start_writing(fd, 0, 8)
        filesystem.forget_cached(fd)
        assert filesystem.size(fd) == 8
    assert filesystem.read(path) == b"0123\0\0\0z"


# -- names -----------------------------------------------------------------------------------------


def test_a_second_name_is_given_once(filesystem: Filesystem, tmp_path: Path) -> None:
    first, second, other = (tmp_path / name for name in ("first", "second", "other"))
    filesystem.write_new(first, b"data")
    filesystem.write_new(other, b"other")
    filesystem.link(first, second)
    filesystem.link(first, second)  # as of a network filesystem that repeats what went through
    assert filesystem.status(first).st_ino == filesystem.status(second).st_ino
    with pytest.raises(FileExistsError):
        filesystem.link(first, other)
    with pytest.raises(FileNotFoundError):
        filesystem.link(tmp_path / "gone", tmp_path / "new")
    assert held(tmp_path) == {"first": b"data", "second": b"data", "other": b"other"}


def test_names_that_cannot_be_compared_do_not_count_as_taken(
    filesystem: Filesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filesystem.write_new(tmp_path / "file", b"data")
    filesystem.link(tmp_path / "file", tmp_path / "second")

    def refuse(path: Path) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(filesystem, "status", refuse)
    with pytest.raises(OSError, match="Input/output"):
        Filesystem.link(filesystem, tmp_path / "file", tmp_path / "second")


def test_a_link_of_a_link_is_of_the_link(filesystem: Filesystem, tmp_path: Path) -> None:
    LOCAL.write_new(tmp_path / "file", b"data")
    (tmp_path / "soft").symlink_to("file")
    LOCAL.link(tmp_path / "soft", tmp_path / "again")
    assert (tmp_path / "again").is_symlink()
    assert stat.S_ISLNK(filesystem.status(tmp_path / "soft").st_mode)


def test_a_rename_replaces(filesystem: Filesystem, tmp_path: Path) -> None:
    filesystem.make_folder(tmp_path / "folder")
    for name in ("file", "folder/file"):
        filesystem.write_new(tmp_path / name, name.encode())
    filesystem.rename(tmp_path / "file", tmp_path / "folder" / "file")
    assert held(tmp_path) == {}
    assert held(tmp_path / "folder") == {"file": b"file"}
    with pytest.raises(FileNotFoundError) as refused:
        filesystem.rename(tmp_path / "file", tmp_path / "other")
    assert refused.value.filename == str(tmp_path / "file")


def test_names_that_are_gone_are_an_error_but_of_a_folder_to_remove(
    filesystem: Filesystem, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    for act in (filesystem.unlink, filesystem.status, filesystem.touch, filesystem.names,
                filesystem.read, filesystem.sync_folder):  # fmt: skip
        with pytest.raises(FileNotFoundError) as refused:
            act(gone)
        assert refused.value.filename == str(gone)
    filesystem.remove_folder(gone)
    filesystem.make_folder(gone)
    filesystem.write_new(gone / "file", b"")
    (gone / "link").symlink_to(tmp_path)
    filesystem.remove_folder(gone)
    assert filesystem.names(tmp_path) == []


def test_folders_are_made_with_their_parents_and_again(
    filesystem: Filesystem, tmp_path: Path
) -> None:
    for _ in range(2):
        filesystem.make_folders(tmp_path / "a" / "b" / "c", below=tmp_path)
    assert filesystem.names(tmp_path / "a" / "b") == ["c"]
    filesystem.write_new(tmp_path / "file", b"")
    with pytest.raises(FileExistsError):
        filesystem.make_folder(tmp_path / "file")
    with pytest.raises(FileNotFoundError):
        filesystem.make_folder(tmp_path / "gone" / "below")


def test_whether_something_is_there_is_known_or_an_error(
    filesystem: Filesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    filesystem.write_new(tmp_path / "file", b"")
    found = [filesystem.exists(tmp_path / name) for name in ("file", "link", "no", "file/below")]
    assert found == [True, True, False, False]

    def refuse(path: Path) -> os.stat_result:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    monkeypatch.setattr(os, "lstat", refuse)
    with pytest.raises(OSError, match="Input/output"):
        filesystem.exists(tmp_path / "file")


def test_names_are_sorted_and_of_the_folder_itself(filesystem: Filesystem, tmp_path: Path) -> None:
    for name in ("b", ".hidden", "a", "ü"):
        filesystem.write_new(tmp_path / name, b"")
    assert filesystem.names(tmp_path) == [".hidden", "a", "b", "ü"]


def test_touching_sets_the_time_to_now(filesystem: Filesystem, tmp_path: Path) -> None:
    filesystem.write_new(tmp_path / "file", b"data")
    os.utime(tmp_path / "file", (0, 0))
    filesystem.touch(tmp_path / "file")
    filesystem.write_new(tmp_path / "other", b"")
    ages = [filesystem.status(tmp_path / name).st_mtime for name in ("file", "other")]
    assert abs(ages[0] - ages[1]) < 60
    assert filesystem.read(tmp_path / "file") == b"data"


def test_nothing_is_removed_through_a_link(filesystem: Filesystem, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("outside")
    with pytest.raises(NotADirectoryError) as refused:
        filesystem.remove_folder(tmp_path / "link")
    assert refused.value.filename == str(tmp_path / "link")
    assert held(tmp_path / "outside") == {"file": b"data"}


def test_a_reservation_that_a_signal_interrupts_is_made_again(
    filesystem: Filesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python repeats its own calls; tmpfs and network filesystems interrupt this one."""
    real, codes = filesystem_module._FALLOCATE, [errno.EINTR]

    def interrupted(*arguments: int) -> int:
        if not codes:
            return int(real(*arguments))
        ctypes.set_errno(codes.pop())
        return -1

    monkeypatch.setattr(filesystem_module, "_FALLOCATE", interrupted)
    filesystem.write_new(tmp_path / "file", b"")
    with filesystem.opened(tmp_path / "file", os.O_RDWR) as fd:
        filesystem.reserve(fd, 0, 1 << 20, tmp_path / "file")
    assert not codes
