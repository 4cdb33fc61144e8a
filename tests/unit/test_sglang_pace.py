from hsstore.extraction.sglang.pace import Backoff, Pace, most_in_flight


def test_it_grows_by_about_one_a_round_up_to_the_most() -> None:
    pace = Pace(4, 2)
    limits = []
    for _ in range(10):
        limits.append(pace.limit)
        pace.answered()
    assert limits == [2, 2, 2, 3, 3, 3, 4, 4, 4, 4]


def test_it_halves_once_for_what_was_in_flight_together() -> None:
    pace = Pace(32, 16)
    pace.overloaded(3)
    assert pace.limit == 8
    for _ in range(3):
        pace.overloaded(2)
    assert pace.limit == 8
    pace.overloaded(0)
    assert pace.limit == 4


def test_it_never_stops() -> None:
    pace = Pace(8, 2)
    for _ in range(20):
        pace.overloaded(0)
    assert pace.limit == 1


def test_waiting_doubles_up_to_the_longest_with_full_jitter() -> None:
    draws = iter([1.0, 1.0, 0.5, 0.0, 1.0, 1.0])
    backoff = Backoff(lambda: next(draws), first=1.0, longest=5.0)
    assert [backoff.next() for _ in range(5)] == [1.0, 2.0, 2.0, 0.0, 5.0]
    backoff.reset()
    assert backoff.next() == 1.0


def test_it_waits_no_longer_after_days_of_failures() -> None:
    backoff = Backoff(lambda: 1.0)
    assert [backoff.next() for _ in range(10_000)][-1] == 30.0


def test_limits_of_the_server_bound_what_was_asked_for() -> None:
    assert most_in_flight(None, 8, None) == 16
    assert most_in_flight(None, 8, 2) == 10
    assert most_in_flight(100, 8, 2) == 10
    assert most_in_flight(3, 8, 2) == 3
    assert most_in_flight(100, 8, None) == 100
    assert most_in_flight(None, None, None) == 32
    assert most_in_flight(5, 0, 0) == 1
