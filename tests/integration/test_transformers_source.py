"""The transformers source against plain transformers calls on small seeded models."""

import importlib
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from hsstore.errors import IdentityMismatch, MalformedInput, SourceUnavailable
from hsstore.extraction.layer_taps import LayerTaps
from hsstore.extraction.transformers_model import load_decoder, quiet
from hsstore.extraction.transformers_source import TransformersSource
from hsstore.model.capture import Capture, Layer
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Failed, Origin, Request
from hsstore.storage.model_files import read_model

transformers: Any = importlib.import_module("transformers")
BLOCKS = 3
VOCABULARY = 97
LAYERS: tuple[Layer, ...] = ("final", 2, 0, "final:pre", 1)
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
FAMILIES: dict[str, tuple[str, dict[str, Any], str]] = {
    "llama": ("LlamaConfig", SIZES, "model.norm"),
    "qwen2": ("Qwen2Config", {k: v for k, v in SIZES.items() if k != "head_dim"}, "model.norm"),
    "qwen3": ("Qwen3Config", SIZES, "model.norm"),
    "mistral": ("MistralConfig", SIZES | {"sliding_window": 5}, "model.norm"),
    "gemma2": ("Gemma2Config", SIZES | {"sliding_window": 5}, "model.norm"),
    "gemma3": ("Gemma3TextConfig", SIZES | {"sliding_window": 5}, "model.norm"),
    "mamba": ("MambaConfig", SIZES, "backbone.norm_f"),
    "gpt2": (
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": BLOCKS, "n_head": 4, "n_positions": 64},
        "transformer.ln_f",
    ),
}


def save_model(folder: Path, family: str = "llama", *, seed: int = 0, **changes: object) -> Path:
    """A seeded model of few weights, with biases and norms that are neither 0 nor 1."""
    kind, sizes, _ = FAMILIES[family]
    with quiet(transformers), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = getattr(transformers, kind)(**(sizes | changes))
        model = transformers.AutoModelForCausalLM.from_config(config)
        for parameter in model.parameters():
            if parameter.ndim == 1:
                torch.nn.init.uniform_(parameter, 0.3, 1.7)
        model.save_pretrained(folder)
    return folder


def identity_of(
    path: Path, layers: tuple[Layer, ...] = LAYERS, dtype: str = "float32"
) -> StoreIdentity:
    return StoreIdentity(
        uuid="0" * 32,
        created="2026-01-01T00:00:00Z",
        model=read_model(path),
        capture=Capture(layers, dtype),
        chunk_rows=16,
        shard_rows=64,
        codec="none",
    )


def requests(*lengths: int) -> list[Request]:
    random = np.random.default_rng(5)
    return [
        Request(n, f"s{n}", random.integers(0, VOCABULARY, length, dtype=np.int32))
        for n, length in enumerate(lengths)
    ]


def extracted(source: TransformersSource, asked: list[Request]) -> list[NDArray[Any]]:
    found = []
    for request, answer in zip(asked, source.states(asked), strict=True):
        assert isinstance(answer, Extracted), answer
        assert answer.sample == request.sample
        assert answer.states.flags.c_contiguous
        found.append(answer.states.copy())
    return found


def plain_states(model: nn.Module, norm: str, ids: NDArray[np.int32]) -> dict[Layer, Tensor]:
    """What transformers returns by itself, and what went into the final norm."""
    inputs: list[Tensor] = []
    hook = model.get_submodule(norm).register_forward_pre_hook(
        lambda _, args: inputs.append(args[0])
    )
    with torch.inference_mode():
        states = model(torch.from_numpy(ids)[None].long(), output_hidden_states=True).hidden_states
    hook.remove()
    assert len(states) == BLOCKS + 1
    return {**dict(enumerate(states)), "final": states[-1], "final:pre": inputs[0]}


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("llama"))


@pytest.fixture
def source(llama: Path) -> Iterator[TransformersSource]:
    opened = TransformersSource(llama, identity_of(llama))
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("family", "dtype"),
    [(family, "float32") for family in FAMILIES if family != "mamba"]
    + [("llama", "bfloat16"), ("llama", "float16"), ("gpt2", "bfloat16"), ("gemma3", "bfloat16")],
)
def test_every_layer_is_transformers_own_bit_for_bit(
    tmp_path: Path, family: str, dtype: str
) -> None:
    save_model(tmp_path, family)
    with quiet(transformers):
        plain = transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path, dtype=getattr(torch, dtype)
        )
    source = TransformersSource(tmp_path, identity_of(tmp_path, dtype=dtype))
    asked = requests(1, 9, 33)
    for request, states in zip(asked, extracted(source, asked), strict=True):
        assert states.shape == (len(request.input_ids), len(LAYERS), 32)
        expected = plain_states(plain, FAMILIES[family][2], request.input_ids)
        for column, layer in enumerate(LAYERS):
            want = expected[layer][0].contiguous().view(torch.uint8).numpy().tobytes()
            assert states[:, column].tobytes() == want, f"layer {layer}"
    assert states.dtype == ("uint16" if dtype == "bfloat16" else dtype)


def test_final_is_the_norm_of_final_pre(llama: Path, source: TransformersSource) -> None:
    states = torch.from_numpy(extracted(source, requests(20))[0])
    norm = load_decoder(llama, "float32", "cpu").get_submodule("norm")
    with torch.inference_mode():
        assert torch.equal(norm(states[None, :, LAYERS.index("final:pre")])[0], states[:, 0])
    assert not torch.equal(states[:, LAYERS.index("final:pre")], states[:, 0])


def test_a_batch_gives_the_same_rows_within_rounding(llama: Path) -> None:
    asked = requests(7, 12, 3, 30, 12)
    single = TransformersSource(llama, identity_of(llama))
    batched = TransformersSource(llama, identity_of(llama), batch_tokens=36)
    expected, found = extracted(single, asked), extracted(batched, asked)
    assert (single.forwards, batched.forwards) == (5, 3)  # 7+12+3 padded to 36; 30; 12
    assert single.tokens_computed == batched.tokens_computed == 64
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def test_answers_reuse_one_array(source: TransformersSource) -> None:
    answers = source.states(requests(40, 20, 40))
    addresses = {a.states.ctypes.data for a in answers if isinstance(a, Extracted)}
    assert len(addresses) == 1


def test_origin_names_model_and_engine(llama: Path) -> None:
    identity = identity_of(llama)
    origin = TransformersSource(llama, identity, batch_tokens=64).origin()
    assert origin.match["weights"] == identity.model.weights_digest
    assert origin.match["layers"] == "final,2,0,final:pre,1"
    assert origin.recorded["engine_version"] == transformers.__version__
    assert origin.recorded["batch_tokens"] == "64"
    assert Origin.fields()(origin.to_document(), "origin") == []


def test_loading_says_nothing(llama: Path, capfd: pytest.CaptureFixture[str]) -> None:
    extracted(TransformersSource(llama, identity_of(llama)), requests(4))
    assert capfd.readouterr() == ("", "")


# -- what cannot be computed -------------------------------------------------------------------


def test_unusable_samples_fail_without_a_forward_pass(source: TransformersSource) -> None:
    ids = np.arange(3, dtype=np.int32)
    asked = [
        Request(0, "above", ids + VOCABULARY - 2),
        Request(1, "below", ids - 1),
        Request(2, "long", np.zeros(65, np.int32)),
    ]
    answers = list(source.states(asked))
    assert answers == [
        Failed(0, "token-out-of-range", "token 2 is 97, outside 0..96"),
        Failed(1, "token-out-of-range", "token 0 is -1, outside 0..96"),
        Failed(2, "too-long", "65 tokens, and the model takes 64"),
    ]
    assert source.forwards == 0


def test_answers_keep_the_order_of_the_requests(llama: Path) -> None:
    batched = TransformersSource(llama, identity_of(llama), batch_tokens=64)
    asked = requests(5, 6, 65, 7)
    answers = list(batched.states(asked))
    assert [a.sample for a in answers] == [0, 1, 2, 3]
    assert [type(a) for a in answers] == [Extracted, Extracted, Failed, Extracted]


def fail_on(monkeypatch: pytest.MonkeyPatch, token: int) -> None:
    """Let every forward pass that sees a token fail as an engine would."""
    run = LayerTaps.run

    def failing(self: LayerTaps, input_ids: Tensor, mask: Tensor | None, out: list[Tensor]) -> None:
        if (input_ids == token).any():
            raise RuntimeError("kernel failed\nmore words")
        run(self, input_ids, mask, out)

    monkeypatch.setattr(LayerTaps, "run", failing)


def test_a_failed_batch_is_retried_sample_by_sample(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = TransformersSource(llama, identity_of(llama), batch_tokens=64)
    fail_on(monkeypatch, token=50)
    asked = [
        Request(n, str(n), np.array([1, 2, token], np.int32)) for n, token in enumerate([3, 50, 4])
    ]
    answers = list(source.states(asked))
    assert answers[1] == Failed(
        1,
        "forward-error",
        "kernel failed",
        ("in a batch of 3 samples: kernel failed", "alone: kernel failed"),
    )
    assert isinstance(answers[0], Extracted)
    assert isinstance(answers[2], Extracted)
    assert (source.forwards, source.tokens_computed) == (4, 6)


def test_an_engine_that_stopped_is_no_failed_sample(
    source: TransformersSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on(monkeypatch, token=int(source._prompt()[0, 0]))
    request = Request(0, "a", source._prompt()[0].numpy().astype(np.int32))
    with pytest.raises(SourceUnavailable, match="the model stopped computing: kernel failed"):
        list(source.states([request]))


# -- models that are refused -------------------------------------------------------------------


@pytest.mark.parametrize("changes", [{"seed": 1}, {"rms_norm_eps": 1e-3}])
def test_another_model_is_refused(tmp_path: Path, llama: Path, changes: dict[str, Any]) -> None:
    save_model(tmp_path, **changes)
    with pytest.raises(
        IdentityMismatch, match=r"a model other than the store's: .* is '"
    ) as caught:
        TransformersSource(tmp_path, identity_of(llama))
    assert llama.name in str(caught.value)


def test_the_last_block_by_number_is_refused(llama: Path) -> None:
    with pytest.raises(SourceUnavailable, match="layer 3 of a 3-block model"):
        TransformersSource(llama, identity_of(llama, layers=(1, BLOCKS)))


def test_a_model_of_another_depth_is_refused(llama: Path) -> None:
    identity = identity_of(llama)
    deeper = replace(identity, model=replace(identity.model, num_layers=BLOCKS + 1))
    with pytest.raises(IdentityMismatch, match="3 blocks, not 4"):
        TransformersSource(llama, deeper)


def test_missing_weights_are_refused(tmp_path: Path) -> None:
    save_model(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(SourceUnavailable, match=r"1 missing.*layers\.1\.mlp\.up_proj\.weight"):
        load_decoder(tmp_path, "float32", "cpu")


def test_a_model_without_a_final_norm_serves_numbered_layers_only(tmp_path: Path) -> None:
    sizes = {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": BLOCKS, "n_head": 4}
    with quiet(transformers):
        config = transformers.OpenAIGPTConfig(**sizes, n_positions=64)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert extracted(TransformersSource(tmp_path, identity_of(tmp_path, (1, 2))), requests(5))
    with pytest.raises(SourceUnavailable, match="0 modules could be the model's final norm"):
        TransformersSource(tmp_path, identity_of(tmp_path, (1, "final")))


def test_a_model_that_counts_its_layers_otherwise_is_refused(tmp_path: Path) -> None:
    """Mamba's hidden_states begin after the first block: its numbers would be one off."""
    save_model(tmp_path, "mamba")
    with pytest.raises(SourceUnavailable, match="0 lists of modules could be the model's blocks"):
        TransformersSource(tmp_path, identity_of(tmp_path, (1, 2)))


def test_a_store_made_from_a_bare_config_takes_any_weights(llama: Path) -> None:
    identity = replace(identity_of(llama), model=read_model(llama / "config.json"))
    origin = TransformersSource(llama / "config.json", identity).origin()
    assert identity.model.weights_digest is None
    assert origin.match["weights"] == read_model(llama).weights_digest


def test_padding_is_refused_where_it_changes_positions(tmp_path: Path) -> None:
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    save_model(tmp_path, rope_parameters=rope)
    assert TransformersSource(tmp_path, identity_of(tmp_path)).forwards == 0
    with pytest.raises(SourceUnavailable, match="leave out --batch-tokens"):
        TransformersSource(tmp_path, identity_of(tmp_path), batch_tokens=64)


def test_a_torn_weights_file_is_one_clear_line(tmp_path: Path) -> None:
    save_model(tmp_path)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(SourceUnavailable, match="transformers cannot load this model") as caught:
        TransformersSource(tmp_path, identity_of(tmp_path))
    assert "\n" not in str(caught.value)


def test_no_model_is_one_clear_line(tmp_path: Path, llama: Path) -> None:
    with pytest.raises(MalformedInput):
        TransformersSource(tmp_path / "nothing", identity_of(llama))


def test_without_transformers_the_remedy_is_told(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = identity_of(llama)
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SourceUnavailable, match=r"pip install 'hsstore\[transformers\]'"):
        TransformersSource(llama, identity)


class Run:
    """Unpickled carelessly, it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_pickle_beside_a_model_runs_nothing(tmp_path: Path) -> None:
    save_model(tmp_path)
    identity = identity_of(tmp_path)
    identity = replace(identity, model=replace(identity.model, weights_digest=None))
    (tmp_path / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Run(tmp_path / "ran")}, tmp_path / "pytorch_model.bin")
    with pytest.raises(SourceUnavailable, match="a pickle with more in it than tensors"):
        TransformersSource(tmp_path, identity)
    assert not (tmp_path / "ran").exists()


def test_code_in_a_model_folder_is_neither_run_nor_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "unheard-of", "auto_map": {"AutoConfig": "own.OwnConfig"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()")
    asked: list[object] = []

    def agree(*words: object) -> str:
        asked.append(words)
        return "y"

    monkeypatch.setattr("builtins.input", agree)
    with pytest.raises(SourceUnavailable, match="cannot load"):
        TransformersSource(tmp_path, identity_of(tmp_path))
    assert asked == []
    assert not (tmp_path / "ran").exists()
