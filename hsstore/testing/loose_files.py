"""Small trees of loose sample files, as SpecForge and vLLM write them, from a seed."""

import gzip
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

HIDDEN = 64
VOCABULARY = 1000
FOLDER_ROWS = 2000

Saver = Callable[[Mapping[str, Any], Path], None]


def row_of(sample: int) -> dict[str, Any]:
    """A row of the dataset: token ids and loss mask, of 40 to 89 tokens."""
    drawn = np.random.default_rng(sample)
    tokens = 40 + sample * 7 % 50
    ids = drawn.integers(1, VOCABULARY, tokens).tolist()
    return {"input_ids": ids, "loss_mask": [0, *[1] * (tokens - 1)]}


def dataset(path: Path, samples: int) -> Path:
    """The dataset of a tree, as JSON lines without ids."""
    path.write_text("".join(json.dumps(row_of(n)) + "\n" for n in range(samples)))
    return path


def specforge_item(sample: int) -> dict[str, Any]:
    """What SpecForge saves of a sample: three auxiliary layers, and the last state by itself."""
    row = row_of(sample)
    tokens = len(row["input_ids"])
    states = torch.from_numpy(
        np.random.default_rng(sample).standard_normal((1, tokens, 4 * HIDDEN), np.float32)
    ).to(torch.bfloat16)
    return {
        "input_ids": torch.tensor(row["input_ids"]),
        "loss_mask": torch.tensor(row["loss_mask"]),
        "hidden_state": states[..., 3 * HIDDEN :].contiguous(),
        "aux_hidden_state": states[..., : 3 * HIDDEN].contiguous(),
    }


def speculators_item(sample: int) -> dict[str, Any]:
    """What vLLM saves of a sample: all layers side by side."""
    item = specforge_item(sample)
    tokens = len(item["input_ids"])
    states = torch.cat([item["aux_hidden_state"], item["hidden_state"]], dim=-1)
    return {"hidden_states": states.reshape(tokens, 4, HIDDEN), "token_ids": item["input_ids"]}


def as_zip(item: Mapping[str, Any], path: Path) -> None:
    """The container of torch.save: a zip, each record with a CRC."""
    torch.save(dict(item), path)


def as_gzip(item: Mapping[str, Any], path: Path) -> None:
    """The same within gzip."""
    whole = io.BytesIO()
    torch.save(dict(item), whole)
    path.write_bytes(gzip.compress(whole.getvalue(), 1))


def as_legacy(item: Mapping[str, Any], path: Path) -> None:
    """The container of the older torch.save: no checksum."""
    torch.save(dict(item), path, _use_new_zipfile_serialization=False)


def as_safetensors(item: Mapping[str, Any], path: Path) -> None:
    """The container of safetensors: no checksum."""
    from safetensors.torch import save_file  # noqa: PLC0415 - an extra

    save_file(dict(item), path)


def item_for(suffix: str) -> Callable[[int], dict[str, Any]]:
    """What a tree of files of that suffix holds of a sample."""
    return speculators_item if suffix == ".safetensors" else specforge_item


def path_of(root: Path, sample: int, suffix: str) -> Path:
    """Where a sample lies: ``rows_0-2000/data_7.ckpt``, ``hidden_states/hs_7.safetensors``."""
    if suffix == ".safetensors":
        return root / "hidden_states" / f"hs_{sample}{suffix}"
    begin = sample // FOLDER_ROWS * FOLDER_ROWS
    return root / f"rows_{begin}-{begin + FOLDER_ROWS}" / f"data_{sample}{suffix}"


def tree(root: Path, samples: int, save: Saver = as_zip, suffix: str = ".ckpt") -> Path:
    """A tree as SpecForge writes it, or as vLLM where the suffix is ``.safetensors``."""
    item = item_for(suffix)
    for sample in range(samples):
        path = path_of(root, sample, suffix)
        path.parent.mkdir(parents=True, exist_ok=True)
        save(item(sample), path)
    return root
