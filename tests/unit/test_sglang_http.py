import pytest

from hsstore.extraction.sglang.http import error_text, meaning
from hsstore.extraction.sglang.outcome import AttemptEnded, AttemptFailed, Busy, Lost, Rejected


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, Rejected), (413, Rejected), (422, Rejected), (429, Busy), (503, Busy),
        (500, AttemptFailed), (501, AttemptFailed), (502, Lost), (504, Lost),
        (301, Lost), (401, Lost), (404, Lost), (204, Lost),
    ],
)  # fmt: skip
def test_every_status_has_its_meaning(status: int, kind: type[AttemptEnded]) -> None:
    assert type(meaning(status, b"{}")) is kind


@pytest.mark.parametrize("status", [502, 401, 403, 404, 408])
def test_what_ends_so_each_time_may_be_the_samples_fault(status: int) -> None:
    lost = meaning(status, b"")
    assert isinstance(lost, Lost)
    assert lost.sent


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"error":{"message":"too long"}}', "too long"),
        (b'{"error":"too long"}', "too long"),
        (b'{"object":"error","message":"too long","code":400}', "too long"),
        (b'{"error":{}}', "no reason given"),
        (b"<html>\n too\x1b long</html>", "<html> too long</html>"),
        (b"\xff", "\ufffd"),
        (b"", ""),
        (b'"x"', "x"),
    ],
)
def test_error_bodies_become_one_line(body: bytes, words: str) -> None:
    assert error_text(body) == words


def test_a_long_error_is_cut() -> None:
    assert len(error_text(b"x" * 10_000)) == 200
