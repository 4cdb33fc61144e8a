"""hsstore server-flags: the line that is printed, and what is refused by name."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest

from hsstore.model.capture import Layer
from hsstore.storage.create import create
from hsstore.testing.stores import CONFIG
from hsstore_cli.main import main


def store_of(
    root: Path,
    layers: Sequence[Layer],
    dtype: str = "bfloat16",
    revision: str | None = None,
    **config: object,
) -> str:
    model = root / "model" / "config.json"
    model.parent.mkdir()
    model.write_text(json.dumps(CONFIG | {"hidden_size": 8} | config))
    (root / "data.jsonl").write_text('{"input_ids": [1, 2]}\n')
    place = root / "a store"
    create(place, root / "data.jsonl", model, layers, dtype=dtype, revision=revision)
    return str(place)


def printed(capsys: pytest.CaptureFixture[str], *typed: str) -> list[str]:
    assert main(["server-flags", *typed]) == 0
    shown = capsys.readouterr()
    assert all(line.startswith("# ") for line in shown.err.splitlines())
    assert shown.out.count("\n") == 1
    return shlex.split(shown.out)


@pytest.mark.parametrize(
    ("release", "graph"),
    [
        ("0.5.12", "--disable-piecewise-cuda-graph"),
        ("0.5.17", "--disable-piecewise-cuda-graph"),
        ("0.5.20", "--disable-prefill-cuda-graph"),
        ("0.5.23", "--disable-prefill-cuda-graph"),
    ],
)
def test_a_spool_needs_its_environment_and_no_prefill_graph(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], release: str, graph: str
) -> None:
    store = store_of(tmp_path, (1, 5, "final"))
    options = ["--spool", "/mnt/my spool", "--model-path", "/models/x y", "--release", release]
    assert printed(capsys, store, *options) == [
        "HSSTORE_SPOOL=/mnt/my spool",
        "HSSTORE_LAYERS=1,5,final",
        *("python", "-m", "sglang.launch_server", "--model-path", "/models/x y"),
        *("--dtype", "bfloat16", "--device", "cuda", graph),
    ]


def test_on_a_cpu_a_spool_needs_no_flag(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path, (1, "final"), "float32")
    monkeypatch.chdir(tmp_path)
    assert printed(capsys, store, "--spool", "s", "--model-path", "m/x", "--device", "cpu") == [
        "SGLANG_USE_CPU_ENGINE=1",
        f"HSSTORE_SPOOL={tmp_path}/s",
        "HSSTORE_LAYERS=1,final",
        *("python", "-m", "sglang.launch_server", "--model-path", "m/x", "--dtype", "float32"),
        *("--device", "cpu", "--attention-backend", "torch_native"),
    ]


def test_json_gives_the_final_state(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of(tmp_path, ("final",), revision="abc", _name_or_path="org/model")
    assert printed(capsys, store, "--release", "0.5.17") == [
        *("python", "-m", "sglang.launch_server", "--model-path", "org/model"),
        *("--revision", "abc", "--dtype", "bfloat16", "--device", "cuda"),
        *("--enable-return-hidden-states", "--chunked-prefill-size", "-1"),
    ]


@pytest.mark.parametrize(
    ("model_type", "convention"), [("llama", "DFLASH"), ("qwen2", "EAGLE3"), ("gpt_oss", "DFLASH")]
)
def test_json_gives_numbered_layers_in_ascending_order(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], model_type: str, convention: str
) -> None:
    store = store_of(tmp_path, (6, 2, 4), model_type=model_type)
    flags = printed(capsys, store, "--model-path", "/m")
    assert flags[flags.index("--enable-return-hidden-states") :] == [
        *("--enable-return-hidden-states", "--chunked-prefill-size", "-1"),
        *("--enable-return-aux-hidden-states", "--speculative-algorithm", convention),
        *("--return-aux-hidden-state-layer-ids", "1", "3", "5"),
    ]


def test_json_output_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = store_of(tmp_path, ("final",))
    assert main(["server-flags", store, "--model-path", "/m", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shlex.split(shown["command"]) == ["python", *shown["arguments"]]
    assert shown["environment"] == {}


@pytest.mark.parametrize(
    ("layers", "options", "told"),
    [
        ((1, "final"), [], "gives either 'final' or numbered layers"),
        (("final:pre",), ["--spool", "s"], "no 'final:pre'"),
        (("final",), ["--release", "0.5.12"], "0.5.12 can return another request's rows by JSON"),
        (("final",), ["--release", "0.5.21"], "0.5.21 was never run with this hsstore; use one of"),
        ((1, 2), ["--release", "0.5.22"], "0.5.22 gives no numbered layers by JSON"),
        ((0, 2), [], "SGLang cannot capture layer 0 of 8 blocks"),
        ((0, "final"), ["--spool", "s"], "SGLang cannot capture layer 0 of 8 blocks"),
    ],
)
def test_what_sglang_cannot_give_is_refused(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    layers: tuple[Layer, ...],
    options: list[str],
    told: str,
) -> None:
    store = store_of(tmp_path, layers)
    assert main(["server-flags", store, "--model-path", "/m", *options]) == 8
    shown = capsys.readouterr()
    assert told in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_an_unknown_family_is_refused_unless_only_the_final_state_is_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_of(tmp_path, (1, 2), model_type="gpt2")
    for options in ([], ["--spool", "s"]):
        assert main(["server-flags", store, "--model-path", "/m", *options]) == 8
        assert "ids of model type 'gpt2' in SGLang are not known" in capsys.readouterr().err


def test_the_config_at_the_model_path_names_the_architecture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_of(tmp_path, (1, 2), architectures=["StrangeForCausalLM"])
    model = str(tmp_path / "model")
    assert main(["server-flags", store, "--model-path", model]) == 8
    assert "the layer ids of StrangeForCausalLM in SGLang are not known" in capsys.readouterr().err
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(CONFIG | {"hidden_size": 16}))
    assert main(["server-flags", store, "--model-path", str(other)]) == 8
    assert "a model other than the store's: config is" in capsys.readouterr().err


def test_a_model_without_a_hub_id_needs_a_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["server-flags", store_of(tmp_path, ("final",))]) == 8
    assert "knows its model as 'model', which is no path; give --model-path" in (
        capsys.readouterr().err
    )
