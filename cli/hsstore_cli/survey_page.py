"""What a survey says to people."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from hsstore.model import commands
from hsstore_cli import render

if TYPE_CHECKING:
    from hsstore.interop.surveying.finding import Cost, SurveyFinding, SurveySummary, Tally

FOLDERS_SHOWN = 20
# Of one kind.
FINDINGS_SHOWN = 20


class Page:
    """Writes findings as they come, of each kind the first few."""

    def __init__(self) -> None:
        self._shown: Counter[str] = Counter()

    def add(self, finding: "SurveyFinding") -> None:
        """Show a finding in one line: how grave, what, where."""
        self._shown[finding.kind] += 1
        if self._shown[finding.kind] <= FINDINGS_SHOWN:
            where = "" if finding.path is None else f"{finding.path}: "
            render.show(f"{finding.severity} {finding.kind}: {where}{finding.detail}")

    def end(self, summary: "SurveySummary", dataset: Path | None, redo: Path | None) -> None:
        """Show how many more there are, and the summary."""
        for kind, count in self._shown.items():
            if count > FINDINGS_SHOWN:
                render.show(f"{kind}: {count - FINDINGS_SHOWN} more; --json tells each of them")
        render.show(*summary_lines(summary, dataset, redo))


def summary_lines(
    summary: "SurveySummary", dataset: Path | None, redo: Path | None
) -> Iterator[str]:
    """What the tree is, what is there and what is not, what was proven, what to do next."""
    yield from _format(summary)
    yield from _folders(summary)
    yield _samples(summary)
    yield from _proof(summary)
    yield _verdict(summary)
    if summary.complete:
        yield from _redo(summary.redo)
    yield from _next(summary, dataset, redo)


def _format(summary: "SurveySummary") -> Iterator[str]:
    yield f"{summary.root}: {summary.format or 'of no format that is known'}"
    yield from (f"  {line}" for line in summary.evidence)


def _folders(summary: "SurveySummary") -> Iterator[str]:
    """Sizes by folder, the largest ones."""
    largest = sorted(summary.folders, key=lambda folder: -folder["bytes"])
    for folder in largest[:FOLDERS_SHOWN]:
        sparse = f", {folder['sparse']} of them sparse" if folder["sparse"] else ""
        files = render.counted(folder["files"], "file")
        yield f"  {folder['folder'] or '.'}: {files}{sparse}, {_sizes(folder)}"
    more = len(largest) - FOLDERS_SHOWN
    if more > 0:
        yield f"  and {render.counted(more, 'folder')} more"
    yield f"  all: {_sizes({'bytes': summary.bytes, 'allocated': summary.allocated})}"


def _sizes(taken: dict[str, int]) -> str:
    return f"{render.size(taken['bytes'])}, {render.size(taken['allocated'])} on disk"


def _samples(summary: "SurveySummary") -> str:
    if summary.expected is None:
        expected = "nobody says how many there should be"
    else:
        expected = f"of {summary.expected} expected ({summary.expected_evidence})"
    missing = "unknown" if summary.missing is None else str(summary.missing)
    there = f"{summary.present} present, {summary.broken} of them broken, {missing} missing"
    return f"samples: {there}; {expected}"


def _proof(summary: "SurveySummary") -> Iterator[str]:
    yield f"proven by checksums: {_tally(summary.proven)}"
    if summary.unverifiable.files:
        yield f"unverifiable: {_tally(summary.unverifiable)}, for their format has no checksums"
    if summary.condemned.files:
        yield f"with faults: {_tally(summary.condemned)}"
    if summary.unread.files:
        why = "--quick reads no more than headers" if summary.complete else "not reached"
        yield f"not verified: {_tally(summary.unread)}, {why}"


def _tally(tally: "Tally") -> str:
    return f"{render.counted(tally.files, 'file')}, {render.size(tally.bytes)}"


def _verdict(summary: "SurveySummary") -> str:
    found = ", ".join(f"{kind}: {count}" for kind, count in sorted(summary.kinds.items()))
    start = "" if summary.complete else "Interrupted; so far: "
    took = render.duration(summary.seconds)
    clean = "nothing wrong" if summary.proven.files == summary.present else "nothing wrong was seen"
    return f"{start}{found or clean} (depth {summary.depth}, {took})"


def _redo(cost: "Cost") -> Iterator[str]:
    if not cost.samples:
        return
    about = "" if cost.exact else "about "
    tokens = "tokens unknown" if cost.tokens is None else f"{about}{cost.tokens} tokens"
    lines = [f"to extract again: {render.counted(cost.samples, 'sample')}, {tokens}"]
    if cost.tree_bytes is not None:
        lines.append(f"{about}{render.size(cost.tree_bytes)} as such files")
    if cost.store_bytes is not None:
        most = "" if cost.exact else "at most "
        lines.append(f"{most}{render.size(cost.store_bytes)} in a store")
    yield ", ".join(lines)


def _next(summary: "SurveySummary", dataset: Path | None, redo: Path | None) -> Iterator[str]:
    if redo is None:
        return
    if not summary.complete:
        yield f"{redo} was not written: not all files were looked at"
    elif not summary.redo_lines:
        yield f"{redo} was not written: no sample can be named that is to be extracted again"
    elif dataset is None:
        yield f"{redo} names {render.counted(summary.redo_lines, 'sample')} to extract again"
    else:
        rows = render.counted(summary.redo_lines, "row")
        yield f"{redo} holds {rows} of {dataset}; a store for them:"
        words = ("--dataset", redo, "--model", "MODEL", "--layers", "LAYERS")
        yield f"  {commands.hsstore('create', 'STORE', *words)}"
