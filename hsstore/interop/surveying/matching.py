"""Files against what should be there: the rows of a dataset, or numbers without a gap."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hsstore.interop.surveying.expected import ExpectedRows
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


def by_rows(samples: Sequence[Sample], rows: ExpectedRows) -> Matched:
    """Match by token digest: however files are called, each row has a sound file or is lost."""
    matched = Matched(missing=0)
    taken: dict[int, Seen] = {}
    # Sound ones first: a broken copy takes no row from them.
    for sound in (True, False):
        for sample in samples:
            for file in sample.files:
                if file.sound is sound:
                    _match(file, sample, rows, taken, matched)
    trusted = _names_are_rows(taken)
    matched.findings += _misplaced(taken, trusted=trusted)
    broken = {row: file for row, file in taken.items() if not file.sound}
    broken |= _by_name(samples, taken, rows, trusted=trusted)
    lost = [row for row in range(len(rows)) if row in broken or row not in taken]
    for row in lost:
        matched.lost.append(_lost(row, broken.get(row)))
    nowhere = [row for row in lost if row not in broken]
    matched.missing = len(nowhere)
    matched.findings += missing_rows(nowhere, "no file holds these rows of the dataset: {}")
    return matched


def _lost(row: int, file: Seen | None) -> Lost:
    if file is None:
        return Lost(row, "", "missing")
    return Lost(row, file.entry.path, file.look.faults[0].kind)


def _match(
    file: Seen, sample: Sample, rows: ExpectedRows, taken: dict[int, Seen], matched: Matched
) -> None:
    """Give a file the row whose tokens it holds: the one of its name, else the first free one."""
    for length, digest in file.look.digests:
        found = [row for row in rows.with_tokens(digest) if rows.lengths[row] == length]
        if not found:
            continue
        free = [row for row in found if row not in taken]
        if not free:
            other = taken[found[0]]
            # Files of one name were told of before.
            if file.sound and other not in sample.files:
                detail = f"it holds the tokens of {other.entry.path}"
                matched.findings.append(_of(file, "duplicate", detail))
            return
        file.row = file.number if file.number in free else free[0]
        taken[file.row] = file
        if file.look.tokens is not None and length < file.look.tokens:
            more = file.look.tokens - length
            detail = f"its tokens are those of row {file.row} and {more} of padding"
            matched.findings.append(_of(file, "padded", detail))
        return
    if file.sound and file.look.digests:
        detail = f"its tokens are those of no row of {rows.path.name}"
        matched.findings.append(_of(file, "unmatched", detail))


def _of(file: Seen, kind: str, detail: str) -> SurveyFinding:
    return SurveyFinding(kind, detail, file.entry.path, file.number)


def _names_are_rows(taken: dict[int, Seen]) -> bool:
    """Whether most files that have a number and a row have the same one."""
    told = [(file.number, row) for row, file in taken.items() if file.number is not None]
    return 2 * sum(number == row for number, row in told) > len(told)


def _misplaced(taken: dict[int, Seen], *, trusted: bool) -> Iterator[SurveyFinding]:
    if not trusted:
        return
    for row, file in taken.items():
        if file.number is not None and file.number != row:
            detail = f"its tokens are those of row {row}, its name says {file.number}"
            yield _of(file, "misplaced", detail)


def _by_name(
    samples: Iterable[Sample], taken: dict[int, Seen], rows: ExpectedRows, *, trusted: bool
) -> dict[int, Seen]:
    """Broken files that tell no tokens, by the key or the number of their name.

    Only of rows that no file holds, and by number only where numbers are ``trusted``.
    """
    found: dict[int, Seen] = {}
    for sample in samples:
        if sample.sound:
            continue
        row = rows.with_key(sample.files[0].name)
        row = sample.number if row is None and trusted else row
        if row is not None and row < len(rows) and row not in taken:
            found[row] = sample.files[0]
    return found


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
