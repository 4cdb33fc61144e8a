"""hsstore copy: what it prints and how it ends."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from hsstore.model import keys
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.litter import hold
from hsstore.testing.stores import fill, filled_store
from hsstore_cli import exit_codes
from hsstore_cli.main import main


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return filled_store(tmp_path / "store")


SOURCE = "--source transformers:PATH"
Run = tuple[int, str, str]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> Run:
    code = main(["copy", *map(str, words), "--min-free", "0"])
    shown = capsys.readouterr()
    return code, shown.out, shown.err


def json_lines(out: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.splitlines()]


def test_a_whole_copy_ends_with_0(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    code, out, _ = run(capsys, store.root, copy)
    assert code == exit_codes.OK
    assert out.startswith(f"{copy}: the same store; of 4 shards 4 copied; 82.94 kB (")
    assert out.endswith("copied and verified\n")
    code, out, _ = run(capsys, store.root, copy)
    assert (code, "4 there before; 0 bytes copied" in out) == (exit_codes.OK, True)
    assert main(["fsck", str(copy)]) == exit_codes.OK


def test_damage_is_named_with_what_completes_the_copy(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    copy = tmp_path / "copy"
    code, out, err = run(capsys, store.root, copy)
    assert code == exit_codes.PROBLEMS
    assert "error chunk-damaged: chunk 0 is not what was stored" in out
    assert "shard 1 is left out: chunk 0 is not what was stored" in err
    lines = out.splitlines()
    assert lines[-3:] == [
        "left out: shards 1. To complete the copy, one of:",
        f"  hsstore repair {store.root} {SOURCE} --apply   # then the same copy again",
        f"  hsstore repair {copy} --from {store.root} {SOURCE} --apply",
    ]
    code, out, _ = run(capsys, store.root, copy, "--json")
    finding, summary = json_lines(out)
    assert code == exit_codes.PROBLEMS
    assert (finding["kind"], finding["shard"], finding["samples"]) == (
        "chunk-damaged",
        1,
        ["sample-3"],
    )
    assert summary["type"] == "summary"
    assert (summary["damaged"], summary["before"], summary["complete"]) == ([1], 3, False)


def test_a_part_is_a_new_store(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--layers", "3", "--samples", "0-2", "--samples", "sample-7")
    code, out, _ = run(capsys, store.root, tmp_path / "part", *words, "--codec", "blosc-zstd")
    assert code == exit_codes.OK
    assert re.search(r"part: a new store, [0-9a-f]{32}; of 1 shards 1 copied; 7.17 kB", out)
    assert Store.open(tmp_path / "part").plan.samples == 4


def test_a_part_that_was_completed_elsewhere_is_no_other_store(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    part, words = tmp_path / "part", ("--codec", "blosc-zstd")
    code, out, _ = run(capsys, store.root, part, *words)
    assert code == exit_codes.PROBLEMS
    assert out.splitlines()[-2].endswith(". To complete the copy:")
    fill(Store.open(part))
    code, _, err = run(capsys, store.root, part, *words)
    assert code == exit_codes.FAILED
    assert "not all of its states were copied from here" in err


def test_what_another_writer_holds_ends_with_8(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    copy = tmp_path / "copy"
    run(capsys, store.root, copy)
    damage.flip_bit(store.root / keys.shard_file(1), 100)
    claim = hold(Store.open(copy), 1)
    code, out, err = run(capsys, store.root, copy)
    assert code == exit_codes.FAILED
    assert "shards 1 are held by another writer; run the same command again" in out
    assert "shard 1 is held by a writer" in err
    claim.release()
    assert run(capsys, store.root, copy)[0] == exit_codes.OK


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--samples", "99"], exit_codes.FAILED, "there are no samples 99"),
        (["--layers", "9"], exit_codes.FAILED, "layer 9 does not exist"),
        (["--codec", "zip"], exit_codes.USAGE, "--codec"),
        (["--min-free", "much"], exit_codes.USAGE, "--min-free"),
    ],
)
def test_wrong_words_leave_nothing_behind(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    words: list[str], code: int, said: str,
) -> None:  # fmt: skip
    assert main(["copy", str(store.root), str(tmp_path / "copy"), *words]) == code
    assert said in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_no_room_ends_with_8_and_says_what_is_missing(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["copy", str(store.root), str(tmp_path / "copy"), "--min-free", "900TB"]
    assert main(words) == exit_codes.FAILED
    assert "are missing; free space, or lower --min-free" in capsys.readouterr().err
    assert not (tmp_path / "copy").exists()


def test_names_in_a_store_cannot_command_a_terminal(
    store: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = store.root / keys.CALIBRATION
    folder.mkdir(exist_ok=True)
    (folder / "\x1b]0;mine\x07\udcff").write_text("nothing")
    code, out, _ = run(capsys, store.root, tmp_path / "copy")
    assert code == exit_codes.PROBLEMS
    assert "mine" in out
    assert all(line.isprintable() for line in out.splitlines())
