"""Asks the plug-ins of both trainers for every sample, and prints their answers as JSON.

usage: plug_in_answers.py PREPARED FILES STORE..

PREPARED is a folder of speculators without hidden states, FILES the same with them. For each STORE
its name and a list: of every row, whether speculators' own dataset got what it gets from FILES
("same"), what it does without ("missing"), or which error ended it; or the one error of opening it.
The same for SpecForge's plug-in, sample by sample, as far as the store has its norm.
"""

import json
import pickle
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import load_from_disk
from specforge.runtime.contracts import SampleRef
from speculators.train.data import ArrowDataset, SampleUnavailable

from hsstore.errors import HsstoreError
from hsstore.interop.specforge_features import StoreFeatures
from hsstore.interop.speculators_backend import StoreBackend, StoreTransfer

Item = dict[str, torch.Tensor]


def answer(call: Callable[[], Any], expected: Item | None = None) -> str:
    try:
        found = call()
    except HsstoreError as error:
        return f"{error.kind}: {error}"
    if isinstance(found, SampleUnavailable):
        return "missing"
    if expected is None:
        return "something"
    same = found.keys() == expected.keys() and all(
        found[k].dtype == expected[k].dtype and torch.equal(found[k], expected[k]) for k in found
    )
    return "same" if same else "other"


def rows(prepared: str, transfer: StoreTransfer, files: Sequence[Item]) -> list[str]:
    spawned = pickle.loads(pickle.dumps(transfer))  # noqa: S301 - as a worker gets it
    ours = ArrowDataset(64, prepared, spawned, on_missing="skip")
    return [answer(partial(ours.__getitem__, row), files[row]) for row in range(len(ours))]


def speculators(prepared: str, files: str, store: str) -> list[str] | str:
    try:
        transfer = StoreTransfer(store, prepared)
    except HsstoreError as error:
        return f"{error.kind}: {error}"
    return rows(prepared, transfer, ArrowDataset(64, files, on_missing="raise"))


def specforge(store: str) -> list[str] | str:
    try:
        features = StoreFeatures(store, absent="exclude")
    except HsstoreError as error:
        return f"{error.kind}: {error}"
    refs = features.refs(run_id="run")
    return [answer(partial(checked, features, ref)) for ref in refs]


def checked(features: StoreFeatures, ref: SampleRef) -> None:
    """Gets a sample, whose tensors must be what its reference tells."""
    found, handle = features.get(ref)
    features.release(handle)
    for name, spec in ref.feature_specs.items():
        told = tuple(spec.shape), f"torch.{spec.dtype}"
        if (tuple(found[name].shape), str(found[name].dtype)) != told:
            raise SystemExit(f"{name} of {ref.sample_id} is not as told: {told}")


def reversed_rows(prepared: str, files: str, store: str) -> list[str]:
    """Rows in another order than the samples of the store."""
    folder = f"{prepared}-reversed"
    whole = load_from_disk(prepared)
    whole.select(range(len(whole) - 1, -1, -1)).save_to_disk(folder)
    theirs = ArrowDataset(64, files, on_missing="raise")
    expected = [theirs[row] for row in range(len(theirs) - 1, -1, -1)]
    return rows(folder, StoreTransfer(store, folder), expected)


def other_tokens(prepared: str, store: str) -> str:
    """A folder of which the store has no row."""
    folder = f"{prepared}-other"
    load_from_disk(prepared).map(lambda row: {"input_ids": row["input_ids"] + 1}).save_to_disk(
        folder
    )
    return answer(lambda: StoreTransfer(store, folder))


def arguments(target: str, store: str | None, **given: object) -> Namespace:
    plain = {
        "hsstore_path": store, "hsstore_layers": None, "hsstore_verify": "first",
        "from_pretrained": "", "target_layer_ids": None, "verifier_name_or_path": target,
    }  # fmt: skip
    return Namespace(**{**plain, **given})


def main(prepared: str, files: str, *stores: str) -> None:
    target = str(Path(files).parent / "target")
    whole = stores[0]

    def chosen(store: str | None = whole, **given: object) -> str:
        return answer(
            lambda: StoreBackend.from_train_args(arguments(target, store, **given), prepared)
        )

    json.dump({
        "speculators": {store: speculators(prepared, files, store) for store in stores},
        "specforge": {store: specforge(store) for store in stores},
        "reversed": reversed_rows(prepared, files, whole),
        "other tokens": other_tokens(prepared, whole),
        "no store": chosen(None),
        "default layers": chosen(),
        "other layers": chosen(target_layer_ids=[1, 4, 5]),
        "pretrained": chosen(from_pretrained="draft"),
        "pretrained, told": chosen(from_pretrained="draft", hsstore_layers="2,4,5"),
    }, sys.stdout)  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
