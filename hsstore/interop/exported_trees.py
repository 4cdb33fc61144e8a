"""The trees that can be made of a store: how each lays out its files, and what is in one."""

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from hsstore.interop.arrow_folder import write_arrow_folder
from hsstore.interop.arrow_module import arrow_module
from hsstore.interop.records import (
    specforge_layers,
    specforge_record,
    speculators_layers,
    speculators_record,
)
from hsstore.interop.sample_tokens import tokens_of
from hsstore.interop.speculators import FOLDER
from hsstore.model.capture import Layer
from hsstore.storage.filesystem import Buffer, Filesystem
from hsstore.storage.store import Store
from hsstore.views.eagle3 import DraftLayers
from hsstore.views.item import Item

FILES_A_FOLDER = 2000
HEADER_ALIGNMENT = 8
_SAFETENSORS = {
    torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.int64: "I64",
}  # fmt: skip


class ExportedTree(Protocol):
    """One layout of files; a sample's number in the store and its place in the export name it."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    def begin(self) -> None:
        """MalformedInput where something that writing takes is not installed."""
        ...

    def layers(
        self, stored: Sequence[Layer], wanted: Sequence[Layer] | None, *, place: str
    ) -> DraftLayers:
        """The layers that go into a file; MalformedInput where the store does not have them."""
        ...

    def file(self, sample: int, index: int) -> str:
        """The file of a sample, below the root."""
        ...

    def content(self, item: Item, layers: DraftLayers) -> Buffer:
        """The bytes of that file."""
        ...

    def finish(
        self, root: Path, store: Store, samples: NDArray[np.int64], fingerprint: str,
        filesystem: Filesystem,
    ) -> None:  # fmt: skip
        """Write what is not of one sample. Raises OSError."""
        ...


class SpecForgeTree:
    """``rows_{a}-{b}/data_{sample}.ckpt``, as ``torch.save`` writes (SpecForge 0.2.0).

    Its reader takes the files in the order of their names as text: data_10 comes before data_2.
    """

    name = "specforge"

    def begin(self) -> None:
        """Nothing beside torch is needed."""

    def layers(
        self, stored: Sequence[Layer], wanted: Sequence[Layer] | None, *, place: str
    ) -> DraftLayers:
        """Three auxiliary layers and the last state after the final norm."""
        return specforge_layers(stored, wanted, place=place)

    def file(self, sample: int, index: int) -> str:  # noqa: ARG002 - named by its number
        """In folders of 2000 numbers."""
        first = sample // FILES_A_FOLDER * FILES_A_FOLDER
        return f"rows_{first}-{first + FILES_A_FOLDER}/data_{sample}.ckpt"

    def content(self, item: Item, layers: DraftLayers) -> Buffer:
        """A torch zip file, which has a CRC of every tensor."""
        record: Mapping[str, object] = {**specforge_record(item, layers)}
        written = io.BytesIO()
        torch.save({name: _alone(value) for name, value in record.items()}, written)
        return written.getbuffer()

    def finish(
        self, root: Path, store: Store, samples: NDArray[np.int64], fingerprint: str,
        filesystem: Filesystem,
    ) -> None:  # fmt: skip
        """Nothing: SpecForge derives its vocabulary map from the files."""


class SpeculatorsTree:
    """A saved dataset, and ``hidden_states/hs_{row}.safetensors`` (speculators 0.9.0)."""

    name = "speculators"

    def begin(self) -> None:
        """The dataset is written by pyarrow."""
        arrow_module()

    def layers(
        self, stored: Sequence[Layer], wanted: Sequence[Layer] | None, *, place: str
    ) -> DraftLayers:
        """Auxiliary layers and the last state before the final norm."""
        return speculators_layers(stored, wanted, place=place)

    def file(self, sample: int, index: int) -> str:  # noqa: ARG002 - rows have no gaps
        """Named by the row of the dataset."""
        return f"{FOLDER}/hs_{index}.safetensors"

    def content(self, item: Item, layers: DraftLayers) -> Buffer:
        """A safetensors file; it has no checksum."""
        record = speculators_record(item, layers)
        return safetensors_bytes(
            {"hidden_states": record["hidden_states"], "token_ids": record["token_ids"]}
        )

    def finish(
        self, root: Path, store: Store, samples: NDArray[np.int64], fingerprint: str,
        filesystem: Filesystem,
    ) -> None:  # fmt: skip
        """The dataset: ids, masks and lengths by row."""
        rows = tokens_of(store, samples.tolist())
        write_arrow_folder(root, rows, fingerprint[:16], filesystem)


TREES: Mapping[str, ExportedTree] = {
    tree.name: tree for tree in (SpecForgeTree(), SpeculatorsTree())
}


def safetensors_bytes(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """A safetensors file of CPU tensors (huggingface/safetensors, "Format")."""
    header: dict[str, object] = {}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        header[name] = {
            "dtype": _SAFETENSORS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text = text.ljust(-(-len(text) // HEADER_ALIGNMENT) * HEADER_ALIGNMENT)
    values = [tensor.contiguous().view(torch.uint8).numpy().data for tensor in tensors.values()]
    return b"".join([len(text).to_bytes(8, "little"), text, *values])


def _alone(value: object) -> object:
    """A tensor with memory of its own: torch.save writes all that a view looks at."""
    if isinstance(value, torch.Tensor):
        return value.clone(memory_format=torch.contiguous_format)
    return value
