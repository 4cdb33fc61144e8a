import json
from pathlib import Path

import pytest

from hsstore.storage.store import Store
from hsstore_cli.main import main

CONFIG = {"hidden_size": 8, "num_hidden_layers": 4, "vocab_size": 50, "torch_dtype": "float16"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "data.jsonl").write_text('{"input_ids": [1, 2, 3]}\n{"input_ids": [4]}\n')
    (tmp_path / "more.jsonl").write_text('{"input_ids": [5, 6]}\n{"input_ids": [4]}\n')
    monkeypatch.chdir(tmp_path)
    command = ["create", "store", "--dataset", "data.jsonl", "--model", "config.json"]
    assert main([*command, "--layers", "1,final", "--chunk-rows", "4", "--shard-rows", "8"]) == 0
    return tmp_path


def typed(*more: str, dataset: str = "more.jsonl") -> list[str]:
    return ["extend", "store", "--dataset", dataset, *more]


def said(capfd: pytest.CaptureFixture[str]) -> list[str]:
    out, err = capfd.readouterr()
    assert not err
    return out.splitlines()


def test_it_says_what_was_added_and_what_comes_next(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert main(typed()) == 0
    assert said(capfd) == [
        (
            "samples with the token ids of another: 1, added all the same; --skip-duplicates "
            "leaves them out"
        ),
        "  more.jsonl:2: '3' equals '1' in the store",
        "store: grew by samples: 2, tokens: 3, shards: 1; 96 bytes of hidden states to come",
        "it has now samples: 4, tokens: 7, shards: 2",
        "fill it: hsstore extract store --source transformers:PATH",
    ]
    assert main(typed()) == 0
    assert said(capfd) == ["store: unchanged; it was extended by these samples before"]
    assert Store.open(folder / "store").plan.samples == 4


def test_duplicates_are_left_out_when_asked(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert main(typed("--skip-duplicates")) == 0
    assert said(capfd)[:2] == [
        "samples with the token ids of another: 1, left out",
        "  more.jsonl:2: equals '1' in the store",
    ]
    assert main(typed("--skip-duplicates", dataset="data.jsonl")) == 0
    assert said(capfd)[-1] == "store: unchanged; nothing of the dataset is new"
    assert Store.open(folder / "store").plan.samples == 3


def test_of_many_duplicates_a_few_are_shown(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (folder / "more.jsonl").write_text('{"input_ids": [7]}\n' * 8)
    capfd.readouterr()
    assert main(typed()) == 0
    lines = said(capfd)
    assert lines[1] == "  more.jsonl:2: '3' equals '2' on an earlier line"
    assert lines[6] == "  and 2 more; --json lists all"


def test_json_is_one_object(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert main(typed("--json", "--skip-duplicates")) == 0
    assert json.loads(capfd.readouterr().out) == {
        "store": "store",
        "generation": 1,
        "samples_added": 1,
        "tokens_added": 2,
        "shards_added": 1,
        "payload_bytes_added": 64,
        "duplicates_skipped": True,
        "duplicates": [{"place": "more.jsonl:2", "id": None, "equals": "1", "in_store": True}],
        "repeated": False,
        "finished": False,
        "samples": 3,
        "tokens": 6,
        "shards": 2,
    }
    assert Store.open(folder / "store").plan.samples == 3


@pytest.mark.parametrize(
    ("arguments", "content", "code", "words"),
    [
        (["extend"], "", 2, "Missing argument 'STORE'"),
        (["extend", "store"], "", 2, "Missing option '--dataset'"),
        (["extend", "none", "--dataset", "more.jsonl"], "", 8, "none: no hsstore store here"),
        (typed(dataset="none.jsonl"), "", 8, "none.jsonl: no such dataset"),
        (typed(), "", 8, "more.jsonl: the dataset is empty"),
        (
            typed(),
            '{"input_ids": [50]}',
            8,
            "more.jsonl:1: input_ids[0] is 50, outside the model's",
        ),
        (typed(), '{"id": 1, "input_ids": [9]}', 8, "more.jsonl:1: id '1' is taken by sample 1"),
        (typed(), '{"input_ids": [1,1,1,1,1,1,1,1,1]}', 8, "a sample of 9 tokens does not fit"),
    ],
)
def test_wrong_input_is_one_line_and_changes_nothing(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    content: str,
    code: int,
    words: str,
) -> None:
    (folder / "more.jsonl").write_text(content)
    before = sorted(folder.rglob("*"))
    capfd.readouterr()
    assert main(arguments) == code
    out, err = capfd.readouterr()
    assert not out
    assert words in err
    assert err.count("\n") == 1
    assert sorted(folder.rglob("*")) == before
