"""Reading random samples into reused memory, plain and verified, against preadv; warm."""

import os
import random
import shutil
from pathlib import Path
from typing import Any

import torch
from measure import States, interleaved, result
from stores import fill, planned

from hsstore.model import keys
from hsstore.storage.reader import Reader
from hsstore.training.dataset import HiddenStateDataset

READS = 60


def measure(folder: Path, states: States, samples: int, *, label: str) -> dict[str, Any]:
    """Random samples of one shard; each read is one round."""
    root = folder / "store"
    shutil.rmtree(root, ignore_errors=True)
    store = planned(root, states, samples)
    fill(store, states)
    memory = torch.empty(states.shape, dtype=torch.bfloat16)
    array = memory.view(torch.uint16).numpy()
    descriptor = os.open(root / keys.shard_file(0), os.O_RDONLY)
    reader = Reader(store)
    plain = HiddenStateDataset(root)
    verified = HiddenStateDataset(root, verify="always")
    stride = store.identity.shard_rows // samples * store.identity.geometry.row_bytes

    chosen = 0

    def choose() -> None:
        nonlocal chosen
        chosen = random.randrange(samples)  # noqa: S311 - which sample is no secret

    seconds = interleaved(
        {
            "preadv": lambda: os.preadv(descriptor, [array.data], chosen * stride),
            "Reader.read": lambda: reader.read(chosen, array),
            "Reader.read verified": lambda: reader.read(chosen, array, verify=True),
            "Dataset.read_into": lambda: plain.read_into(chosen, memory),
            "Dataset.read_into verified": lambda: verified.read_into(chosen, memory),
            "Dataset[i]": lambda: plain[chosen],
        },
        before=choose,
        rounds=READS,
    )
    os.close(descriptor)
    return result(f"read one sample, warm, {label}", seconds, "preadv", states.nbytes)
