import errno
import os
import threading
from pathlib import Path

import pytest

from hsstore.storage.filesystem import LOCAL
from hsstore.testing.faults import FaultyFilesystem


def test_a_published_file_is_whole_and_alone(tmp_path: Path) -> None:
    LOCAL.publish(tmp_path / "new", b"data")
    assert LOCAL.read(tmp_path / "new") == b"data"
    assert LOCAL.names(tmp_path) == ["new"]


def test_publishing_never_replaces(tmp_path: Path) -> None:
    LOCAL.publish(tmp_path / "new", b"first")
    with pytest.raises(FileExistsError):
        LOCAL.publish(tmp_path / "new", b"second")
    assert LOCAL.read(tmp_path / "new") == b"first"
    assert LOCAL.names(tmp_path) == ["new"]


def test_of_many_publishers_one_wins(tmp_path: Path) -> None:
    won: list[int] = []

    def publish(n: int) -> None:
        try:
            LOCAL.publish(tmp_path / "new", str(n).encode())
        except FileExistsError:
            return
        won.append(n)

    threads = [threading.Thread(target=publish, args=(n,)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [LOCAL.read(tmp_path / "new")] == [str(n).encode() for n in won]
    assert LOCAL.names(tmp_path) == ["new"]


@pytest.mark.parametrize("operation", range(4))
def test_a_refused_publication_leaves_nothing_half(tmp_path: Path, operation: int) -> None:
    filesystem = FaultyFilesystem(frozenset({"create", "write", "sync", "link"}))
    filesystem.fail(operation, errno.ENOSPC)
    with pytest.raises(OSError, match="No space") as refused:
        filesystem.publish(tmp_path / "new", b"data")
    assert str(tmp_path) in refused.value.filename
    assert LOCAL.names(tmp_path) == []


def test_publication_within_a_folder_that_was_renamed_away_fails(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LOCAL.publish(tmp_path / "new", b"data", within=tmp_path / "gone")
    assert LOCAL.names(tmp_path) == []


def test_short_writes_and_reads_are_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pwrite, preadv = os.pwrite, os.preadv
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, data[:3], at))
    monkeypatch.setattr(os, "preadv", lambda fd, into, at: preadv(fd, [into[0][:2]], at))
    path, out = tmp_path / "new", bytearray(12)
    LOCAL.write_new(path, b"0123456789")
    with LOCAL.opened(path) as fd:
        assert LOCAL.read_at(fd, out, 1, path) == 9
    assert bytes(out) == b"123456789\0\0\0"


def test_errors_of_descriptors_name_the_path(tmp_path: Path) -> None:
    path = tmp_path / "file"
    LOCAL.write_new(path, b"data")
    with LOCAL.opened(path) as fd, pytest.raises(OSError, match="Bad file") as refused:
        LOCAL.write_at(fd, b"x", 0, path)
    assert refused.value.filename == str(path)
    full = Path("/dev/full")
    with LOCAL.opened(full, os.O_WRONLY) as fd, pytest.raises(OSError, match="No space") as refused:
        LOCAL.write_at(fd, b"x", 0, full)
    assert (refused.value.errno, refused.value.filename) == (errno.ENOSPC, "/dev/full")


def test_folders_are_made_with_their_parents(tmp_path: Path) -> None:
    LOCAL.make_folders(tmp_path / "a/b/c", below=tmp_path)
    LOCAL.make_folders(tmp_path / "a/b/c", below=tmp_path)
    assert (tmp_path / "a/b/c").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        LOCAL.make_folder(tmp_path / "file")


def test_a_folder_that_exists_is_made_durable_too(tmp_path: Path) -> None:
    filesystem = FaultyFilesystem(frozenset({"sync"}))
    (tmp_path / "a").mkdir()
    filesystem.make_folder(tmp_path / "a")
    assert filesystem.operations == [("sync", tmp_path)]


def test_removing_what_is_gone_is_no_trouble(tmp_path: Path) -> None:
    LOCAL.remove_folder(tmp_path / "gone")
    (tmp_path / "a").mkdir()
    LOCAL.write_new(tmp_path / "a/file", b"")
    LOCAL.remove_folder(tmp_path / "a")
    assert LOCAL.names(tmp_path) == []


def test_a_link_is_not_followed_and_not_made_over_a_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    assert LOCAL.exists(tmp_path / "link")
    LOCAL.write_new(tmp_path / "file", b"x")
    with pytest.raises(FileExistsError):
        LOCAL.link(tmp_path / "file", tmp_path / "link")


def test_replacing_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    LOCAL.replace(tmp_path / "file", b"old")
    filesystem = FaultyFilesystem(frozenset({"rename"}))
    filesystem.fail(0, errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        filesystem.replace(tmp_path / "file", b"new")
    assert LOCAL.read(tmp_path / "file") == b"old"
    assert LOCAL.names(tmp_path) == ["file"]
    filesystem.replace(tmp_path / "file", b"new")
    assert LOCAL.read(tmp_path / "file") == b"new"
