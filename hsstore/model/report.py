"""A report of fsck: the JSON lines that ``fsck --json`` prints, written and read back.

The first line is of type ``run`` and says what was asked for. Then findings, and lines of type
``checked`` with the shards that are done; a shard's findings come before it. The last line is the
summary, whose ``seal`` is the xxh3_128 of all lines before it. A report without that line is of a
run that has not ended, or was killed.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import xxhash

from hsstore.errors import InvalidDocument, MalformedInput
from hsstore.model import keys
from hsstore.model.audit import AuditCounts, audit_member
from hsstore.model.commands import SERVER, SPOOL, TRANSFORMERS
from hsstore.model.document import (
    Check,
    Problem,
    array,
    hexadecimal,
    integer,
    one_of,
    optional,
    record,
    text,
)
from hsstore.model.finding import KINDS, LEVELS, Finding, Level, Summary, severity_of

NO_REPORT = "give a report as fsck --report or fsck --json writes it"
TIME = re.compile("[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
BEGINNING = b'{"type": "run", '
"""What the first bytes of a report are."""
SOURCES = (TRANSFORMERS, SERVER, (*SERVER, *SPOOL))


class Checked(NamedTuple):
    """One shard that was checked: its generation (0: none), samples verified, bytes hashed."""

    shard: int
    generation: int
    verified: int
    bytes_checked: int


@dataclass(frozen=True, slots=True)
class Run:
    """What one run of fsck was asked for, and of which store: the first line of a report.

    ``store`` (its uuid) and ``plan`` (a generation) are None where the store could not be opened.
    ``shards`` are the first and last of a range, ``subset`` is (n, t); None stands for all.
    ``max_age_seconds`` is how recently verified shards were left out. ``source`` is how to type
    what computes the store's states; ``started`` is UTC, RFC 3339.
    """

    store: str | None
    root: str
    level: Level
    plan: int | None
    samples_total: int
    shards_total: int
    started: str
    shards: tuple[int, int] | None = None
    subset: tuple[int, int] | None = None
    max_age_seconds: int | None = None
    source: tuple[str, ...] = TRANSFORMERS

    def to_json(self) -> dict[str, Any]:
        """The first line."""
        return {"type": "run"} | {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Report:
    """A report that was read; ``summary`` is None where its run did not end.

    ``checked`` maps each shard that was checked to when (UTC, RFC 3339) and what of it.
    """

    place: str
    run: Run
    findings: tuple[Finding, ...]
    checked: Mapping[int, tuple[str, Checked]]
    summary: Summary | None

    @property
    def finished(self) -> bool:
        """Whether everything that was asked for was looked at."""
        return self.summary is not None and self.summary.complete


@dataclass(slots=True)
class ReportLines:
    """Makes the lines of a report, in the order of its run."""

    _seal: "xxhash.xxh3_128" = field(default_factory=xxhash.xxh3_128)

    def run(self, run: Run) -> str:
        """The first line."""
        return self._line(run.to_json())

    def finding(self, finding: Finding) -> str:
        """The line of a finding."""
        return self._line(finding.to_json())

    def checked(self, time: str, shards: Iterable[Checked]) -> str:
        """The line that says which shards are done by now."""
        return self._line({"type": "checked", "time": time, "shards": [*shards]})

    def summary(self, summary: Summary) -> str:
        """The last line, with the seal of all others."""
        return self._line(summary.to_json() | {"seal": self._seal.hexdigest()})

    def _line(self, members: Mapping[str, Any]) -> str:
        line = json.dumps(members, allow_nan=False) + "\n"
        self._seal.update(line.encode())
        return line


def parse(raw: bytes, place: str) -> Report:
    """The report in ``raw``; one that has no summary yet may end within a line.

    Raises MalformedInput for what is no report, or torn or edited, naming the line.
    """
    *whole, last = raw.split(b"\n")
    reading = _Reading(place)
    for line in whole:
        reading.add(line)
    if last and reading.summary is not None:
        raise reading.malformed("goes on behind its summary")
    return reading.report()


def read_finding(line: dict[str, Any]) -> Finding:
    """The finding of one such line; InvalidDocument where it is none that is known here."""
    try:
        return _finding(line)
    except _Problems as problems:
        raise InvalidDocument(str(problems)) from None


class _Reading:
    """A report as far as it was read."""

    def __init__(self, place: str) -> None:
        self.summary: Summary | None = None
        self._place = place
        self._number = 0
        self._run: Run | None = None
        self._findings: list[Finding] = []
        self._checked: dict[int, tuple[str, Checked]] = {}
        self._seal = xxhash.xxh3_128()

    def malformed(self, what: str) -> MalformedInput:
        place = f"{self._place}:{self._number}" if self._number else self._place
        return MalformedInput(f"the report {what}", place=place, remedy=NO_REPORT)

    def add(self, raw: bytes) -> None:
        self._number += 1
        line = self._object(raw)
        kind = line.get("type")
        if (self._run is None) != (kind == "run"):
            what = "holds two runs" if kind == "run" else "does not begin with its run"
            raise self.malformed(what)
        if self.summary is not None:
            raise self.malformed("goes on behind its summary")
        try:
            self._take(str(kind), line)
        except _Problems as problems:
            raise self.malformed(f"is torn or edited: {problems}") from None
        self._seal.update(raw + b"\n")

    def report(self) -> Report:
        if self._run is None:
            raise self.malformed("ends before its first line does")
        return Report(self._place, self._run, tuple(self._findings), self._checked, self.summary)

    def _object(self, raw: bytes) -> dict[str, Any]:
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            raise self.malformed("is torn, or no report: this line is not JSON") from None
        if not isinstance(line, dict):
            raise self.malformed("is no report: this line is not an object")
        return line

    def _take(self, kind: str, line: dict[str, Any]) -> None:
        match kind:
            case "run":
                self._run = _run(line)
            case "finding":
                self._findings.append(_finding(line))
            case "checked":
                self._checked.update(_checked(line))
            case "summary":
                self.summary = _summary(line, self._seal.hexdigest())
            case _:
                raise _Problems([Problem("type", "choice", f"{kind!r} is no type of line")])


class _Problems(Exception):
    """What is wrong with a line."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        super().__init__("; ".join(map(str, problems)))

    @classmethod
    def of(cls, line: Mapping[str, Any], fields: Mapping[str, Check]) -> None:
        """Raise what is wrong with the members asked for; others are left to newer versions."""
        known = {name: line[name] for name in fields if name in line}
        if problems := record(fields)(known, ""):
            raise cls(problems)


def _run(line: dict[str, Any]) -> Run:
    _Problems.of(line, RUN)
    values = {name: line[name] for name in Run.__slots__}
    for name in ("shards", "subset", "source"):
        values[name] = None if values[name] is None else tuple(values[name])
    return Run(**values)


def _finding(line: dict[str, Any]) -> Finding:
    _Problems.of(line, FINDING)
    if line["kind"] not in KINDS:
        what = f"{line['kind']!r} is not known to this hsstore: upgrade"
        raise _Problems([Problem("kind", "choice", what)])
    if line["severity"] != severity_of(line["kind"]):
        raise _Problems([Problem("severity", "choice", "not that of its kind")])
    values = {name: line[name] for name in Finding.__slots__}
    for name in ("samples", "byte_range"):
        values[name] = None if values[name] is None else tuple(values[name])
    return Finding(**values)


def _checked(line: dict[str, Any]) -> Iterator[tuple[int, tuple[str, Checked]]]:
    _Problems.of(line, CHECKED)
    for shard in line["shards"]:
        row = Checked(*shard)
        yield row.shard, (line["time"], row)


def _summary(line: dict[str, Any], seal: str) -> Summary:
    _Problems.of(line, SUMMARY)
    if line["seal"] != seal:
        raise _Problems([Problem("seal", "digest", "it is not that of the lines before it")])
    values = {name: line[name] for name in Summary.__slots__}
    values["subset"] = None if values["subset"] is None else tuple(values["subset"])
    if values["audit"] is not None:
        values["audit"] = AuditCounts.from_json(values["audit"])
    return Summary(**values)


def _sized(check: Check, length: int) -> Check:
    """An array of exactly that many items."""

    def sized(value: object, path: str) -> list[Problem]:
        if isinstance(value, list) and len(value) != length:
            return [Problem(path, "range", f"not {length} items")]
        return array(check)(value, path)

    return sized


def _time(value: object, path: str) -> list[Problem]:
    """A time as ``timestamp`` tells it: such strings sort as their times do."""
    if isinstance(value, str) and TIME.fullmatch(value):
        return []
    return [Problem(path, "choice", "no time like 2026-01-31T12:00:00Z")]


def _shards(value: object, path: str) -> list[Problem]:
    """No more shards than names in a store can tell apart: whoever reads a report counts them."""
    if isinstance(value, int) and value > keys.GROWTH:
        return [Problem(path, "range", f"above {keys.GROWTH}")]
    return integer()(value, path)


RUN: dict[str, Check] = {
    "store": optional(hexadecimal(32)),
    "root": text(),
    "level": one_of(*LEVELS),
    "plan": optional(integer()),
    "samples_total": integer(),
    "shards_total": _shards,
    "started": _time,
    "shards": optional(_sized(integer(), 2)),
    "subset": optional(_sized(integer(1), 2)),
    "max_age_seconds": optional(integer()),
    "source": one_of(*map(list, SOURCES)),
}

FINDING: dict[str, Check] = {
    "kind": text(),
    "severity": text(),
    "detail": text(),
    "shard": optional(integer()),
    "samples": optional(array(text())),
    "path": optional(text()),
    "chunk": optional(integer()),
    "byte_range": optional(_sized(integer(), 2)),
    "evidence": optional(text()),
    "repair": optional(text()),
    "generation": optional(integer()),
}

CHECKED: dict[str, Check] = {
    "time": _time,
    "shards": array(_sized(integer(), len(Checked._fields))),
}

SUMMARY: dict[str, Check] = {
    "level": one_of(*LEVELS),
    "complete": one_of(*(True, False)),
    "shards_checked": integer(),
    "shards_total": integer(),
    "samples_damaged": integer(),
    "bytes_checked": integer(),
    "unverified": integer(),
    "findings": record({"error": integer(), "warning": integer(), "note": integer()}),
    "shards_asked": integer(),
    "shards_recent": integer(),
    "subset": optional(_sized(integer(1), 2)),
    "stopped": optional(one_of("interrupted", "max-duration")),
    "audit": optional(audit_member),
    "seal": hexadecimal(32),
}
