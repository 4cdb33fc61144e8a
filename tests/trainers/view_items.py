"""Compares the views of stores with the items that the trainers' own code makes of its own files.

usage: view_items.py TREES POST PRE

TREES is what their_trees.py made, POST and PRE are stores of the same states with the last one
after and before the final norm. Prints, as JSON, what differs in each comparison (nothing, if all
is well), and how many samples with a token to learn from both sides keep of the first few tokens.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from specforge.algorithms.eagle3.data import build_offline_collator, build_offline_normalizer
from specforge.data.preprocessing import OfflineEagle3Dataset
from specforge.runtime.data_plane.feature_store import load_feature_file
from speculators.data_generation.preprocessing import _append_row
from speculators.models.eagle3.data import shift_batch
from speculators.train.data import ArrowDataset, CollateFn
from torch.utils.data import Dataset

from hsstore.interop.foreign import natural
from hsstore.training.dataset import HiddenStateDataset
from hsstore.views.where import Where

WHOLE, CUT = 2048, 8  # tokens; the loss masks of long samples begin behind the cut
HIDDEN, BATCH_TOKENS = 64, 1024

Pair = tuple[Mapping[str, Any], Mapping[str, Any]]


def every(dataset: Dataset[Any]) -> list[Any]:
    """All samples of a dataset, in order."""
    return [dataset[index] for index in range(len(dataset))]  # type: ignore[arg-type]


def differing(pairs: Sequence[Pair]) -> list[str]:
    """Which members are not equal bit for bit, or not on both sides."""
    return sorted({name for ours, theirs in pairs for name in _differing(ours, theirs)})


def _differing(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Iterator[str]:
    for name in ours.keys() | theirs.keys():
        if name not in ours or name not in theirs or not _equal(ours[name], theirs[name]):
            yield name


def _equal(one: Any, other: Any) -> bool:  # noqa: ANN401 - whatever a batch holds
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def specforge(trees: Path, store: str, max_length: int) -> dict[str, list[str]]:
    files = sorted(map(str, trees.glob("specforge/*/*.ckpt")), key=natural)
    normalize, collate = build_offline_normalizer(max_length), build_offline_collator()
    ours = every(HiddenStateDataset(store, view="specforge", max_length=max_length))
    theirs = [normalize(load_feature_file(file)) for file in files]
    older = every(OfflineEagle3Dataset(files, max_len=max_length))
    return {
        "items": differing(list(zip(ours, theirs, strict=True))),
        "older": differing(list(zip(ours, older, strict=True))),
        "batch": differing([(collate(ours), collate(theirs))]),
    }


def speculators(trees: Path, store: str) -> dict[str, list[str]]:
    collate = CollateFn(BATCH_TOKENS, HIDDEN, preprocess=shift_batch)
    ours = every(HiddenStateDataset(store, view="speculators"))
    theirs = every(ArrowDataset(BATCH_TOKENS, str(trees / "speculators"), on_missing="raise"))
    return {
        "items": differing(list(zip(ours, theirs, strict=True))),
        "batch": differing([(collate(ours), collate(theirs))]),
    }


def kept(store: str) -> tuple[int, int]:
    """How many samples ``where`` and speculators' own preparation keep; the same, in order."""
    ours = every(HiddenStateDataset(store, max_length=CUT, where=Where(min_loss_tokens=1)))
    rows: dict[str, list[torch.Tensor]] = {"input_ids": [], "loss_mask": [], "seq_len": []}
    for item in every(HiddenStateDataset(store)):
        mask = item["loss_mask"].long().tolist()
        _append_row(rows, item["input_ids"].tolist(), mask, CUT, None)
    pairs: list[Pair] = [
        ({"input_ids": mine["input_ids"]}, {"input_ids": theirs})
        for mine, theirs in zip(ours, rows["input_ids"], strict=True)
    ]
    if differing(pairs):
        raise SystemExit("they keep other samples")
    return len(ours), len(rows["input_ids"])


def main(trees: str, post: str, pre: str) -> None:
    json.dump({
        "specforge": specforge(Path(trees), post, WHOLE),
        "specforge, cut": specforge(Path(trees), post, CUT),
        "speculators": speculators(Path(trees), pre),
        "kept": kept(pre),
    }, sys.stdout)  # fmt: skip


if __name__ == "__main__":
    main(*sys.argv[1:])
