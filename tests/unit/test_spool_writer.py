import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash

from hsstore.capture import spool as spool_module
from hsstore.capture.spool import Spool, SpoolFull, default_bound
from hsstore.capture.spool_format import ERROR, HEADER, STATES, Segment, rid
from hsstore.testing.spool_probe import CaptureError, joined, read_segments

BOOT = "0" * 32
RUN = "a" * 16
ROWS = 3
PAYLOAD = bytes(range(ROWS * 2 * 4 * 4))  # 3 rows of 2 layers of 4 float32


def spool(folder: Path, bound: int = 1 << 20, wait: float = 0.2) -> Spool:
    return Spool(folder, BOOT, bound, wait)


def segment(first: int = 0) -> Segment:
    return Segment(
        STATES, 3, 2, 4, first, ROWS, len(PAYLOAD), BOOT, xxhash.xxh3_64_intdigest(PAYLOAD)
    )


def append(writer: Spool, number: int, first: int = 0) -> None:
    writer.append(rid(RUN, number), segment(first), memoryview(PAYLOAD))


def reason(folder: Path, number: int) -> str:
    request = rid(RUN, number)
    [(found, payload)] = read_segments((folder / request).read_bytes(), request)
    assert found.kind == ERROR
    return payload.decode()


def test_segments_follow_each_other_in_one_private_file(tmp_path: Path) -> None:
    writer = spool(tmp_path)
    append(writer, 1)
    append(writer, 1, first=ROWS)
    path = tmp_path / rid(RUN, 1)
    rows = joined(read_segments(path.read_bytes(), path.name), 2 * ROWS)
    assert rows.shape == (2 * ROWS, 2, 4)
    assert rows[:ROWS].numpy().tobytes() == PAYLOAD
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["../x", "", "hello.json", rid(RUN, 1) + "\n", "/etc/x"])
def test_only_a_request_id_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="no request id"):
        spool(tmp_path / "spool").append(name, segment(), memoryview(PAYLOAD))
    assert list(tmp_path.iterdir()) == []


def test_a_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_bytes(b"precious")
    (tmp_path / rid(RUN, 1)).symlink_to(target)
    with pytest.raises(OSError, match=os.strerror(errno.ELOOP)):
        append(spool(tmp_path), 1)
    assert target.read_bytes() == b"precious"


def test_a_pipe_in_the_way_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / rid(RUN, 1))
    with pytest.raises(OSError):  # noqa: PT011 - ENXIO without a reader, else not a regular file
        append(spool(tmp_path), 1)


def test_the_bound_holds_until_the_client_deletes(tmp_path: Path) -> None:
    room = 2 * (HEADER.size + len(PAYLOAD))
    writer = spool(tmp_path, room, wait=0.1)
    append(writer, 1)
    append(writer, 2)
    with pytest.raises(SpoolFull, match=f"{room} bytes"):
        append(writer, 3)
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= room
    (tmp_path / rid(RUN, 1)).unlink()
    append(writer, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [rid(RUN, 2), rid(RUN, 4)]


def test_a_full_spool_waits_for_the_client(tmp_path: Path) -> None:
    writer = spool(tmp_path, HEADER.size + len(PAYLOAD), wait=30)
    append(writer, 1)
    started = threading.Event()

    def delete() -> None:
        started.wait()
        time.sleep(0.1)
        (tmp_path / rid(RUN, 1)).unlink()

    client = threading.Thread(target=delete)
    client.start()
    started.set()
    append(writer, 2)
    client.join()
    assert [path.name for path in tmp_path.iterdir()] == [rid(RUN, 2)]


def test_it_waits_only_once_in_vain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    naps: list[float] = []
    clock = [0.0]

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    writer = spool(tmp_path, HEADER.size + len(PAYLOAD), wait=1)
    append(writer, 1)
    with pytest.raises(SpoolFull):
        append(writer, 2)
    waited = len(naps)
    assert waited
    with pytest.raises(SpoolFull):
        append(writer, 3)
    assert len(naps) == waited
    (tmp_path / rid(RUN, 1)).unlink()
    append(writer, 4)
    with pytest.raises(SpoolFull):
        append(writer, 5)
    assert len(naps) == 2 * waited


def test_a_segment_larger_than_the_spool_is_named(tmp_path: Path) -> None:
    with pytest.raises(SpoolFull, match=r"a segment of .* bytes, and the spool may hold 100"):
        append(spool(tmp_path, 100), 1)


def failing_writev(after: int, code: int) -> Callable[[int, list[memoryview]], int]:
    """A writev that takes ``after`` bytes and then has no more room."""
    left = after

    def writev(descriptor: int, parts: list[memoryview]) -> int:
        nonlocal left
        raw = b"".join(parts)[:left]
        if not raw:
            raise OSError(code, os.strerror(code))
        left -= len(raw)
        return os.write(descriptor, raw)

    return writev


@pytest.mark.parametrize("after", [0, 1, HEADER.size, HEADER.size + 5])
def test_a_full_disk_leaves_an_error_marker_not_a_torn_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    writer = spool(tmp_path)
    append(writer, 1)
    with monkeypatch.context() as disk:
        disk.setattr(os, "writev", failing_writev(after, errno.ENOSPC))
        with pytest.raises(SpoolFull, match="filesystem is full"):
            append(writer, 1, first=ROWS)
    writer.fail(rid(RUN, 1), "spool-full: no\nroom")
    assert reason(tmp_path, 1) == "spool-full: no room"


def test_a_marker_that_does_not_fit_leaves_an_empty_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = spool(tmp_path)
    append(writer, 1)
    with monkeypatch.context() as disk:
        disk.setattr(os, "writev", failing_writev(9, errno.ENOSPC))
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            writer.fail(rid(RUN, 1), "spool-full")
    assert (tmp_path / rid(RUN, 1)).read_bytes() == b""


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        os,
        "writev",
        lambda descriptor, parts: os.write(descriptor, b"".join(parts)[:7]),
    )
    append(spool(tmp_path), 1)
    raw = (tmp_path / rid(RUN, 1)).read_bytes()
    assert joined(read_segments(raw, rid(RUN, 1)), ROWS).shape == (ROWS, 2, 4)


def test_abandoned_files_are_collected_by_the_folders_clock(tmp_path: Path) -> None:
    clock = tmp_path / f"hello.{BOOT}.0.json"
    clock.write_bytes(b"{}")
    writer = spool(tmp_path)
    for number, age in ((1, 4000), (2, 3000), (3, 0)):
        append(writer, number)
        now = (tmp_path / rid(RUN, number)).stat().st_mtime
        os.utime(tmp_path / rid(RUN, number), (now - age, now - age))
    foreign = tmp_path / "precious"
    foreign.write_bytes(b"precious")
    (tmp_path / rid(RUN, 4)).mkdir()
    for path in (foreign, tmp_path / rid(RUN, 4)):
        os.utime(path, (0, 0))
    assert writer.sweep(clock, 3600) == [rid(RUN, 1)]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {rid(RUN, 2), rid(RUN, 3), rid(RUN, 4), "precious", clock.name}


def test_a_file_that_cannot_be_removed_does_not_end_the_sweep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = tmp_path / f"hello.{BOOT}.0.json"
    clock.write_bytes(b"{}")
    writer = spool(tmp_path)
    for number in (1, 2):
        append(writer, number)
        os.utime(tmp_path / rid(RUN, number), (0, 0))
    unlink = Path.unlink

    def another_users(path: Path) -> None:  # root, whom tests may run as, would be let
        if path.name == rid(RUN, 1):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        unlink(path)

    monkeypatch.setattr(Path, "unlink", another_users)
    assert writer.sweep(clock, 3600) == [rid(RUN, 2)]
    assert (tmp_path / rid(RUN, 1)).exists()


def test_files_that_the_client_deleted_are_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_module, "FILES_UNSEEN", 8)
    writer = spool(tmp_path)
    for number in range(100):
        append(writer, number)
        (tmp_path / rid(RUN, number)).unlink()
    assert len(writer._written) <= 9


def test_rows_must_be_a_prompts_exactly(tmp_path: Path) -> None:
    writer = spool(tmp_path)
    append(writer, 1)
    raw = (tmp_path / rid(RUN, 1)).read_bytes()
    segments = read_segments(raw, rid(RUN, 1))
    for wrong, tokens in ((segments, ROWS + 1), (segments * 2, 2 * ROWS), (segments, ROWS - 1)):
        with pytest.raises(CaptureError):
            joined(wrong, tokens)


def test_half_of_the_free_space_is_the_default(tmp_path: Path) -> None:
    space = os.statvfs(tmp_path)
    assert 0 < default_bound(tmp_path) <= space.f_blocks * space.f_frsize // 2
