"""Makes a small target, and the trees of its states, with the trainers' own libraries.

usage: their_trees.py FOLDER

FOLDER/target is a random Llama, dataset.jsonl its prompts, specforge/ and speculators/ the trees as
their own tools leave them, states.npz the same states as bits of bfloat16. hsstore takes no part.
"""

import json
import sys
from pathlib import Path

import datasets
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

SAMPLES, SHORTEST, LONGEST, VOCABULARY = 24, 9, 40, 128
AUX = (2, 4, 5)  # what both trainers take by themselves from eight blocks
FILES_A_FOLDER = 2000


def target(folder: Path) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=64, intermediate_size=128, num_hidden_layers=8, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=VOCABULARY, max_position_embeddings=256,
        tie_word_embeddings=False, initializer_range=0.2, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).bfloat16()
    model.eval()  # type: ignore[no-untyped-call]
    with torch.no_grad():
        model.model.norm.weight.uniform_(0.5, 1.5)
    # Several files, since SpecForge looks for their index.
    model.save_pretrained(folder, max_shard_size="100KB")
    return model


def prompts() -> list[tuple[list[int], list[int]]]:
    random = np.random.default_rng(0)
    lengths = random.integers(SHORTEST, LONGEST, SAMPLES, endpoint=True)
    return [
        (random.integers(1, VOCABULARY, n).tolist(), [0] * int(n // 4) + [1] * int(n - n // 4))
        for n in lengths
    ]


@torch.no_grad()
def states(model: LlamaForCausalLM, ids: list[int]) -> torch.Tensor:
    """[tokens, 5, hidden]: the aux layers, the last state before the final norm, and after it."""
    before: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, inputs: before.append(inputs[0]))
    found = model.model(torch.tensor([ids]), output_hidden_states=True)
    hook.remove()
    rows = [found.hidden_states[layer] for layer in AUX]
    return torch.stack([*rows, before[0], found.last_hidden_state], dim=2)[0]


def save_specforge(
    root: Path, sample: int, ids: list[int], mask: list[int], rows: torch.Tensor
) -> None:
    first = sample // FILES_A_FOLDER * FILES_A_FOLDER
    folder = root / f"rows_{first}-{first + FILES_A_FOLDER}"
    folder.mkdir(parents=True, exist_ok=True)
    record = {
        "input_ids": torch.tensor(ids),
        "loss_mask": torch.tensor(mask),
        "hidden_state": rows[None, :, -1].clone(),
        "aux_hidden_state": rows[None, :, :3].flatten(2).clone(),
    }
    torch.save(record, folder / f"data_{sample}.ckpt")


def main(folder: Path) -> None:
    model, kept = target(folder / "target"), {}
    lines = prompts()
    columns = {
        "input_ids": [ids for ids, _ in lines],
        "loss_mask": [mask for _, mask in lines],
        "seq_len": [len(ids) for ids, _ in lines],
    }
    prepared = datasets.Dataset.from_dict(columns)
    prepared.set_format(type="torch")
    prepared.save_to_disk(folder / "speculators")
    (folder / "speculators/hidden_states").mkdir()
    with (folder / "dataset.jsonl").open("w") as dataset:
        for sample, (ids, mask) in enumerate(lines):
            rows = states(model, ids)
            save_specforge(folder / "specforge", sample, ids, mask, rows)
            record = {"hidden_states": rows[:, :4].clone(), "token_ids": torch.tensor(ids)}
            save_file(record, folder / f"speculators/hidden_states/hs_{sample}.safetensors")
            kept[str(sample)] = rows.view(torch.uint16).numpy()
            line = {"id": f"prompt-{sample}", "input_ids": ids, "loss_mask": mask}
            dataset.write(json.dumps(line) + "\n")
    np.savez(folder / "states.npz", allow_pickle=False, **kept)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
