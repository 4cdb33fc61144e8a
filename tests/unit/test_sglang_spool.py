import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import xxhash

from hsstore.capture.hello import HelloFile
from hsstore.capture.recorder import first_hello
from hsstore.capture.spool_format import DTYPES, ERROR, STATES, Segment, encode_header, rid
from hsstore.errors import SourceUnavailable
from hsstore.extraction.sglang.outcome import AttemptEnded, AttemptFailed, Busy, Discarded
from hsstore.extraction.sglang.spool import Spool, rows_like

RUN = "0123456789abcdef"
RID = rid(RUN, 1)
BOOT, OTHER = "ab" * 16, "cd" * 16
VALUES = np.arange(60, dtype=np.float32).reshape(10, 2, 3)


def segment(first: int, end: int, **changes: int) -> bytes:
    return made(first, end, BOOT, RID, **changes)


def made(first: int, end: int, boot: str, request: str, **changes: int) -> bytes:
    payload = VALUES[first:end].tobytes()
    fields = {
        "kind": STATES,
        "dtype": DTYPES["float32"],
        "layers": 2,
        "hidden_size": 3,
        "first_row": first,
        "rows": end - first,
        "payload_bytes": len(payload),
    } | changes
    digest = xxhash.xxh3_64_intdigest(payload)
    return encode_header(Segment(**fields, boot=boot, payload_xxh3_64=digest), request) + payload


def error(reason: bytes) -> bytes:
    digest = xxhash.xxh3_64_intdigest(reason)
    return encode_header(Segment(ERROR, 0, 0, 0, 0, 0, len(reason), BOOT, digest), RID) + reason


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path)


def read(spool: Spool, written: bytes, boot: str | None = BOOT) -> np.ndarray:
    (spool.path / RID).write_bytes(written)
    states = rows_like(10, 2, 3, "float32")
    assert spool.states(RID, states, "float32", boot) == BOOT
    return states


@pytest.mark.parametrize(
    "parts",
    [[(0, 10)], [(0, 4), (4, 10)], [(7, 10), (0, 3), (3, 7)], [(n, n + 1) for n in range(10)]],
)
def test_segments_in_any_order_make_the_states(spool: Spool, parts: list[tuple[int, int]]) -> None:
    written = b"".join(segment(first, end) for first, end in parts)
    np.testing.assert_array_equal(read(spool, written), VALUES, strict=True)
    assert spool.states(RID, rows_like(10, 2, 3, "float32"), "float32") == BOOT


@pytest.mark.parametrize(
    ("written", "words"),
    [
        (b"", "0 of 10 rows"),
        (segment(0, 9), "9 of 10 rows"),
        (segment(0, 10) + segment(3, 4), "twice"),
        (segment(0, 5) + segment(4, 10), "twice"),
        (segment(0, 10, first_row=1), "twice, or not of this prompt"),
        (segment(0, 10)[:-1], "cut short"),
        (segment(0, 10)[:50], "header of 50 bytes"),
        (segment(0, 10)[:-1] + b"\x99", "damaged"),
        (b"\x00" + segment(0, 10)[1:], "damaged header"),
        (made(0, 10, BOOT, rid(RUN, 2)), "another request"),
        (segment(0, 10, rows=9), "size is not that of its rows"),
    ],
)
def test_a_file_that_is_not_whole_is_torn(spool: Spool, written: bytes, words: str) -> None:
    with pytest.raises(AttemptFailed, match=words) as caught:
        read(spool, written)
    assert caught.value.kind == "torn-spool"


@pytest.mark.parametrize("change", [{"dtype": 1}, {"layers": 3}, {"hidden_size": 2}, {"kind": 7}])
def test_rows_of_another_kind_are_told(spool: Spool, change: dict[str, int]) -> None:
    with pytest.raises(AttemptFailed) as caught:
        read(spool, segment(0, 10, **change))
    assert caught.value.kind == "wrong-shape"


def test_another_boot_is_not_believed(spool: Spool) -> None:
    with pytest.raises(Discarded):
        read(spool, made(0, 10, OTHER, RID))
    with pytest.raises(Discarded):
        read(spool, segment(0, 5) + made(5, 10, OTHER, RID), boot=None)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (b"spool-full: 5 bytes left", Busy),
        (b"spool-full: a segment of 9 bytes, and the spool may hold 5", AttemptFailed),
        (b"wrong-states: 2, not 3", AttemptFailed),
    ],
)
def test_the_plugins_reasons_are_told(
    spool: Spool, reason: bytes, kind: type[AttemptEnded]
) -> None:
    with pytest.raises(kind, match=reason.decode().split(": ")[1]):
        read(spool, segment(0, 5) + error(reason))


def test_nothing_but_a_plain_file_is_read(spool: Spool, tmp_path: Path) -> None:
    states = rows_like(10, 2, 3, "float32")
    target = tmp_path / "target"
    target.write_bytes(segment(0, 10))
    (tmp_path / RID).symlink_to(target)
    with pytest.raises(AttemptFailed, match="cannot be opened"):
        spool.states(RID, states, "float32")
    (tmp_path / RID).unlink()
    os.mkfifo(tmp_path / RID)
    with pytest.raises(AttemptFailed, match="no plain file"):
        spool.states(RID, states, "float32")
    with pytest.raises(AttemptFailed, match="cannot be opened"):
        spool.states(rid(RUN, 9), states, "float32")


def test_only_a_runs_own_files_are_removed(spool: Spool, tmp_path: Path) -> None:
    mine, others = [rid(RUN, 1), rid(RUN, 2)], [rid("f" * 16, 1), "hello.x", f"x{RID}"]
    for name in (*mine, *others):
        (tmp_path / name).touch()
    spool.remove(mine[0])
    spool.remove(mine[0])
    spool.remove_run(RUN)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(others)


def test_what_is_no_hello_is_passed_over(spool: Spool, tmp_path: Path) -> None:
    for number, content in enumerate((b"", b"[]", b"{}", b'{"format":1,"kind":"hsstore-spool"}')):
        (tmp_path / f"hello.{BOOT}.{number}.json").write_bytes(content)
    (tmp_path / f"hello.{BOOT}.9.json").symlink_to("/etc/passwd")
    assert spool.hellos() == []


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match=r"No such file.*HSSTORE_SPOOL"):
        Spool(tmp_path / "missing")


def test_a_folder_that_may_not_be_written_to_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda _path, mode: not mode & os.W_OK)  # root may always
    with pytest.raises(SourceUnavailable, match="removed"):
        Spool(tmp_path)


def test_the_hello_of_a_server_that_is_gone_is_passed_over(spool: Spool) -> None:
    file = HelloFile(spool.path)
    alive = replace(
        first_hello(BOOT, "0.5.23", "0.1.0"), layers=(1, "final"), dtype="float32", norm="post"
    )
    file.publish(alive)
    assert [hello.boot for hello in spool.hellos()] == [BOOT]
    document = json.loads(file.path.read_bytes())  # type: ignore[union-attr]
    # A name of ours and no lock: its process is gone. One on another host cannot be judged.
    for boot, host in ((OTHER, document["host"]), ("ef" * 16, "elsewhere")):
        left = json.dumps(document | {"boot": boot, "host": host})
        (spool.path / f"hello.{boot}.0.json").write_text(left)
    assert [hello.boot for hello in spool.hellos()] == [BOOT, "ef" * 16]
