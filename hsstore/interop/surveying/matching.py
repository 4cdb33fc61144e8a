"""Files against what should be there: the rows of a dataset, or numbers without a gap."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from hsstore.interop.matching import UNMATCHED, Match, Rows, match
from hsstore.interop.surveying.finding import SurveyFinding
from hsstore.interop.surveying.redo import Lost
from hsstore.interop.surveying.samples import Sample, Seen


@dataclass(slots=True)
class Matched:
    """What should be there and is not, or is there and should not be.

    ``lost`` are all samples without a sound file, in order; ``missing`` counts those of them that
    have no file at all, and is None where nobody can say.
    """

    lost: list[Lost] = field(default_factory=list)
    missing: int | None = None
    findings: list[SurveyFinding] = field(default_factory=list)


def by_rows(samples: Sequence[Sample], rows: Rows) -> Matched:
    """Match by tokens: however files are called, each row has a sound file or is lost."""
    found = match([file for sample in samples for file in sample.files], rows)
    lost = [row for row in range(len(rows)) if row not in found.files]
    nowhere = [row for row in lost if row not in found.broken]
    return Matched(
        [_lost(row, found.broken.get(row)) for row in lost],
        len(nowhere),
        [
            *(_of(file, "unmatched", UNMATCHED) for file in found.unmatched),
            *_surplus(found),
            *_padded(found),
            *_misplaced(found),
            *missing_rows(nowhere, "no file holds these rows of the dataset: {}"),
        ],
    )


def _lost(row: int, file: Seen | None) -> Lost:
    if file is None:
        return Lost(row, "", "missing")
    return Lost(row, file.entry.path, file.look.faults[0].kind)


def _surplus(found: Match[Seen]) -> Iterator[SurveyFinding]:
    """The files of tokens that all rows with them have; those of one name were told of before."""
    for rows, files in found.surplus:
        other = found.files[rows[0]]
        for file in files:
            if file.claim != other.claim:
                yield _of(file, "duplicate", f"it holds the tokens of {other.entry.path}")


def _padded(found: Match[Seen]) -> Iterator[SurveyFinding]:
    for row, file in found.padded.items():
        padding = file.held.padding if file.held else 0
        yield _of(file, "padded", f"its tokens are those of row {row} and {padding} of padding")


def _misplaced(found: Match[Seen]) -> Iterator[SurveyFinding]:
    if not found.numbered:
        return
    for row, file in found.files.items():
        if file.number is not None and file.number != row:
            detail = f"its tokens are those of row {row}, its name says {file.number}"
            yield _of(file, "misplaced", detail)


def _of(file: Seen, kind: str, detail: str) -> SurveyFinding:
    return SurveyFinding(kind, detail, file.entry.path, file.number)


def by_numbers(samples: Sequence[Sample], expected: int | None, *, from_zero: bool) -> Matched:
    """Match by the numbers of names: those that are not there, up to the number expected.

    Where nobody says how many there should be, up to the highest that is there. ``from_zero`` says
    that the format counts so; otherwise a tree that begins with 1 does. Where names tell no
    numbers, only how many are missing can be said.
    """
    matched = Matched()
    broken = [sample for sample in samples if not sample.sound]
    numbers = sorted({sample.number for sample in samples if sample.number is not None})
    gone: list[int] = []
    if numbers:
        first = 0 if from_zero or numbers[0] > 1 else numbers[0]
        gone = _gaps(numbers, first, expected)
        matched.findings += _too_many(numbers, first, expected)
        matched.missing = len(gone)
        matched.findings += missing_rows(gone, "no file has these numbers in its name: {}")
    elif expected is not None:
        matched.missing = max(expected - len(samples), 0)
        matched.findings += _too_few(len(samples), expected)
    lost = [Lost(sample.number, sample.files[0].entry.path, sample.reason) for sample in broken]
    lost += [Lost(row, "", "missing") for row in gone]
    matched.lost = sorted(lost, key=lambda each: (each.row is None, each.row or 0, each.path))
    return matched


def _gaps(numbers: Sequence[int], first: int, expected: int | None) -> list[int]:
    there = set(numbers)
    stop = numbers[-1] + 1 if expected is None else first + expected
    return [number for number in range(first, stop) if number not in there]


def _too_many(numbers: Sequence[int], first: int, expected: int | None) -> Iterator[SurveyFinding]:
    more = [] if expected is None else [n for n in numbers if n >= first + expected]
    if more:
        detail = f"{expected} samples should be there; numbers above that: {len(more)}"
        yield SurveyFinding("surplus", detail, None, more[0])


def _too_few(present: int, expected: int) -> Iterator[SurveyFinding]:
    if present < expected:
        detail = f"{expected} samples should be there, {present} are; names tell not which"
        yield SurveyFinding("missing", detail)


def missing_rows(rows: Sequence[int], said: str) -> Iterator[SurveyFinding]:
    """A finding for each run of neighbours; ``said`` has a place for which they are."""
    start = 0
    for at in range(1, len(rows) + 1):
        if at < len(rows) and rows[at] == rows[at - 1] + 1:
            continue
        first, last = rows[start], rows[at - 1]
        which = str(first) if first == last else f"{first} to {last}"
        yield SurveyFinding("missing", said.format(which), None, first, last)
        start = at
