"""survey: what it says of trees that are not as they should be, and of who should know."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hsstore.errors import MalformedInput
from hsstore.interop.survey import Survey, survey
from hsstore.interop.surveying.expected import from_stats
from hsstore.interop.surveying.finding import SurveyFinding
from hsstore.interop.surveying.names import MOST_SAMPLES, numbers_of, role_of
from hsstore.model.capacity import Workload, plan_capacity
from hsstore.storage.filesystem import Buffer, Filesystem
from hsstore.storage.tokenised import read_samples
from hsstore.testing import loose_files
from hsstore.testing.loose_files import HIDDEN, path_of, row_of, specforge_item
from hsstore.testing.stores import filled_store
from hsstore_cli.survey import MOST_SAMPLES as OFFERED

SAMPLES = 12
SUFFIX = ".ckpt"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return loose_files.tree(tmp_path / "tree", SAMPLES)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return loose_files.dataset(tmp_path / "data.jsonl", SAMPLES)


def of(root: Path, sample: int) -> Path:
    return path_of(root, sample, SUFFIX)


def told(run: Survey) -> list[tuple[str, str | int | None]]:
    """Kinds, each with the file or row it is about."""
    return [(f.kind, f.row if f.path is None else Path(f.path).name) for f in run]


def findings(run: Survey) -> dict[str, SurveyFinding]:
    return {finding.kind: finding for finding in run}


# -- what should be there --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "samples", "tokens"),
    [
        ({"total_samples": 7, "total_tokens": 70}, 7, 70),
        ({"num_samples": 7, "hidden_size": 3}, 7, None),
        ({"run": {"sample_count": 7, "num_tokens": 70}}, 7, 70),
        ({"samples": 7, "num_samples": 7}, 7, None),
        ({"samples": 7, "num_samples": 8}, None, None),
        ({"samples": True, "total_samples": -1, "samples_total": "7"}, None, None),
        ({"rows_per_file": 5}, None, None),
        ({"num_samples": 10**12}, None, None),
        ([7], None, None),
    ],
)
def test_stats_say_a_number_or_nothing(
    tmp_path: Path, said: object, samples: int | None, tokens: int | None
) -> None:
    (tmp_path / "stats.json").write_text(json.dumps(said))
    found = from_stats(tmp_path / "stats.json")
    assert (found.samples, found.tokens) == (samples, tokens)
    assert bool(found.doubt) == (samples is None)


def test_stats_that_are_no_json_are_told_of(root: Path) -> None:
    (root / "stats.json").write_text("{")
    run = survey(root)
    assert told(run) == [("expected-unknown", None)]
    assert run.summary.expected is None


def test_stats_tell_what_is_missing_at_the_end(root: Path) -> None:
    (root / "stats.json").write_text('{"total_samples": 20}')
    of(root, 3).unlink()
    run = survey(root)
    spans = [(f.kind, f.row, f.last_row) for f in run]
    assert spans == [("missing", 3, 3), ("missing", 12, 19)]
    assert (run.summary.expected, run.summary.missing) == (20, 9)
    assert "total_samples: 20" in run.summary.expected_evidence


def test_who_is_asked_comes_before_stats_and_the_difference_is_told(root: Path) -> None:
    (root / "stats.json").write_text('{"total_samples": 20}')
    run = survey(root, samples=SAMPLES)
    assert told(run) == [("expected-differs", None)]
    assert run.summary.missing == 0


def test_more_than_expected_is_a_surplus(root: Path) -> None:
    assert told(survey(root, samples=10)) == [("surplus", 10)]


def test_a_gap_shows_without_anybody_to_say(root: Path) -> None:
    of(root, 0).unlink()
    of(root, 11).unlink()  # which nobody can miss
    assert told(survey(root)) == [("missing", 0)]


def test_a_number_that_no_tree_gets_to_is_none(root: Path) -> None:
    assert OFFERED == MOST_SAMPLES
    of(root, 11).rename(of(root, 11).with_name("data_999999999999.ckpt"))
    run = survey(root)
    assert told(run) == []
    assert (run.summary.present, run.summary.missing) == (SAMPLES, 0)


def test_names_that_are_no_numbers_show_no_gaps(tmp_path: Path) -> None:
    for sample, name in enumerate(("a1", "b7", "c90")):
        loose_files.as_zip(specforge_item(sample), tmp_path / f"{name}.pt")
    run = survey(tmp_path)
    assert told(run) == []
    assert run.summary.missing is None
    run = survey(tmp_path, samples=5)
    assert told(run) == [("missing", None)]
    assert run.summary.missing == 2


def test_numbers_that_begin_anew_in_each_folder_are_no_rows(tmp_path: Path) -> None:
    for sample in range(4):
        folder = tmp_path / str(sample % 2)
        folder.mkdir(exist_ok=True)
        loose_files.as_zip(specforge_item(sample), folder / f"data_{sample // 2}.ckpt")
    run = survey(tmp_path)
    assert told(run) == []
    assert run.summary.present == 4


def test_numbers_that_begin_with_1_are_no_gap_unless_a_format_begins_with_0(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        loose_files.as_zip(specforge_item(number), tmp_path / f"sample-{number}.pt")
    assert told(survey(tmp_path)) == []
    assert told(survey(tmp_path, samples=3)) == []


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("data_7.ckpt", "sample"),
        ("data_7.ckpt.gz", "sample"),
        ("template_3.pt", "sample"),
        ("hs_1.safetensors", "sample"),
        ("vocab_mapping.pt", "beside"),
        ("stats.json", "beside"),
        ("data-00000-of-00001.arrow", "beside"),
        (".nfs000000a3", "temporary"),
        (".tmp_data_3.pt.abcd", "temporary"),
        ("data_7.ckpt.tmp", "temporary"),
        ("data_7.ckpt.tmp.1234", "temporary"),
        ("tmpab12cd34", "temporary"),
        ("data_7.ckpt~", "temporary"),
        (".data_7.ckpt.Xy12Zw", "temporary"),
        ("notes.xyz", "foreign"),
        (".pt", "foreign"),
    ],
)
def test_roles_by_name(name: str, role: str) -> None:
    assert role_of(name) == role


def test_most_names_decide_on_the_series() -> None:
    assert numbers_of({"data_1", "data_2", "other"}) == {"data_1": 1, "data_2": 2}
    assert numbers_of({"data_1", "x", "y"}) == {}


# -- against a dataset -----------------------------------------------------------------------------


def test_a_row_is_found_whatever_its_file_is_called(root: Path, data: Path) -> None:
    """As with SpecForge's two ranks: data_1 is row 2, and the last numbers do not exist."""
    for sample in range(SAMPLES):
        of(root, sample).rename(of(root, sample).with_suffix(".aside"))
    for sample in range(SAMPLES):
        rank, at = divmod(sample * 7 % SAMPLES, 6)
        of(root, sample).with_suffix(".aside").rename(of(root, at + 8 * rank))
    run = survey(root, dataset=data)
    assert told(run) == []
    assert run.summary.missing == 0


def test_swapped_files_are_misplaced_and_not_lost(root: Path, data: Path) -> None:
    os.replace(of(root, 3), root / "aside")  # noqa: PTH105 - either would do
    of(root, 4).rename(of(root, 3))
    (root / "aside").rename(of(root, 4))
    run = survey(root, dataset=data)
    assert sorted(told(run), key=str) == [
        ("misplaced", "data_3.ckpt"),
        ("misplaced", "data_4.ckpt"),
    ]
    assert run.summary.sound


def test_a_row_that_is_there_twice_is_a_duplicate(root: Path, data: Path) -> None:
    loose_files.as_gzip(specforge_item(2), of(root, 2).with_suffix(".ckpt.gz"))
    loose_files.as_zip(specforge_item(5), of(root, 30))
    run = survey(root, dataset=data)
    assert sorted(told(run), key=str) == [
        ("duplicate", "data_2.ckpt.gz"), ("duplicate", "data_30.ckpt"),
    ]  # fmt: skip
    assert run.summary.present == SAMPLES + 1


def test_a_sound_twin_makes_up_for_a_broken_file(root: Path, data: Path) -> None:
    loose_files.as_gzip(specforge_item(2), of(root, 2).with_suffix(".ckpt.gz"))
    of(root, 2).write_bytes(b"")
    run = survey(root, dataset=data)
    assert {kind for kind, _ in told(run)} == {"duplicate", "empty"}
    assert (run.summary.broken, run.summary.missing, run.summary.redo.samples) == (0, 0, 0)


def test_rows_that_are_equal_need_a_file_each(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text((json.dumps(row_of(0)) + "\n") * 2)
    root = loose_files.tree(tmp_path / "tree", 1)
    assert told(survey(root, dataset=data)) == [("missing", 1)]
    loose_files.as_zip(specforge_item(0), of(root, 1))
    assert [f.kind for f in survey(root, dataset=data)] == []


def test_of_rows_that_are_equal_each_has_the_file_of_its_number(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(row_of(n)) + "\n" for n in (1, 2, 3, 3, 4, 5, 6)))
    root = tmp_path / "tree"
    for number, sample in ((0, 3), (1, 2), (2, 3), (4, 4), (5, 5), (6, 6), (9, 1)):
        path = of(root, number)
        path.parent.mkdir(parents=True, exist_ok=True)
        loose_files.as_zip(specforge_item(sample), path)
    # data_0, which comes first, is not taken for row 2.
    misplaced = [("misplaced", "data_0.ckpt"), ("misplaced", "data_9.ckpt")]
    assert sorted(told(survey(root, dataset=data)), key=str) == misplaced


@pytest.mark.parametrize("alike", [1, 9])
def test_padding_ends_where_one_row_does(root: Path, data: Path, alike: int) -> None:
    """Also where the row itself ends with tokens like the padding behind it."""
    row = row_of(3)
    whole = {
        "input_ids": row["input_ids"] + [0] * alike,
        "loss_mask": row["loss_mask"] + [1] * alike,
    }
    lines = data.read_text().splitlines()
    lines[3] = json.dumps(whole)
    data.write_text("\n".join(lines) + "\n")
    item = specforge_item(3)
    for key, value in item.items():
        shape = list(value.shape)
        shape[value.ndim > 1] = alike + 20
        filling = torch.full(shape, 0.5 if value.is_floating_point() else 0, dtype=value.dtype)
        item[key] = torch.cat([value, filling], dim=int(value.ndim > 1))
    loose_files.as_zip(item, of(root, 3))
    found = findings(survey(root, dataset=data))
    assert found["padded"].detail == "its tokens are those of row 3 and 20 of padding"
    assert set(found) == {"padded"}
    # With the shorter row there too, nobody can say which of the two it is.
    data.write_text(data.read_text() + json.dumps(row) + "\n")
    found = findings(survey(root, dataset=data))
    assert set(found) == {"unmatched", "missing"}


def test_a_dataset_is_of_no_use_for_files_without_tokens(tmp_path: Path, data: Path) -> None:
    loose_files.as_zip({"hidden_states": torch.ones(3, 8)}, tmp_path / "data_0.ckpt")
    with pytest.raises(MalformedInput, match="leave --dataset out"):
        list(survey(tmp_path, dataset=data))


# -- what is to be done again ----------------------------------------------------------------------


def test_the_list_is_a_dataset_whose_rows_keep_their_keys(
    root: Path, data: Path, tmp_path: Path
) -> None:
    of(root, 3).unlink()
    of(root, 7).write_bytes(b"PK\x03\x04")
    again = tmp_path / "again.jsonl"
    run = survey(root, dataset=data, redo=again)
    list(run)
    rows = [*read_samples(again)]
    assert [row.key for row in rows] == ["3", "7"]
    assert rows[1].input_ids.tolist() == row_of(7)["input_ids"]
    assert run.summary.redo_lines == 2


def test_without_a_dataset_the_list_is_of_rows_and_names(root: Path, tmp_path: Path) -> None:
    of(root, 3).unlink()
    odd = of(root, 7).with_name(os.fsdecode(b"no\nname \xff.ckpt"))
    odd.write_bytes(b"")
    again = tmp_path / "again.jsonl"
    list(survey(root, redo=again))
    lines = [json.loads(line) for line in again.read_bytes().splitlines()]
    assert lines[0] == {"row": 3, "file": None, "reason": "missing"}
    assert (lines[1]["row"], lines[1]["reason"]) == (None, "empty")
    assert root / lines[1]["file"] == odd


def test_no_list_is_written_where_nothing_is_lost(root: Path, tmp_path: Path) -> None:
    again = tmp_path / "again.jsonl"
    list(survey(root, redo=again))
    assert not again.exists()


def test_the_list_takes_nobody_s_place_and_is_not_in_the_tree(root: Path, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("mine")
    for file in (root / "again", root / "rows_0-2000" / "again", tmp_path / "there",
                 tmp_path / "no" / "folder"):  # fmt: skip
        with pytest.raises(MalformedInput):
            survey(root, redo=file)
    assert (tmp_path / "there").read_text() == "mine"


def test_the_cost_is_that_of_a_plan(root: Path, data: Path) -> None:
    of(root, 3).unlink()
    of(root, 7).write_bytes(b"")
    lengths = [len(row_of(n)["input_ids"]) for n in (3, 7)]
    run = survey(root, dataset=data)
    list(run)
    cost = run.summary.redo
    planned = plan_capacity(Workload(layers=4, hidden_size=HIDDEN, lengths=lengths))
    assert (cost.samples, cost.tokens, cost.exact) == (2, sum(lengths), True)
    assert cost.store_bytes == planned.store_bytes
    # Four layers in bfloat16, ids and mask in int64.
    assert cost.tree_bytes == sum(lengths) * (4 * HIDDEN * 2 + 16)


def test_without_lengths_the_cost_is_an_estimate(root: Path) -> None:
    of(root, 3).unlink()
    run = survey(root)
    list(run)
    known = [len(row_of(n)["input_ids"]) for n in range(SAMPLES) if n != 3]
    assert not run.summary.redo.exact
    assert run.summary.redo.tokens == round(sum(known) / len(known))


# -- hostile and unreadable trees ------------------------------------------------------------------


def test_nothing_of_a_file_is_run(root: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.system, (f"touch {tmp_path / 'fired'}",)

    torch.save({"input_ids": torch.ones(3), "bomb": Bomb()}, of(root, 3))
    torch.save(Bomb(), of(root, 4), _use_new_zipfile_serialization=False)
    assert told(survey(root, depth="content")) == [
        ("pickle", "data_3.ckpt"), ("pickle", "data_4.ckpt"),
    ]  # fmt: skip
    assert not (tmp_path / "fired").exists()


def test_links_are_told_and_not_followed(root: Path) -> None:
    (root / "again").symlink_to(root)
    (root / "rows_0-2000" / "data_12.ckpt").symlink_to(of(root, 3))
    os.mkfifo(root / "rows_0-2000" / "data_13.ckpt")
    run = survey(root)
    assert [kind for kind, _ in told(run)] == ["link"] * 3
    assert run.summary.present == SAMPLES


class Failing(Filesystem):
    """Fails to read one file, or to list one folder."""

    def __init__(self, path: Path, number: int = errno.EIO) -> None:
        self._failing, self._number = path, number

    def read_at(self, fd: int, into: Buffer, offset: int, path: Path) -> int:
        self._fail(path)
        return super().read_at(fd, into, offset, path)

    def names(self, path: Path) -> list[str]:
        self._fail(path)
        return super().names(path)

    def _fail(self, path: Path) -> None:
        if path == self._failing:
            raise OSError(self._number, os.strerror(self._number), str(path))


def test_bytes_that_the_disk_does_not_give_are_a_finding(root: Path) -> None:
    run = survey(root, filesystem=Failing(of(root, 3)))
    assert told(run) == [("unreadable", "data_3.ckpt")]
    assert run.summary.broken == 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
@pytest.mark.parametrize("what", ["file", "folder"])
def test_what_the_machine_has_run_out_of_is_no_fault_of_a_file(
    root: Path, number: int, what: str
) -> None:
    (root / "below").mkdir()
    path = of(root, 3) if what == "file" else root / "below"
    run = survey(root, filesystem=Failing(path, number))
    with pytest.raises(OSError, match=re.escape(os.strerror(number))):
        list(run)
    assert not run.summary.complete


LOOK = """
import json, os, sys
from hsstore.interop.survey import survey
list(survey(sys.argv[1]))  # all modules are loaded while they may be
if os.geteuid() == 0:
    os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
print(json.dumps([[f.kind, f.path] for f in survey(sys.argv[1], samples=12)]))
"""


def test_what_another_user_may_not_see_is_unreadable(root: Path, tmp_path: Path) -> None:
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        if folder.owner() == "root" or os.geteuid() != 0:
            folder.chmod(0o755)
    of(root, 3).chmod(0)
    closed = root / "rows_2000-4000"
    closed.mkdir()
    closed.chmod(0)
    done = subprocess.run(
        [sys.executable, "-c", LOOK, "tree"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True, text=True, check=True, timeout=60,
    )  # fmt: skip
    closed.chmod(0o755)
    assert json.loads(done.stdout.splitlines()[-1]) == [
        ["unreadable", "rows_2000-4000"], ["unreadable", "rows_0-2000/data_3.ckpt"],
    ]  # fmt: skip


def test_a_store_is_for_fsck(tmp_path: Path) -> None:
    store = filled_store(tmp_path / "store")
    with pytest.raises(MalformedInput, match="hsstore fsck"):
        survey(store.root)


def test_a_folder_without_samples_is_not_fine(tmp_path: Path) -> None:
    (tmp_path / "notes.xyz").write_text("nothing")
    run = survey(tmp_path)
    assert [kind for kind, _ in told(run)] == ["foreign-file", "no-samples"]
    assert not run.summary.sound


def test_what_is_no_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedInput, match="no such folder"):
        list(survey(tmp_path / "nowhere"))


# -- how it goes about it --------------------------------------------------------------------------


def test_nothing_is_changed(root: Path, data: Path) -> None:
    def state() -> list[tuple[str, int, int, int]]:
        paths = [root, *sorted(root.rglob("*"))]
        return [(str(p), (s := p.lstat()).st_mtime_ns, s.st_ctime_ns, s.st_size) for p in paths]

    before = state()
    list(survey(root, depth="content", dataset=data))
    assert state() == before


def test_one_that_is_ended_says_what_it_saw_and_writes_no_list(root: Path, tmp_path: Path) -> None:
    of(root, 2).write_bytes(b"")
    of(root, 5).write_bytes(b"")
    again = tmp_path / "again"
    run = survey(root, redo=again, threads=1)
    found = iter(run)
    assert next(found).path == "rows_0-2000/data_2.ckpt"
    found.close()
    summary = run.summary
    assert (summary.complete, summary.stopped) == (False, "interrupted")
    assert summary.broken == 1
    assert summary.proven.files == 2
    assert summary.unread.files == SAMPLES - 3
    assert not again.exists()


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_threads_change_nothing_of_what_is_said(root: Path, threads: int) -> None:
    of(root, 2).write_bytes(b"PK")
    of(root, 9).write_bytes(b"")
    run = survey(root, threads=threads)
    assert told(run) == [("no-container", "data_2.ckpt"), ("empty", "data_9.ckpt")]


def test_sparse_files_are_told(root: Path) -> None:
    raw = of(root, 3).read_bytes()
    with of(root, 3).open("r+b") as file:
        file.truncate(0)
        file.truncate(len(raw))
    kinds = findings(survey(root))
    assert "1" in kinds["sparse"].detail
    assert kinds["no-container"].path == "rows_0-2000/data_3.ckpt"


def test_of_equal_rows_each_file_has_that_of_its_name(tmp_path: Path) -> None:
    data = tmp_path / "data.jsonl"
    rows = [row_of(0), row_of(1), row_of(0), row_of(2)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    root = tmp_path / "tree"
    for number, sample in ((1, 1), (2, 0), (3, 2)):
        path_of(root, number, SUFFIX).parent.mkdir(parents=True, exist_ok=True)
        loose_files.as_zip(specforge_item(sample), of(root, number))
    assert told(survey(root, dataset=data)) == [("missing", 0)]
