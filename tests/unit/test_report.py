"""Reports are read back as they were written, and nothing else is believed."""

import json
from collections.abc import Callable

import pytest

from hsstore.errors import MalformedInput
from hsstore.model.finding import Finding, Summary
from hsstore.model.report import Checked, ReportLines, Run, parse

RUN = Run("0" * 32, "/data/states", "data", 0, 12, 4, "2026-01-31T12:00:00Z", subset=(1, 2))
FINDING = Finding(
    "chunk-damaged", "error", "chunk 3 is not what was stored", shard=2, samples=("a", "b"),
    path="states.zarr/hidden_states/c/2/0/0", chunk=3, byte_range=(0, 96), generation=1,
)  # fmt: skip
SHARDS = (Checked(0, 1, 3, 1024), Checked(2, 1, 2, 1024))
TIME = "2026-01-31T12:05:00Z"


def lines() -> list[str]:
    made = ReportLines()
    summary = Summary("data", 4, 6, complete=True, shards_checked=2)
    summary.findings["error"] = 1
    return [made.run(RUN), made.finding(FINDING), made.checked(TIME, SHARDS), made.summary(summary)]


def raw(parts: list[str]) -> bytes:
    return "".join(parts).encode()


def test_a_report_is_read_back_as_it_was_written() -> None:
    report = parse(raw(lines()), "r.jsonl")
    assert (report.run, report.findings) == (RUN, (FINDING,))
    assert report.checked == {0: (TIME, SHARDS[0]), 2: (TIME, SHARDS[1])}
    assert report.summary is not None
    assert report.summary.findings == {"error": 1, "warning": 0, "note": 0}
    assert report.finished


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_report_without_its_summary_is_of_an_unfinished_run(cut: int) -> None:
    report = parse(raw(lines()[:cut]), "r.jsonl")
    assert (report.summary, report.finished) == (None, False)


def test_a_report_may_end_within_a_line_while_its_run_has_not() -> None:
    whole = raw(lines())
    first = len(lines()[0])
    for end in range(first, len(whole)):
        assert parse(whole[:end], "r.jsonl").summary is None


def edit(number: int, **members: object) -> Callable[[list[str]], list[str]]:
    """Change members of one line."""

    def edited(parts: list[str]) -> list[str]:
        changed = json.dumps(json.loads(parts[number]) | members) + "\n"
        return [*parts[:number], changed, *parts[number + 1 :]]

    return edited


def becoming(text: str) -> Callable[[list[str]], list[str]]:
    """Something else in place of the report."""
    return lambda _: [text]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (becoming(""), "r.jsonl: the report ends before its first line"),
        (becoming("PK\3\4 some zip"), "r.jsonl: the report ends before its first line does"),
        (becoming("no json\n"), "r.jsonl:1: the report is torn, or no report"),
        (becoming("[" * 100_000 + "\n"), "r.jsonl:1: the report is torn, or no report: this line"),
        (becoming("[]\n"), "r.jsonl:1: the report is no report: this line is not an object"),
        (becoming('{"a": 1}\n'), "r.jsonl:1: the report does not begin with its"),
        (lambda parts: parts[1:], "r.jsonl:1: the report does not begin with its run"),
        (lambda parts: parts * 2, "r.jsonl:5: the report holds two runs"),
        (lambda parts: [*parts, parts[1]], "r.jsonl:5: the report goes on behind its summary"),
        (lambda parts: [*parts, "x"], "r.jsonl:4: the report goes on behind its summary"),
        (lambda parts: [parts[0], *parts[2:]], "r.jsonl:3: the report is torn or edited: seal"),
        (edit(1, shard=3), "r.jsonl:4: the report is torn or edited: seal: it is not that of"),
        (edit(0, store="x"), "r.jsonl:1: the report is torn or edited: store: not 32 hex"),
        (edit(0, level="deep"), "r.jsonl:1: the report is torn or edited: level: 'deep' is none"),
        (edit(0, shards=[1]), "r.jsonl:1: the report is torn or edited: shards: not 2 items"),
        (edit(0, source=["rm"]), "r.jsonl:1: the report is torn or edited: source: "),
        (edit(0, started="now"), "r.jsonl:1: the report is torn or edited: started: no time like"),
        (edit(1, kind="new"), "r.jsonl:2: the report is torn or edited: kind: 'new' is not known"),
        (edit(1, severity="note"), "r.jsonl:2: the report is torn or edited: severity: not that"),
        (edit(1, samples="a"), "r.jsonl:2: the report is torn or edited: samples: not an array"),
        (edit(1, shard=-1), "r.jsonl:2: the report is torn or edited: shard: -1 is below 0"),
        (edit(1, type="other"), "r.jsonl:2: the report is torn or edited: type: 'other' is no"),
        (edit(2, shards=[[1, 2]]), "r.jsonl:3: the report is torn or edited: shards[0]: not 4"),
        (edit(3, complete=1), "r.jsonl:4: the report is torn or edited: complete: 1 is none"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_whole_report_is_refused_in_one_line(
    change: Callable[[list[str]], list[str]], said: str
) -> None:
    with pytest.raises(MalformedInput) as refused:
        parse(raw(change(lines())), "r.jsonl")
    assert str(refused.value).startswith(said)
    assert "\n" not in str(refused.value)


def test_members_that_newer_versions_add_are_left_to_them() -> None:
    made = ReportLines()
    first = json.loads(made.run(RUN)) | {"threads": 4}
    assert parse((json.dumps(first) + "\n").encode(), "r.jsonl").run == RUN
