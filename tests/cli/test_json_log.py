import json
import re
from pathlib import Path

import pytest

from hsstore.errors import StorageFailed
from hsstore_cli.json_log import JsonLog


def test_a_line_is_there_as_soon_as_it_happened(tmp_path: Path) -> None:
    path, now = tmp_path / "log", [0.0]
    with JsonLog(str(path), lambda: now[0]) as log:
        log.start(10, 4, "tok")
        log.note("half way")
        for second in range(21):
            now[0] = float(second)
            log.event("figures", {"second": second})
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line.pop("event") for line in lines] == ["work", "note", *["figures"] * 3]
    assert all(
        re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line.pop("time")) for line in lines
    )
    assert lines == [
        {"total": 10, "done": 4, "unit": "tok"},
        {"text": "half way"},
        *({"second": second} for second in (0, 10, 20)),
    ]
    with JsonLog(str(path)) as log:
        log.note("again")
    assert len(path.read_text().splitlines()) == 6


def test_a_dash_is_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonLog("-") as log:
        log.note("here")
    assert json.loads(capsys.readouterr().err)["text"] == "here"


def test_a_log_that_cannot_be_opened_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(StorageFailed, match=r"no/log: .* No such file .*; give --log-json another"),
        JsonLog(str(tmp_path / "no" / "log")),
    ):
        pass


def test_a_log_on_a_full_disk_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    with JsonLog("/dev/full") as log:
        log.note("a")
        log.note("b")
    assert capsys.readouterr().err == (
        "/dev/full: No space left on device; going on without the log\n"
    )
