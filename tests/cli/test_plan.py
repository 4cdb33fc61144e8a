import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hsstore_cli.main import main

TOTALS = ["--tokens", "87793206", "--samples", "37312"]
SHAPE = ["--num-layers", "4", "--hidden-size", "7168", "--dtype", "bfloat16"]
SMALL = ["--tokens", "1000", "--samples", "10", "--num-layers", "2", "--hidden-size", "64"]


@pytest.fixture(autouse=True)
def disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A filesystem of 3 TB with 2.7 TB available."""
    found = SimpleNamespace(
        f_frsize=4096,
        f_blocks=3_000_000_000_000 // 4096,
        f_bfree=2_850_000_000_000 // 4096,
        f_bavail=2_700_000_000_000 // 4096,
        f_files=1_000_000,
        f_favail=900_000,
    )
    monkeypatch.setattr(os, "statvfs", lambda _: found)
    return found


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["plan", *arguments, "--json"])
    said = capsys.readouterr()
    assert said.err == ""
    return code, json.loads(said.out)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = main(["plan", *arguments])
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    return code, said.err


def test_a_run_that_does_not_fit_ends_with_4(capsys: pytest.CaptureFixture[str]) -> None:
    code, plan = planned(capsys, *TOTALS, *SHAPE, "--dest", ".")
    assert code == 4
    assert plan["payload_bytes"] == 5_034_413_604_864
    assert plan["fits"] is False
    assert plan["exact"] is False
    assert plan["seconds"] is None
    assert plan["available_bytes"] == 2_700_000_000_000 // 4096 * 4096
    assert plan["available_inodes"] == 900_000
    assert plan["reclaimable_bytes"] == 0
    assert plan["required_bytes"] == plan["peak_bytes"] + plan["reserve_bytes"]
    assert plan["required_bytes"] - plan["available_bytes"] == plan["missing_bytes"]
    assert plan["estimated_bytes"] <= plan["store_bytes"] < plan["peak_bytes"]
    assert plan["geometry"] == {"chunk_rows": 64, "shard_rows": 32_768}
    assert plan["files"] > plan["shards"] > plan["estimated_shards"] - 1
    assert "alternatives" not in plan


def test_a_run_that_fits_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    tokens = ["--tokens", "21033536", "--samples", "37312"]
    code, plan = planned(capsys, *tokens, *SHAPE, "--rate", "1000")
    assert code == 0
    assert plan["fits"] is True
    assert plan["payload_bytes"] == 1_206_147_088_384
    assert plan["seconds"] == 21_033.536


def test_people_see_sizes_both_ways_what_is_short_and_what_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", *TOTALS, *SHAPE, "--rate", "5000", "--what-if"]) == 4
    said = capsys.readouterr().out
    assert "payload    5.03 TB (4.58 TiB)" in said
    assert "at most 5.04 TB" in said
    assert "time       4 h 52 min" in said
    assert "It does not fit: 2.59 TB (2.36 TiB) short." in said
    assert "--reclaim" in said
    assert "2 of 4 layers" in said
    assert "fits if the estimate holds" in said


def test_what_if_lists_smaller_ways(capsys: pytest.CaptureFixture[str]) -> None:
    _, plan = planned(capsys, *TOTALS, *SHAPE, "--what-if")
    fitting = [other for other in plan["alternatives"] if other["fits"]]
    assert {other["layers"] for other in fitting} == {1, 2}
    assert all(o["estimated_bytes"] < plan["estimated_bytes"] for o in plan["alternatives"])
    assert {"change", "layers", "codec", "dtype", "store_bytes"} <= plan["alternatives"][0].keys()


def test_a_reclaimed_path_helps(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.write_bytes(b"x" * 100_000)
    _, plan = planned(
        capsys, *SMALL, "--dest", str(tmp_path), "--reclaim", str(old), "--reclaim", str(old)
    )
    assert plan["reclaimable_bytes"] == old.stat().st_blocks * 512


def test_too_few_inodes_do_not_fit(
    capsys: pytest.CaptureFixture[str], disk: SimpleNamespace
) -> None:
    disk.f_favail = 10
    code, plan = planned(capsys, *SMALL)
    assert code == 4
    assert plan["missing_inodes"] == plan["inodes"] - 10
    assert main(["plan", *SMALL]) == 4
    assert "inodes short" in capsys.readouterr().out


def test_no_inode_limit_is_null(capsys: pytest.CaptureFixture[str], disk: SimpleNamespace) -> None:
    disk.f_files = 0
    assert planned(capsys, *SMALL)[1]["available_inodes"] is None


def test_a_reserve_is_a_share_or_a_size(capsys: pytest.CaptureFixture[str]) -> None:
    assert planned(capsys, *SMALL, "--reserve", "0%")[1]["reserve_bytes"] == 0
    assert planned(capsys, *SMALL, "--reserve", "10GiB")[1]["reserve_bytes"] == 10 << 30
    assert planned(capsys, *SMALL, "--reserve", "3TB")[0] == 4


def test_a_codec_is_bounded_until_its_ratio_is_vouched_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    wide = ["--tokens", "60000000", "--samples", "30000", *SHAPE, "--codec", "blosc-zstd"]
    code, plan = planned(capsys, *wide)
    assert code == 4
    assert plan["fits_estimated"] is True
    code, plan = planned(capsys, *wide, "--ratio", "1.4")
    assert code == 0
    assert plan["peak_bytes"] < plan["store_bytes"]


def test_a_dataset_and_a_nested_config_are_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dataset, config = tmp_path / "samples.jsonl", tmp_path / "config.json"
    dataset.write_text("".join(json.dumps({"input_ids": [1] * n}) + "\n" for n in (5, 70, 9)))
    text = {"model_type": "k", "num_hidden_layers": 61, "hidden_size": 7168, "vocab_size": 9}
    config.write_text(json.dumps({"model_type": "outer", "dtype": "bfloat16", "text_config": text}))
    code = main(
        ["plan", str(dataset), "--model", str(config), "--layers", "3,31,59,final", "--json"]
    )
    plan = json.loads(capsys.readouterr().out)
    assert code == 0
    assert plan["exact"] is True
    assert plan["payload_bytes"] == 84 * 4 * 7168 * 2
    assert (plan["samples"], plan["shards"], plan["layers"]) == (3, 1, 4)


def test_a_plan_counts_the_keys_as_they_are(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    needed = []
    for key_bytes in (1, 4000):
        dataset = tmp_path / f"{key_bytes}.jsonl"
        samples = ({"id": f"{n}".rjust(key_bytes, "k"), "input_ids": [1]} for n in range(9))
        dataset.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
        assert main(["plan", str(dataset), *SHAPE, "--json"]) == 0
        needed.append(json.loads(capsys.readouterr().out))
    assert [plan["exact"] for plan in needed] == [True, True]
    # In the token file and in the manifest.
    assert needed[1]["store_bytes"] - needed[0]["store_bytes"] >= 2 * 9 * 3999 - 2 * 4096


def test_the_dtype_is_the_models_own_unless_given(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    facts = {"model_type": "k", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 9}
    numbers = ["--tokens", "10", "--samples", "1", "--num-layers", "1", "--model", str(config)]
    config.write_text(json.dumps(facts | {"torch_dtype": "float32"}))
    assert planned(capsys, *numbers)[1]["dtype"] == "float32"
    assert planned(capsys, *numbers, "--dtype", "float16")[1]["dtype"] == "float16"
    config.write_text(json.dumps(facts))
    code, line = refused(capsys, *numbers)
    assert code == 8
    assert "give --dtype" in line


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        [*SHAPE],
        ["--tokens", "5", *SHAPE],
        ["data.jsonl", *TOTALS, *SHAPE],
        ["--tokens", "5", "--samples", "6", *SHAPE],
        [*TOTALS, "--num-layers", "4"],
        [*TOTALS, "--hidden-size", "64"],
        [*TOTALS, *SHAPE, "--layers", "1,2"],
        [*TOTALS, *SHAPE, "--model", "config.json"],
        [*TOTALS, *SHAPE, "--ratio", "1.4"],
        [*TOTALS, *SHAPE, "--codec", "gzip"],
        [*TOTALS, *SHAPE, "--reserve", "much"],
        [*TOTALS, *SHAPE, "--rate", "0"],
        ["--tokens", "0", "--samples", "0", *SHAPE],
    ],
)
def test_missing_and_contradictory_options_are_wrong_usage(
    capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    code, line = refused(capsys, *arguments)
    assert code == 2
    assert line.startswith("hsstore: error: ")


def test_more_layers_than_a_model_has_are_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config = tmp_path / "config.json"
    config.write_text(
        '{"model_type": "k", "num_hidden_layers": 2, "hidden_size": 8, "vocab_size": 9,'
        ' "dtype": "float16"}'
    )
    wrong = [*TOTALS, "--model", str(config)]
    assert refused(capsys, *wrong, "--num-layers", "5")[0] == 2
    assert refused(capsys, *wrong, "--layers", "3")[0] == 8


@pytest.mark.parametrize("option", ["--reclaim", "--model"])
def test_a_path_that_does_not_exist_is_one_line(
    capsys: pytest.CaptureFixture[str], option: str, tmp_path: Path
) -> None:
    gone = str(tmp_path / "gone")
    shape = ["--num-layers", "4"] if option == "--model" else SHAPE
    code, line = refused(capsys, *TOTALS, *shape, option, gone)
    assert code == 8
    assert gone in line


def test_planning_loads_nothing_heavy() -> None:
    script = (
        "import sys\nfrom hsstore_cli.main import main\n"
        f"main(['plan', *{SMALL!r}, '--json'])\n"
        "assert not {'torch', 'zarr', 'numpy', 'transformers'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, env=os.environ
                   | {"PYTHONPATH": os.pathsep.join(sys.path)})  # fmt: skip
