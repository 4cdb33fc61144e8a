"""A finding of a survey, and the summary of one; kinds are stable and only ever added to."""

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from hsstore.model.finding import Severity

Depth = Literal["quick", "checksums", "content"]
Stop = Literal["interrupted"]

# Beside the faults of a file itself (interop/foreign.py).
KINDS = {
    "no-samples": "no file looks like a sample",
    "missing": "there is no file for a sample that should be there",
    "misplaced": "the file holds the tokens of another row than its name says",
    "unmatched": "the file holds tokens of no row of the dataset",
    "mixed": "the files are of several kinds, and none of them is most of the tree",
    "temporary": "a leftover of a writer that did not finish",
    "foreign-file": "a file that is no sample and belongs to no format of such trees",
    "link": "a link, which is not followed, or a special file",
    "sparse": "files that take clearly less of the disk than their length",
    "surplus": "there are more files than samples that should be there",
    "same-states": "the file holds the states of another one, and other tokens",
    "expected-differs": "two say how many samples there should be, and differ",
    "expected-unknown": "what was there to say how many samples there should be says nothing",
}
# What costs no sample is a warning; what is only good to know a note.
WARNINGS = frozenset(
    {
        "duplicate",
        "padded",
        "unmatched",
        "temporary",
        "link",
        "surplus",
        "misplaced",
        "expected-unknown",
        "expected-differs",
    }
)
NOTES = frozenset({"foreign-file", "sparse"})


def severity_of(kind: str) -> Severity:
    """How grave a kind is; only an error is a sample that is not there whole."""
    if kind in NOTES:
        return "note"
    return "warning" if kind in WARNINGS else "error"


@dataclass(frozen=True, slots=True)
class SurveyFinding:
    """One finding, as ``survey --json`` prints it; None where a member does not apply.

    ``row`` is the row number that the file's name tells, or the row of the dataset; of ``missing``
    rows the first of a run, which ends with ``last_row``.
    """

    kind: str
    detail: str
    path: str | None = None
    row: int | None = None
    last_row: int | None = None

    @property
    def severity(self) -> Severity:
        """How grave it is."""
        return severity_of(self.kind)

    def to_json(self) -> dict[str, Any]:
        """The JSON line of this finding."""
        own = {"kind": self.kind, "severity": self.severity, "detail": self.detail}
        where = {"path": self.path, "row": self.row, "last_row": self.last_row}
        return {"type": "finding"} | own | where


@dataclass(slots=True)
class Tally:
    """Files, and how many bytes they are long."""

    files: int = 0
    bytes: int = 0

    def add(self, size: int) -> None:
        """Count one more file."""
        self.files += 1
        self.bytes += size

    def take(self, size: int) -> None:
        """Count one file less."""
        self.files -= 1
        self.bytes -= size


@dataclass(frozen=True, slots=True)
class Cost:
    """What extracting the lost samples again takes.

    ``tokens`` is exact where the dataset, or the headers of the broken files, tell all lengths;
    otherwise it is the mean of the sound files for each sample that tells nothing.
    ``tree_bytes`` is what they would take as files of this tree, ``store_bytes`` in an hsstore, an
    upper bound unless all lengths are known. All but ``samples`` are None where no sound file
    tells a shape.
    """

    samples: int = 0
    tokens: int | None = 0
    exact: bool = True
    tree_bytes: int | None = 0
    store_bytes: int | None = 0


@dataclass(slots=True)
class SurveySummary:
    """What a survey saw so far, as ``survey --json`` ends with.

    Samples: ``present`` have a file, ``broken`` of them no sound one; ``missing`` have none, of
    those ``expected`` (None: nobody says). ``format`` is None where the tree is of no known one,
    ``tokens`` counts those of sound files. Sample files: ``proven`` by a checksum that was read,
    ``unverifiable`` for their container has none, ``condemned`` by a fault, ``unread`` because
    nobody looked (a quick survey, or one that was ended). ``redo_lines`` were written to the list.
    """

    root: str
    depth: Depth
    format: str | None = None
    evidence: list[str] = field(default_factory=list)
    complete: bool = False
    stopped: Stop | None = None
    expected: int | None = None
    expected_tokens: int | None = None
    expected_evidence: str = ""
    present: int = 0
    broken: int = 0
    missing: int | None = None
    tokens: int = 0
    proven: Tally = field(default_factory=Tally)
    unverifiable: Tally = field(default_factory=Tally)
    condemned: Tally = field(default_factory=Tally)
    unread: Tally = field(default_factory=Tally)
    kinds: Counter[str] = field(default_factory=Counter)
    folders: list[dict[str, Any]] = field(default_factory=list)
    bytes: int = 0
    allocated: int = 0
    redo: Cost = field(default_factory=Cost)
    redo_lines: int = 0
    seconds: float = 0.0

    def count(self, finding: SurveyFinding) -> None:
        """Count one more finding."""
        self.kinds[finding.kind] += 1

    @property
    def errors(self) -> int:
        """Findings that are errors."""
        return sum(n for kind, n in self.kinds.items() if severity_of(kind) == "error")

    @property
    def sound(self) -> bool:
        """Whether nothing that was looked at is broken, and nothing that is expected missing."""
        return not self.errors

    def to_json(self) -> dict[str, Any]:
        """The last line of ``survey --json``."""
        own = {name: getattr(self, name) for name in self.__slots__}
        parts = {name: asdict(part) for name, part in own.items() if isinstance(part, Tally | Cost)}
        return {"type": "summary"} | own | parts | {"errors": self.errors}
