"""A store as a backend of hs_connectors, from which speculators trains without exported files.

Importing this module registers the backend ``hsstore``; hs_connectors has no entry point for that,
so ``hsstore.interop.speculators_cli`` does it ahead of speculators' own command line.

Source: hs-connectors 0.9.0, ``hs_connectors/transfer.py``. Needs the packages hs-connectors,
speculators and datasets, which hsstore does not install.
"""

import argparse
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import numpy as np
import torch
from datasets import load_from_disk
from hs_connectors import FileBackend, FileTransfer, HiddenStatesBackend
from numpy.typing import NDArray
from speculators.models.utils import resolve_target_layer_ids

from hsstore.errors import MalformedInput
from hsstore.interop.records import speculators_layers, speculators_record
from hsstore.interop.sample_tokens import tokens_of
from hsstore.model.capture import FINAL_PRE, Layer, parse_layers
from hsstore.storage.digest_index import DigestIndex
from hsstore.storage.store import Store
from hsstore.storage.token_file import token_digest
from hsstore.training.dataset import HiddenStateDataset, Verify

ROWS_AT_ONCE = 1000
_log = logging.getLogger(__name__)


class StoreTransfer(FileTransfer):  # type: ignore[misc]  # hs_connectors is untyped
    """The states of a prepared folder's rows, out of a store.

    A row is served by the first sample with the same token ids, wherever both lie. A row that the
    store has no states for (its sample is missing or absent, or not in the store) gets None, with
    which speculators does as its ``--on-missing`` says; what vLLM generates then comes by files,
    as with the backend ``file``. What the store has and cannot read raises SampleDamaged or
    StorageFailed: it is not passed off as missing. Pickles, for spawned workers.

    Attributes:
        rows: int64 [rows of the folder], the place in the dataset of each, -1 for None.

    """

    def __init__(
        self,
        store: str | Path,
        data_path: str | Path,
        *,
        layers: Sequence[Layer] | None = None,
        verify: Verify = "first",
    ) -> None:
        """Open ``store`` for the folder ``data_path``, which speculators prepared.

        ``layers`` are the auxiliary ones and ``final:pre``, all of the store by default. Raises
        MalformedInput where the store has others or no row's states, and what HiddenStateDataset
        raises.
        """
        super().__init__(Path(data_path) / "hidden_states")
        stored = Store.open(store).identity.capture.layers
        self._layers = speculators_layers(stored, layers, place=str(store))
        self._dataset = HiddenStateDataset(store, absent="exclude", verify=verify)
        self.rows = _rows(Path(data_path), Path(store), self._dataset)
        lacking = int((self.rows < 0).sum())
        _log.info("%s has the states of %d rows of %s, and lacks those of %d",
                  store, len(self.rows) - lacking, data_path, lacking)  # fmt: skip

    def get_cached(self, file_idx: int) -> dict[str, torch.Tensor] | None:
        """``hidden_states`` [tokens, layers, hidden] and ``token_ids`` int64 [tokens] of a row.

        None where the store lacks it; SampleDamaged or StorageFailed where it cannot be read.
        """
        index = int(self.rows[file_idx])
        return None if index < 0 else {**speculators_record(self._dataset[index], self._layers)}  # type: ignore[dict-item]


def _rows(data_path: Path, store: Path, dataset: HiddenStateDataset) -> NDArray[np.int64]:
    """Where the dataset has the token ids of each row of a prepared folder, -1 where it has not."""
    index = DigestIndex(_digests(store, dataset))
    prepared = load_from_disk(str(data_path)).select_columns("input_ids").with_format("numpy")
    found = [
        index.find(token_digest(np.asarray(ids, np.int32)))
        for piece in prepared.iter(ROWS_AT_ONCE)
        for ids in piece["input_ids"]
    ]
    rows = np.array([-1 if each is None else each for each in found], np.int64)
    if not (rows >= 0).any():
        raise MalformedInput(
            f"it has the states of none of the {len(rows)} rows of {data_path}",
            place=str(store),
            remedy="name the store that was made from this data",
        )
    return rows


def _digests(store: Path, dataset: HiddenStateDataset) -> list[bytes]:
    """The token digest of every sample of a dataset, in its order."""
    samples = dataset.samples.tolist()
    return [token_digest(ids) for _, ids, _ in tokens_of(Store.open(store), samples)]


@HiddenStatesBackend.register("hsstore")
class StoreBackend(FileBackend):  # type: ignore[misc]  # hs_connectors is untyped
    """``--hidden-states-backend hsstore``: a StoreTransfer by speculators' arguments.

    A vLLM server that generates what is missing is launched as for the backend ``file``.
    """

    @staticmethod
    def add_train_args(parser: argparse.ArgumentParser) -> None:
        """The arguments of ``speculators train`` that this backend has."""
        parser.add_argument(
            "--hsstore-path", type=str, default=None, help="The store to read hidden states from."
        )
        parser.add_argument(
            "--hsstore-layers",
            type=str,
            default=None,
            help="The auxiliary layers to take from the store, '2,16,29' say, where they are not "
            "those of --target-layer-ids.",
        )
        parser.add_argument(
            "--hsstore-verify",
            choices=get_args(Verify),
            default="first",
            help="When to hash what is read from the store: never, the first time a process reads "
            "a sample, or always. (Default: first)",
        )

    @staticmethod
    def from_train_args(args: argparse.Namespace, data_path: str) -> StoreTransfer:
        """The transfer for a run; MalformedInput where an argument is missing or does not fit."""
        if args.hsstore_path is None:
            raise MalformedInput(
                "the backend hsstore needs a store", remedy="add --hsstore-path STORE"
            )
        return StoreTransfer(
            args.hsstore_path, data_path, layers=_wanted(args), verify=args.hsstore_verify
        )


def _wanted(args: argparse.Namespace) -> tuple[Layer, ...]:
    """The layers that the drafter is built for: speculators counts them as stores do."""
    if args.hsstore_layers is not None:
        model = Store.open(args.hsstore_path).identity.model
        return (*parse_layers(args.hsstore_layers, model.num_layers), FINAL_PRE)
    if getattr(args, "from_pretrained", None):
        raise MalformedInput(
            "which layers a pretrained drafter takes is in its checkpoint only",
            place=str(args.from_pretrained),
            remedy="say them, as in --hsstore-layers 2,16,29",
        )
    layers = resolve_target_layer_ids(
        args.target_layer_ids,
        args.verifier_name_or_path,
        trust_remote_code=getattr(args, "trust_remote_code", False),
    )
    return (*layers, FINAL_PRE)
