import errno
import os
import threading
from pathlib import Path

import pytest

from hsstore.storage.filesystem import LOCAL
from hsstore.testing.faults import FaultyFilesystem


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


def test_a_folder_that_exists_is_made_durable_too(tmp_path: Path) -> None:
    filesystem = FaultyFilesystem(frozenset({"sync"}))
    (tmp_path / "a").mkdir()
    filesystem.make_folder(tmp_path / "a")
    assert filesystem.operations == [("sync", tmp_path)]


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
