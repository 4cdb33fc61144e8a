"""A store as SpecForge's feature store: its trainer reads from it without exported files.

Source: SpecForge 0.2.0, ``specforge/runtime/data_plane/feature_store.py`` and ``contracts.py``.
Needs the package specforge, which hsstore does not install.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from specforge.runtime.contracts import SCHEMA_VERSION, FeatureHandle, FeatureSpec, SampleRef
from specforge.runtime.data_plane.feature_store import FeatureStore

from hsstore.errors import MalformedInput
from hsstore.interop.records import specforge_layers, specforge_record
from hsstore.model.capture import Layer
from hsstore.storage.store import Store
from hsstore.training.dataset import Absent, HiddenStateDataset, Verify

STRATEGY = "eagle3"
FEATURES = ("input_ids", "loss_mask", "hidden_state", "aux_hidden_state")
_SCHEME = "hsstore://"


class StoreFeatures(FeatureStore):  # type: ignore[misc]  # specforge is untyped
    """The samples of a store as features of SpecForge's EAGLE-3: what its ``.ckpt`` files hold.

    Give it, with its ``refs``, to ``specforge.launch.build_disagg_offline_runtime``, or to a
    ``FeatureDataLoader`` with EAGLE-3's own normalizer and collator. The store must have three
    auxiliary layers (or ``layers`` names them, and ``final`` behind them) and the last state after
    the final norm. ``verify`` and ``absent`` are those of HiddenStateDataset; damage raises
    SampleDamaged in the trainer. Read-only, and safe for the threads of SpecForge's loader.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        layers: Sequence[Layer] | None = None,
        verify: Verify = "first",
        absent: Absent = "raise",
    ) -> None:
        """Open the store at ``path``.

        Raises MalformedInput where it has other layers, and what HiddenStateDataset raises.
        """
        self._identity = Store.open(path).identity
        self._layers = specforge_layers(self._identity.capture.layers, layers, place=str(path))
        self._dataset = HiddenStateDataset(path, absent=absent, verify=verify)

    def refs(self, *, run_id: str, ttt_length: int = 7, max_len: int = 2048) -> list[SampleRef]:
        """A reference for each sample, in dataset order, with all that the files would tell.

        ``ttt_length`` and ``max_len`` are what the run trains with; SpecForge cuts at the latter.
        Shapes and dtypes are given, and no payload is read for them. ``metadata["sample"]`` is the
        sample's number in the store, ``metadata["file_index"]`` its place in this list.
        """
        indexes = range(len(self._dataset))
        return [self._ref(index, run_id, ttt_length, max_len) for index in indexes]

    def _ref(self, index: int, run_id: str, ttt_length: int, max_len: int) -> SampleRef:
        model, specs = self._identity.model, self._specs(int(self._dataset.lengths[index]))
        sample = int(self._dataset.samples[index])
        return SampleRef(
            sample_id=f"{run_id}:{sample:08d}",
            run_id=run_id,
            source_task_id=None,
            feature_store_uri=f"{_SCHEME}{self._identity.uuid}/{sample}",
            feature_keys={name: name for name in FEATURES},
            feature_specs=specs,
            strategy=STRATEGY,
            schema_version=SCHEMA_VERSION,
            target_model_version=model.weights_digest or "unknown",
            tokenizer_version=model.tokenizer_digest or "unknown",
            num_tokens=int(self._dataset.lengths[index]),
            estimated_bytes=self.estimate_bytes(specs),
            metadata={
                "format": f"offline_{STRATEGY}",
                "target_repr": "hidden_state",
                "schema_version": SCHEMA_VERSION,
                "ttt_length": ttt_length,
                "max_len": max_len,
                "file_index": index,
                "sample": sample,
            },
        )

    def _specs(self, tokens: int) -> dict[str, FeatureSpec]:
        capture, hidden = self._identity.capture, self._identity.geometry.hidden_size
        shapes: dict[str, tuple[tuple[int, ...], str]] = {
            "input_ids": ((tokens,), "int64"),
            "loss_mask": ((tokens,), "int64"),
            "hidden_state": ((1, tokens, hidden), capture.dtype),
            "aux_hidden_state": ((1, tokens, len(self._layers.auxiliary) * hidden), capture.dtype),
        }
        return {name: FeatureSpec(name, shape, dtype) for name, (shape, dtype) in shapes.items()}

    # -- what SpecForge asks for -----------------------------------------------------------------

    def get(
        self,
        sample_ref: SampleRef,
        *,
        device: torch.device | str = "cpu",
        names: list[str] | None = None,
    ) -> tuple[dict[str, torch.Tensor], FeatureHandle]:
        """The features of one sample by name, on ``device``, and what ``release`` takes.

        Raises MalformedInput for a reference into another store or an unknown feature, and what
        reading a sample raises.
        """
        index = self._index(sample_ref.feature_store_uri)
        item = self._dataset[index]
        record = cast("dict[str, torch.Tensor]", specforge_record(item, self._layers))
        unknown = [name for name in names or () if name not in record]
        if unknown:
            raise MalformedInput(f"SpecForge's samples have no feature {unknown[0]!r}")
        features = {name: record[name].to(device) for name in names or FEATURES}
        handle = FeatureHandle(sample_ref.sample_id, generation=0, lease_token=sample_ref.sample_id)
        return features, handle

    def _index(self, uri: str) -> int:
        """Where the dataset has the sample that a reference names: numbers ascend there."""
        samples, store = self._dataset.samples, f"{_SCHEME}{self._identity.uuid}/"
        number = uri.removeprefix(store)
        if uri.startswith(store) and number.isdecimal():
            index = int(np.searchsorted(samples, int(number)))
            if index < len(samples) and samples[index] == int(number):
                return index
        raise MalformedInput(
            "the reference is into another store, or to a sample that this one lacks",
            place=uri,
            remedy="take the refs() of this store",
        )

    def release(self, handle: FeatureHandle, *, reason: str = "consumed") -> None:
        """Nothing is held for a sample that was read."""

    def abort(self, sample_id: str, *, reason: str) -> None:
        """Nothing is ever removed: the trainer does not own the samples."""

    def put(
        self,
        tensors: dict[str, torch.Tensor],  # noqa: ARG002 - SpecForge's signature
        *,
        sample_id: str,
        metadata: dict[str, Any],  # noqa: ARG002 - as above
    ) -> SampleRef:
        """Refused with MalformedInput: a store is filled by ``hsstore extract``."""
        raise MalformedInput(f"{sample_id}: a trainer cannot write into a store")

    def health(self) -> dict[str, Any]:
        """That nothing is resident or waiting."""
        return {
            "store_id": self._identity.uuid,
            "resident_samples": 0,
            "active_leases": 0,
            "resident_bytes": 0,
            "release_pending": 0,
        }
