"""Which model families a release captures right: ``families.py RELEASE [MODEL_TYPE ...]``.

Serves a tiny random model of each family of hsstore/capture/layer_ids.py that can be built here,
with the plugin, compares every row with transformers, and prints one line a family.
"""

import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from hsstore.testing.reference import Reference
from hsstore.testing.sglang_server import SGLangServer, install_plugin
from hsstore.testing.spool_probe import GATE, Probe, worst_error

LAYERS = (1, 2, 3, "final")
SIZES: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "initializer_range": 0.08,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
MOE: Mapping[str, Any] = {
    "moe_intermediate_size": 64,
    "num_experts": 4,
    "n_routed_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
}
MLA: Mapping[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "llama": SIZES,
    "mistral": {**SIZES, "sliding_window": None},
    "phi3": SIZES,
    "qwen2": SIZES,
    "qwen3": SIZES,
    "qwen2_moe": {**SIZES, **MOE, "shared_expert_intermediate_size": 64},
    "qwen3_moe": {**SIZES, **MOE},
    "glm4_moe": {**SIZES, **MOE, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1},
    "gpt_oss": {**SIZES, **MOE, "sliding_window": 4096},
    "minimax_m2": {**SIZES, **MOE},
    "deepseek_v2": {**SIZES, **MOE, **MLA, "head_dim": 16},
    "deepseek_v3": {**SIZES, **MOE, **MLA, "head_dim": 16},
}


def build(model_type: str, folder: Path) -> None:
    """Write a tiny random model of a family, its norms away from 1."""
    config = transformers.AutoConfig.for_model(model_type, **FAMILIES[model_type])
    torch.manual_seed(0)
    auto: Any = transformers.AutoModelForCausalLM
    model = auto.from_config(config, dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(folder)


def outcome(release: str, model_type: str, folder: Path, plugin: Path) -> str:
    """What came of one family, in one line."""
    model, spool = folder / "model", folder / "spool"
    spool.mkdir(parents=True)
    build(model_type, model)
    env = {"HSSTORE_SPOOL": str(spool), "HSSTORE_LAYERS": ",".join(map(str, LAYERS))}
    prompts = [[(17 * at * at + 5 * n) % 256 for at in range(1, n)] for n in (7, 60, 300)]
    reference = Reference(model)
    with SGLangServer(release, model, folder / "log", env=env, plugin=plugin) as server:
        probe = Probe(server.url, spool)
        rows = [probe.rows(prompt) for prompt in prompts]
        architecture = probe.hellos()[0]["architecture"]
    worst = [
        max(
            worst_error(got[:, i : i + 1], ref[:, i : i + 1])
            for got, ref in pairs(rows, prompts, reference)
        )
        for i in range(len(LAYERS))
    ]
    verdict = "equal" if max(worst) <= GATE else "DIFFERENT"
    return f"{architecture} {verdict}: " + ", ".join(f"{error:.1e}" for error in worst)


def pairs(
    rows: list[torch.Tensor], prompts: list[list[int]], reference: Reference
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What the server gave and what transformers says, prompt by prompt."""
    return [(got, reference.rows(ids, LAYERS)) for got, ids in zip(rows, prompts, strict=True)]


def main(release: str, *wanted: str) -> None:
    """Print one line a family."""
    with tempfile.TemporaryDirectory() as folder:
        plugin = install_plugin(release, Path(folder) / "plugin")
        for model_type in wanted or FAMILIES:
            try:
                line = outcome(release, model_type, Path(folder) / model_type, plugin)
            except Exception as error:  # noqa: BLE001 - one family's failure is its line
                line = (
                    f"not seen: {type(error).__name__}: {str(error).strip().splitlines()[-1][:200]}"
                )
            print(f"{release} {model_type}: {line}", flush=True)  # noqa: T201 - its purpose


if __name__ == "__main__":
    main(*sys.argv[1:])
