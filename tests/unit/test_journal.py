import pytest

from hsstore.model.document import seal
from hsstore.model.manifest import Chunk, Statistics, StoredSample
from hsstore.model.source import Origin
from hsstore.storage.journal import header_line, read_journal, sample_line

ONE, OTHER = Origin({"weights": "a"}, {"engine": "x"}), Origin({"weights": "a"}, {"engine": "y"})


def header(origin: Origin = ONE, *, shard: int = 1) -> bytes:
    return header_line("0" * 32, shard, 1, "0" * 16, origin)


def sample(number: int, origin: int = 0) -> bytes:
    statistics = Statistics(1, (1.5,), (2.5,))
    stored = StoredSample(number, "key", 4, 3, "0" * 32, statistics, origin, "1" * 32)
    return sample_line(stored, (Chunk(1, 64, 32, "2" * 16), Chunk(2, 96, 32, "3" * 16)))


def test_lines_round_trip() -> None:
    journal = read_journal(header() + sample(5) + header(OTHER) + sample(6, 1))
    assert (journal.store, journal.shard, journal.generation) == ("0" * 32, 1, 1)
    assert journal.origins == [ONE, OTHER]
    assert journal.samples[5].previous == "1" * 32
    assert journal.samples[5].statistics == Statistics(1, (1.5,), (2.5,))
    assert journal.chunks[6][1] == Chunk(2, 96, 32, "3" * 16)
    assert (journal.origin(OTHER), journal.origin(Origin({}))) == (1, None)
    assert journal.settled() == {5, 6}


@pytest.mark.parametrize(
    "foreign",
    [header(shard=2), sample(6, origin=1), seal({"format": 1, "kind": "other"}), b"\n"],
    ids=["another shard", "unnamed origin", "another kind", "empty line"],
)
def test_a_foreign_line_ends_the_journal(foreign: bytes) -> None:
    raw = header() + sample(5)
    journal = read_journal(raw + foreign + sample(7))
    assert (journal.end, journal.settled()) == (len(raw), {5})


def test_a_sample_before_any_origin_does_not_count() -> None:
    assert read_journal(sample(5) + header()).settled() == set()


def test_a_line_of_another_format_ends_the_journal() -> None:
    raw = header() + sample(5)
    journal = read_journal(raw + seal({"format": 2, "kind": "sample"}))
    assert (journal.end, journal.settled()) == (len(raw), {5})


def test_recorded_words_may_look_like_kinds() -> None:
    odd = Origin({"kind": "sample"}, {"kind": "failure"})
    assert read_journal(header(odd)).origins == [odd]
