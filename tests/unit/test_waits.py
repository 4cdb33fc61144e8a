from collections.abc import Mapping
from typing import Any

import pytest

from hsstore.model.progress import Silent
from hsstore.model.source import Waiting
from hsstore.model.waits import Waits


class Heard(Silent):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        self.events.append((name, dict(members)))


def test_a_busy_source_is_no_news_however_long_it_takes() -> None:
    heard, now = Heard(), [0.0]
    waits = Waits(heard, lambda: now[0])
    for _ in range(10):
        for left in range(700):
            now[0] += 1.0
            waits.waiting(Waiting(f"{left} samples are on their way"))
            assert waits.detail == f"{left} samples are on their way"
        waits.over()
        assert waits.detail is None
    assert (heard.events, heard.notes) == ([], [])


@pytest.mark.parametrize("outage", [False, True])
def test_news_are_told_at_once_and_change_nothing(outage: bool) -> None:  # noqa: FBT001 - pytest
    heard, now = Heard(), [0.0]
    waits = Waits(heard, lambda: now[0])
    waits.waiting(Waiting("http://a:30000 is awaited", outage=outage))
    told = list(heard.notes)
    now[0] = 1.0
    waits.waiting(Waiting("out for good: http://b:30000: another model", news=True))
    waits.waiting(Waiting("http://a:30000 is awaited", outage=outage))
    assert waits.detail == "http://a:30000 is awaited"
    assert heard.notes == [*told, "out for good: http://b:30000: another model"]
    assert heard.events[-1] == (
        "source-news",
        {"detail": "out for good: http://b:30000: another model"},
    )
    now[0] = 7.0
    waits.over()
    assert heard.events[-1] == (
        ("outage-ended", {"seconds": 7.0})
        if outage
        else ("source-news", {"detail": heard.notes[-1]})
    )


def test_an_outage_is_told_at_once_and_again_when_it_changes() -> None:
    heard, now = Heard(), [0.0]
    waits = Waits(heard, lambda: now[0])
    for seconds in range(3):
        now[0] = float(seconds)
        waits.waiting(Waiting(f"http://a:30000 is away: waiting {seconds} s of 1800", outage=True))
    waits.waiting(Waiting("http://b:30000 is away: waiting 0 s of 1800", outage=True))
    now[0] = 5.0
    waits.waiting(Waiting("1 samples are on their way"))
    assert heard.notes == [
        "http://a:30000 is away: waiting 0 s of 1800",
        "http://b:30000 is away: waiting 0 s of 1800",
        "the outage is over after 5 s",
    ]
    assert [name for name, _ in heard.events] == ["outage-began", "outage-changed", "outage-ended"]
    waits.over()
    assert len(heard.events) == 3
