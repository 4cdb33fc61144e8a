from collections.abc import Mapping
from typing import Any

from hsstore.model.progress import Silent
from hsstore.model.source import Waiting
from hsstore.model.waits import QUIET_SECONDS, Waits


class Heard(Silent):
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        self.events.append((name, dict(members)))


def test_a_busy_source_is_news_only_when_it_lasts() -> None:
    heard, now = Heard(), [0.0]
    waits = Waits(heard, lambda: now[0])
    for seconds in range(int(QUIET_SECONDS)):
        now[0] = float(seconds)
        waits.waiting(Waiting(f"{seconds} samples are on their way"))
    assert waits.detail == "9 samples are on their way"
    waits.over()
    assert heard.events == []
    for seconds in range(20):
        now[0] = 100.0 + seconds
        waits.waiting(Waiting(f"{seconds} samples are on their way"))
    now[0] = 125.0
    waits.over()
    assert heard.events == [
        ("waiting-began", {"detail": "10 samples are on their way"}),
        ("waiting-ended", {"seconds": 25.0}),
    ]


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
