from hypothesis import given
from hypothesis import strategies as st

from hsstore.model.manifest import AbsentSample, Chunk, Statistics, StoredSample
from hsstore.model.source import Origin
from hsstore.storage.journal import failure_line, header_line, read_journal, sample_line

ORIGIN = Origin({"weights": None}, {"engine": "a"})
HEADER = header_line("0" * 32, 3, 1, "0" * 16, ORIGIN)


def line(sample: int, *, stored: bool) -> bytes:
    if not stored:
        return failure_line(AbsentSample(sample, f"k{sample}", 0, 1, "gone", "for good"))
    statistics = Statistics(1, (1.0,), (2.0,))
    content = StoredSample(sample, f"k{sample}", 0, 1, "0" * 32, statistics, 0)
    return sample_line(content, (Chunk(0, 0, 4, "0" * 16),))


settled = st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=12)


@given(settled)
def test_the_last_line_of_a_sample_counts(lines: list[tuple[int, bool]]) -> None:
    raw = HEADER + b"".join(line(sample, stored=stored) for sample, stored in lines)
    journal, last = read_journal(raw), dict(lines)
    assert journal.end == len(raw)
    assert journal.samples.keys() == {s for s, stored in last.items() if stored}
    assert journal.chunks.keys() == journal.samples.keys()
    assert journal.failures.keys() == {s for s, stored in last.items() if not stored}


@given(settled, st.data())
def test_a_torn_journal_is_read_up_to_the_tear(
    lines: list[tuple[int, bool]], data: st.DataObject
) -> None:
    whole = [HEADER, *(line(sample, stored=stored) for sample, stored in lines)]
    raw = b"".join(whole)
    torn = raw[: data.draw(st.integers(0, len(raw)))]
    tail = data.draw(st.sampled_from([b"", b"\0" * 40, b"{}\n", b"\n"]))
    ends = [sum(map(len, whole[:n])) for n in range(len(whole) + 1)]
    assert read_journal(torn + tail).end == max(end for end in ends if end <= len(torn))


@given(settled, st.data())
def test_nothing_after_a_damaged_byte_counts(
    lines: list[tuple[int, bool]], data: st.DataObject
) -> None:
    whole = [HEADER, *(line(sample, stored=stored) for sample, stored in lines)]
    raw = bytearray(b"".join(whole))
    at = data.draw(st.integers(0, len(raw) - 1))
    # A bit of the format member may make it a newer format's line, which is refused instead.
    raw[at] = data.draw(st.sampled_from([b for b in b'\0x"' if b != raw[at]]))
    assert read_journal(bytes(raw)).end <= at


@given(st.binary(max_size=400))
def test_any_bytes_are_an_empty_journal(raw: bytes) -> None:
    assert read_journal(raw).end == 0
