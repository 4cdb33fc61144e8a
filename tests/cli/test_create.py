import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from hsstore.storage.store import Store
from hsstore_cli.main import main

CONFIG = {"hidden_size": 8, "num_hidden_layers": 4, "vocab_size": 50, "torch_dtype": "float16"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(CONFIG))
    (tmp_path / "data.jsonl").write_text('{"input_ids": [1, 2, 3]}\n{"input_ids": [4]}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


def typed(*more: str, layers: str = "1,final") -> list[str]:
    options = ["--dataset", "data.jsonl", "--model", "model", "--layers", layers]
    return ["create", "store", *options, *more]


def test_it_says_what_was_made_and_what_comes_next(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(typed()) == 0
    out, err = capfd.readouterr()
    assert (
        "store: an empty store (samples: 2, tokens: 4, shards: 1 of 32768 rows, 256 a chunk)" in out
    )
    assert "model, layers 1,final as float16: 128 bytes of hidden states, codec none" in out
    assert out.endswith("fill it: hsstore extract store --source transformers:model\n")
    assert not err
    assert sorted(path.name for path in folder.iterdir()) == ["data.jsonl", "model", "store"]


def test_json_is_one_object(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    options = ["--dtype", "float32", "--codec", "blosc-zstd", "--revision", "r1", "--json"]
    assert main(typed(*options, "--chunk-rows", "4", "--shard-rows", "8")) == 0
    out, _ = capfd.readouterr()
    store = Store.open(folder / "store")
    assert json.loads(out) == {
        "store": "store",
        "uuid": store.identity.uuid,
        "model": "model",
        "layers": [1, "final"],
        "dtype": "float32",
        "codec": "blosc-zstd",
        "samples": 2,
        "tokens": 4,
        "shards": 1,
        "chunk_rows": 4,
        "shard_rows": 8,
        "payload_bytes": 4 * 2 * 8 * 4,
    }
    assert store.identity.model.revision == "r1"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["create"], 2, "Missing argument 'STORE'"),
        (typed("--dtype", "int8"), 2, "'int8' is not one of"),
        (typed("--chunk-rows", "0"), 2, "--chunk-rows"),
        (typed(layers="4"), 8, "say 'final' (after the final norm)"),
        (typed(layers="1,1"), 8, "listed twice"),
        (typed("--shard-rows", "1", "--chunk-rows", "1"), 8, "the longest sample has 3 tokens"),
        (typed("--layer-convention", "sglang"), 8, "not known"),
        (typed("--dataset", "none.jsonl"), 8, "none.jsonl: no such dataset"),
        (typed("--model", "none"), 8, "none: no such model"),
        (typed("--dataset", "model/config.json"), 8, "model/config.json:1: input_ids is missing"),
        (["create", "data.jsonl", *typed()[2:]], 8, "data.jsonl: something is there already"),
    ],
)
def test_wrong_input_is_one_line_and_leaves_nothing(
    folder: Path,
    capfd: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    words: str,
) -> None:
    assert main(arguments) == code
    out, err = capfd.readouterr()
    assert not out
    assert words in err
    assert err.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["data.jsonl", "model"]


def test_a_full_disk_is_one_line_and_leaves_nothing(folder: Path) -> None:
    # A limit on file sizes is refused by the system as a full disk is; no root needed.
    ids = json.dumps(list(range(50)) * 200)
    (folder / "data.jsonl").write_text(f'{{"input_ids": {ids}}}\n' * 10)
    ended = subprocess.run(
        [sys.executable, "-m", "hsstore_cli", *typed()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 8
    assert "File too large; raise the limit of file sizes (ulimit -f)" in ended.stderr
    assert ended.stderr.count("\n") == 1
    assert sorted(path.name for path in folder.iterdir()) == ["data.jsonl", "model"]


def test_a_pipe_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(folder / "pipe")
    assert main(typed("--dataset", "pipe")) == 8
    assert "pipe: the dataset is not a regular file" in capfd.readouterr().err


def test_create_imports_neither_torch_nor_zarr(folder: Path) -> None:
    program = (
        f"import sys; from hsstore_cli.main import main; assert main({typed()!r}) == 0;"
        "sys.exit(sorted({'torch', 'zarr', 'transformers'} & set(sys.modules)) or None)"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, cwd=folder, check=False
    )
    assert ended.returncode == 0
