import json

import pytest

from hsstore_cli import render


@pytest.mark.parametrize(
    ("count", "shown"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.00 kB (0.98 KiB)"),
        (999_994, "999.99 kB (976.56 KiB)"),
        (999_995, "1.00 MB (976.56 KiB)"),
        (1 << 20, "1.05 MB (1.00 MiB)"),
        (5_034_413_604_864, "5.03 TB (4.58 TiB)"),
        (1_206_147_088_384, "1.21 TB (1.10 TiB)"),
        (-2_500_000, "-2.50 MB (-2.38 MiB)"),
        (10**22, "10000.00 EB (8673.62 EiB)"),
    ],
)
def test_size(count: int, shown: str) -> None:
    assert render.size(count) == shown


def test_one_of_a_kind_is_singular() -> None:
    counts = [render.counted(number, "shard") for number in (0, 1, 2)]
    assert counts == ["0 shards", "1 shard", "2 shards"]


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (185, "3 min 5 s"),
        (7800, "2 h 10 min"),
        (86_400 * 9 + 3600 * 4 + 59, "9 d 4 h"),
    ],
)
def test_duration(seconds: float, shown: str) -> None:
    assert render.duration(seconds) == shown


def test_json_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    render.emit_json({"text": "ä\n", "none": None})
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    assert json.loads(out) == {"text": "ä\n", "none": None}


def test_json_has_no_nan() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        render.emit_json(float("nan"))


def test_lines_come_once_a_minute(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    with render.Lines(clock=lambda: now[0]) as progress:
        progress.start(1000, 400, "tokens")
        for seconds in (30.0, 59.0, 60.0, 90.0, 120.0):
            now[0] = seconds
            progress.advance(60)
        progress.note("shard 0 is committed")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "580 of 1000 tokens (58.0%), 3 tokens/s, 2 min 20 s left",
        "700 of 1000 tokens (70.0%), 2.5 tokens/s, 2 min 0 s left",
        "shard 0 is committed",
    ]


def test_the_time_left_of_bytes_is_by_what_this_run_did(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    with render.Lines(clock=lambda: now[0]) as progress:
        progress.start(5_000_000_000_000, 4_000_000_000_000, "bytes")
        now[0] = 100.0
        progress.advance(10_000_000_000)
    (line,) = capsys.readouterr().err.splitlines()
    assert line == "4.01 TB of 5.00 TB (80.2%), 100.00 MB/s, 2 h 45 min left"


def test_bar_shows_each_piece_of_work_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with render.Bar() as progress:
        progress.start(10, 4, "tokens")
        progress.advance(6)
        progress.note("half way")
        progress.start(2, 0, "shards")
    out, err = capsys.readouterr()
    assert out == ""
    assert "10.0/10.0" in err
    assert "half way" in err
    assert "0.00/2.00" in err


def test_progress_without_a_terminal_is_lines() -> None:
    assert isinstance(render.progress(), render.Lines)


FIGURES = {
    "tokens_per_second": 1234.5,
    "bytes_per_second": 45_100_000.0,
    "seconds_left": 7800.0,
    "seconds": 10.0,
    "seconds_source": 8.0,
    "seconds_disk": 0.5,
    "free_bytes": 1_200_000_000_000,
    "samples_failed": 0,
    "waiting": None,
}


def test_figures_say_which_side_is_the_bottleneck_since_the_last_look() -> None:
    looks = render.Looks()
    assert looks.text(FIGURES) == (
        "1,234 tok/s, 2 h 10 min left, source 80 % disk 5 %, 45.10 MB/s, 1.20 TB free"
    )
    later = {
        **FIGURES,
        "seconds": 20.0,
        "seconds_disk": 10.5,
        "tokens_per_second": 0.0,
        "bytes_per_second": 0.0,
        "seconds_left": None,
        "samples_failed": 2,
        "waiting": "http://a is away: waiting 40 s of 1800",
    }
    assert looks.text(later) == (
        "0 tok/s, unknown time left, http://a is away: waiting 40 s of 1800, "
        "source 0 % disk 100 %, 2 failed, 0 B/s, 1.20 TB free"
    )
    assert looks.text({**later, "free_bytes": None}).endswith("2 failed, 0 B/s")


def test_lines_show_figures_even_while_nothing_advances(
    capsys: pytest.CaptureFixture[str],
) -> None:
    now = [0.0]
    with render.Lines(clock=lambda: now[0]) as progress:
        progress.start(1000, 400, "tok")
        for seconds in (30.0, 61.0, 100.0):
            now[0] = seconds
            progress.event("figures", FIGURES)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("400 of 1000 tok (40.0%), 1,234 tok/s, 2 h 10 min left")


def test_the_bar_shows_figures_instead_of_its_own_speed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with render.Bar() as progress:
        progress.start(1000, 400, "tok")
        progress.advance(100)
        progress.event("figures", FIGURES)
    last = capsys.readouterr().err.split("\r")[-1]
    assert "500/1.00k tok, 1,234 tok/s, 2 h" in last
    assert "tok/s]" not in last
