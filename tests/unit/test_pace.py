import pytest

from hsstore.extraction.pace import Pace, Stopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_time_inside_the_other_side_counts_for_that_one(clock: Clock) -> None:
    watch = Stopwatch(clock)
    clock.now = 1.0
    with watch.on("source"):
        clock.now = 4.0
        with watch.on("disk"):
            clock.now = 6.0
        clock.now = 7.0
    clock.now = 9.0
    assert (watch.seconds("source"), watch.seconds("disk")) == (4.0, 2.0)


def test_making_items_is_timed_and_using_them_is_not(clock: Clock) -> None:
    watch = Stopwatch(clock)

    def slow() -> list[int]:
        return [1, 2]

    for _ in watch.timed(iter(slow()), "source"):
        clock.now += 5.0
    assert watch.seconds("source") == 0.0


def test_speed_is_that_of_the_last_minute(clock: Clock) -> None:
    pace = Pace(Stopwatch(clock), row_bytes=10, tokens_left=100_000)
    for second in range(1, 201):
        clock.now = float(second)
        pace.tokens += 100 if second <= 100 else 10
        figures = pace.figures()
    assert figures["tokens_per_second"] == pytest.approx(10)
    assert figures["bytes_per_second"] == pytest.approx(100)
    assert figures["seconds_left"] == pytest.approx(10_000)


def test_what_was_found_is_no_speed(clock: Clock) -> None:
    pace = Pace(Stopwatch(clock), row_bytes=10, tokens_left=1000)
    pace.tokens_left -= 900
    clock.now = 10.0
    assert pace.figures()["tokens_per_second"] == 0
    assert pace.figures()["seconds_left"] is None
    pace.tokens += 20
    pace.tokens_left -= 20
    assert pace.figures()["seconds_left"] == pytest.approx(80 / 2)


def test_a_look_is_due_once_a_second(clock: Clock) -> None:
    pace = Pace(Stopwatch(clock), 1, 1)
    due = []
    for tenth in range(25):
        clock.now = tenth / 10
        due.append(pace.due())
    assert [n for n, is_due in enumerate(due) if is_due] == [0, 10, 20]
