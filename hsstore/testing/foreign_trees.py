"""Trees of hidden states as SpecForge, speculators and ModelOpt write them, of drawn samples."""

import gzip
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

HIDDEN = 16
BLOCKS = 4
VOCABULARY = 1000
LAYERS = 4
ROWS_A_FOLDER = 2000
PAD = 7


@dataclass(frozen=True, eq=False)
class Drawn:
    """A sample: token ids [n] int64, loss mask [n] int64, states [n, layers, hidden]."""

    ids: Tensor
    mask: Tensor
    states: Tensor

    def bits(self) -> NDArray[np.uint16]:
        """The states' bits as a store of bfloat16 holds them."""
        return self.states.view(torch.int16).numpy().view(np.uint16)


def drawn(number: int, tokens: int, *, dtype: torch.dtype = torch.bfloat16) -> Drawn:
    """The sample of that number: the same whenever it is asked for."""
    chance = torch.Generator().manual_seed(number)
    ids = torch.randint(8, VOCABULARY, (tokens,), generator=chance)
    states = torch.randn(tokens, LAYERS, HIDDEN, generator=chance)
    mask = torch.ones(tokens, dtype=torch.int64)
    mask[0] = 0
    return Drawn(ids, mask, states.to(dtype))


def write_model(folder: Path, *, norm: Tensor | None = None) -> Path:
    """A model folder of these dimensions; ``norm`` is the weight of its final norm, in bfloat16."""
    folder.mkdir(parents=True)
    told = {
        "model_type": "llama",
        "num_hidden_layers": BLOCKS,
        "hidden_size": HIDDEN,
        "vocab_size": VOCABULARY,
        "dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(told))
    if norm is not None:
        # An extra, which other tests do without.
        from safetensors.torch import save_file  # noqa: PLC0415

        weights = {
            "model.norm.weight": norm.bfloat16(),
            "model.layers.0.input_layernorm.weight": torch.ones(HIDDEN),
        }
        save_file(weights, folder / "model.safetensors")
    return folder


def write_dataset(path: Path, samples: Sequence[Drawn]) -> Path:
    """A JSON lines dataset of the samples, named s0 and so on."""
    lines = [
        {"id": f"s{n}", "input_ids": one.ids.tolist(), "loss_mask": one.mask.tolist()}
        for n, one in enumerate(samples)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# -- SpecForge -------------------------------------------------------------------------------------


def specforge_path(root: Path, number: int, *, packed: bool = False) -> Path:
    """Where SpecForge puts the sample of that number."""
    first = number // ROWS_A_FOLDER * ROWS_A_FOLDER
    name = f"data_{number}.ckpt" + (".gz" if packed else "")
    return root / f"rows_{first}-{first + ROWS_A_FOLDER}" / name


def specforge_record(sample: Drawn, *, padding: int = 0) -> dict[str, Tensor]:
    """What SpecForge saves: with the padding of its batch, which it does not cut off."""
    states = torch.nn.functional.pad(sample.states, (0, 0, 0, 0, 0, padding))
    return {
        "input_ids": torch.nn.functional.pad(sample.ids, (0, padding), value=PAD),
        "loss_mask": torch.nn.functional.pad(sample.mask, (0, padding)),
        "aux_hidden_state": states[:, :-1].flatten(1)[None].clone(),
        "hidden_state": states[:, -1][None].clone(),
    }


def save(record: object, path: Path) -> Path:
    """torch.save to the final name, through gzip where the name says so."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".gz":
        with gzip.open(path, "wb") as packed:
            torch.save(record, cast("BinaryIO", packed))
    else:
        torch.save(record, path)
    return path


def write_specforge(root: Path, samples: Sequence[Drawn], *, packed: bool = False) -> Path:
    """A tree of SpecForge."""
    for number, sample in enumerate(samples):
        save(specforge_record(sample), specforge_path(root, number, packed=packed))
    return root


# -- speculators -----------------------------------------------------------------------------------


def write_rows(root: Path, samples: Sequence[Drawn]) -> None:
    """The dataset of a speculators tree, as ``datasets.save_to_disk`` lays it out."""
    import pyarrow as pa  # noqa: PLC0415 - an extra

    root.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {
            "input_ids": [one.ids.tolist() for one in samples],
            "loss_mask": [one.mask.tolist() for one in samples],
            "seq_len": [len(one.ids) for one in samples],
        }
    )
    name = "data-00000-of-00001.arrow"
    with pa.OSFile(str(root / name), "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=2)
    (root / "state.json").write_text(json.dumps({"_data_files": [{"filename": name}]}))
    (root / "dataset_info.json").write_text("{}")


def speculators_path(root: Path, row: int) -> Path:
    """Where speculators looks for the states of a row."""
    return root / "hidden_states" / f"hs_{row}.safetensors"


def write_speculators(root: Path, samples: Sequence[Drawn], *, float8: bool = False) -> Path:
    """A tree of speculators: the last layer is the last state."""
    from safetensors.torch import save_file  # noqa: PLC0415 - an extra

    write_rows(root, samples)
    (root / "hidden_states").mkdir()
    for row, one in enumerate(samples):
        tensors = {"hidden_states": one.states, "token_ids": one.ids}
        if float8:
            tensors |= quantised(one.states)
        save_file(tensors, speculators_path(root, row))
    return root


def quantised(states: Tensor) -> dict[str, Tensor]:
    """States in float8 with a scale a token: its largest value becomes float8's largest."""
    wide = states.float()
    largest = torch.finfo(torch.float8_e4m3fn).max
    scales = (wide.abs().amax((1, 2), keepdim=True) / largest).clamp(min=1e-12)
    narrow = (wide / scales).to(torch.float8_e4m3fn)
    return {"hidden_states": narrow, "hidden_states_scales": scales}


# -- ModelOpt --------------------------------------------------------------------------------------


def write_modelopt(root: Path, samples: Sequence[Drawn]) -> Path:
    """A tree of ModelOpt."""
    for number, one in enumerate(samples):
        record = {
            "input_ids": one.ids,
            "hidden_states": one.states[:, -1].clone(),
            "aux_hidden_states": one.states[:, :-1].flatten(1).clone(),
            "loss_mask": one.mask,
            "conversation_id": f"talk-{number}",
        }
        save(record, root / f"talk-{number}.pt")
    return root
