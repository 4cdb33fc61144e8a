"""A store as a map-style PyTorch dataset: whole samples, checked for completeness when opened."""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from hsstore.errors import (
    InvalidDocument,
    SampleAbsent,
    SampleDamaged,
    SampleMissing,
    SnapshotChanged,
    StorageFailed,
)
from hsstore.model import commands
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import AbsentSample
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.storage.waivers import waived, waivers

if TYPE_CHECKING:
    from hsstore.model.capture import Layer
    from hsstore.storage.token_file import ShardTokens

Absent = Literal["raise", "exclude"]
Verify = Literal["never", "first", "always"]
Committed = Mapping[int, tuple[ShardVersion, bool]]
Samples = NDArray[np.int64]

# A shard's tokens are small beside its states (some 160 kB against 2 GiB).
CACHED_TOKEN_FILES = 256
NAMED_KEYS = 5

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_log = logging.getLogger(__name__)


class Item(TypedDict):
    """One sample.

    ``input_ids`` int64 [tokens], ``loss_mask`` bool [tokens], ``hidden_states`` [tokens, layers,
    hidden] in the stored dtype. Row t of all three belongs to token t; nothing is shifted.
    """

    id: str
    input_ids: torch.Tensor
    loss_mask: torch.Tensor
    hidden_states: torch.Tensor


class HiddenStateDataset(Dataset[Item]):
    """The samples of one store, in dataset order.

    Opening takes a snapshot: which samples there are is fixed then. Where a shard is replaced
    later (a repair), its samples are read from the replacement; ``check_snapshot`` tells.

    ``absent="raise"`` refuses a store that lacks samples; ``"exclude"`` leaves those out, logs how
    many and counts them in ``excluded``; a shard that is committed without some of its samples and
    cannot tell which, its marker or manifest being damaged, counts with all of them. Samples that
    somebody has waived by name are left out either way, logged and counted likewise. ``verify``
    hashes what is read against the manifest:
    ``"never"``, ``"first"`` (each sample's first read in a process) or ``"always"``.

    Every process opens files for itself, so it works under forked and spawned DataLoader workers.

    Attributes:
        snapshot_id: 32 hex digits that name the committed shards at opening.
        excluded: how many samples were left out, ``waived`` ones among them.
        waived: how many of them somebody has accepted to go without.
        lengths: int32 [len(self)], tokens of every sample.
        layers: the layers of ``hidden_states``' second dimension, in order.

    """

    def __init__(
        self, path: str | Path, *, absent: Absent = "raise", verify: Verify = "never"
    ) -> None:
        """Open the store at ``path``.

        Raises SampleMissing or SampleAbsent where samples are lacking (unless excluded), StoreError
        where the store cannot be opened, ValueError for an unknown option.
        """
        _one_of("absent", absent, ("raise", "exclude"))
        _one_of("verify", verify, ("never", "first", "always"))
        self._verify = verify
        self._store = Store.open(path)
        committed, lost, accepted = _snapshot(self._store, tolerant=absent == "exclude")
        missing = _missing(self._store, committed)
        if absent == "raise":
            _refuse(self._store, missing, lost)
        self.snapshot_id = self._store.snapshot_id(committed)
        self._samples = _others(len(self._store.samples), missing, lost, accepted)
        self.waived = len(accepted)
        self.excluded = len(missing) + len(lost) + len(accepted)
        if self.excluded:
            _log.warning("%s: left out %s", path, _counted(missing, lost, accepted))
        self.lengths: NDArray[np.int32] = self._store.samples.length[self._samples]
        self.layers: tuple[Layer, ...] = self._store.identity.capture.layers
        self._opened: _Opened | None = None

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def samples(self) -> Samples:
        """int64 [len(self)], the number in the store of each sample."""
        return self._samples

    def __getitem__(self, index: int) -> Item:
        states = torch.empty(self._shape(index), dtype=self._dtype)
        return self.read_into(index, states)

    def read_into(self, index: int, out: torch.Tensor) -> Item:
        """The same item, its states read into memory that the caller keeps.

        ``out`` is a contiguous CPU tensor [at least tokens, layers, hidden] in the stored dtype;
        ``hidden_states`` is the view ``out[:tokens]``. Raises ValueError for another tensor, and
        what reading a sample raises.
        """
        shape = self._shape(index)
        if not _takes(out, shape, self._dtype):
            raise ValueError(
                f"out is {out.dtype} {tuple(out.shape)} on {out.device}; it must be contiguous "
                f"{self._dtype} of at least {shape} on the CPU"
            )
        states = out[: shape[0]]
        sample = int(self._samples[index])
        with self._naming(sample):
            key, ids, mask = self._tokens(sample)
            self._read(sample, states)
        return Item(
            id=key,
            input_ids=torch.from_numpy(ids.astype(np.int64)),
            loss_mask=torch.from_numpy(mask.astype(np.bool_)),
            hidden_states=states,
        )

    def check_snapshot(self) -> None:
        """SnapshotChanged where shards were committed or replaced since opening."""
        if self._store.snapshot_id() != self.snapshot_id:
            raise SnapshotChanged(
                "shards were committed or replaced since the dataset was opened",
                place=str(self._store.root),
                remedy="open it again",
            )

    # -- reading ------------------------------------------------------------------------------

    @property
    def _dtype(self) -> torch.dtype:
        return _DTYPES[self._store.identity.capture.dtype]

    def _shape(self, index: int) -> tuple[int, int, int]:
        geometry = self._store.identity.geometry
        return int(self.lengths[index]), geometry.layers, geometry.hidden_size

    def _process(self) -> "_Opened":
        """What this process has open; a forked child starts afresh."""
        if self._opened is None or self._opened.pid != os.getpid():
            self._opened = _Opened(self._store)
        return self._opened

    def _tokens(self, sample: int) -> tuple[str, NDArray[np.int32], NDArray[np.uint8]]:
        tokens = self._process().tokens(self._store.samples.extent(sample).shard)
        return tokens.sample(sample - tokens.first_sample)

    def _read(self, sample: int, states: torch.Tensor) -> None:
        opened = self._process()
        seen = opened.verified
        verify = self._verify == "always" or (self._verify == "first" and not seen[sample])
        bits = states.view(torch.uint16) if states.dtype == torch.bfloat16 else states
        opened.reader.read(sample, bits.numpy(), verify=verify)
        seen[sample] |= verify

    @contextlib.contextmanager
    def _naming(self, sample: int) -> Iterator[None]:
        """Errors inside name the sample: a DataLoader passes on little else of them."""
        try:
            yield
        except InvalidDocument as error:
            raise SampleDamaged(
                f"sample #{sample} cannot be read: {error.message}",
                place=error.place,
                remedy=f"run: {commands.hsstore('fsck', self._store.root)}",
            ) from error
        except OSError as error:
            failed = StorageFailed.from_os(error)
            detail = f"sample #{sample} cannot be read: {failed.message}"
            raise type(failed)(detail, place=failed.place, remedy=failed.remedy) from error

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}


class _Opened:
    """Descriptors and caches of one process."""

    def __init__(self, store: Store) -> None:
        self.pid = os.getpid()
        self.reader = Reader(store)
        self.tokens: Callable[[int], ShardTokens] = functools.lru_cache(CACHED_TOKEN_FILES)(
            store.tokens
        )
        self.verified = np.zeros(len(store.samples), np.bool_)


def _snapshot(store: Store, *, tolerant: bool) -> tuple[Committed, Samples, Samples]:
    """The committed shards, the samples that they were committed without, and the waived of those.

    A waived sample is in the last only. Where a shard cannot tell which those are, ``tolerant``
    takes all of its samples, and anybody else gets InvalidDocument.
    """
    while True:
        committed = store.committed()
        absent, unreadable = _absent(store, committed)
        # A repair may have replaced a shard between the listing and the read.
        if not unreadable or store.committed() == committed:
            break
    whole: list[int] = []
    for shard, error in unreadable.items():
        if not tolerant:
            raise InvalidDocument(
                f"shard {shard} lacks samples and cannot tell which: {error}",
                place=str(store.root),
                remedy=f"run: {commands.hsstore('fsck', store.root)}",
            ) from error
        whole += store.samples.shard_samples(shard)
    accepted = waived(waivers(store), absent) if absent else {}
    lost = whole + [sample.sample for sample in absent if sample.sample not in accepted]
    return committed, np.array(sorted(lost), np.int64), np.array(sorted(accepted), np.int64)


def _absent(store: Store, committed: Committed) -> tuple[list[AbsentSample], dict[int, Exception]]:
    """The samples that shards were committed without, and the shards that cannot tell."""
    lost: list[AbsentSample] = []
    unreadable: dict[int, Exception] = {}
    for version, absent in committed.values():
        if absent:
            try:
                manifest = store.manifest(store.read_marker(version, absent=True))
            except (InvalidDocument, OSError) as error:
                unreadable[version.shard] = error
            else:
                lost += manifest.absent
    return lost, unreadable


def _missing(store: Store, committed: Committed) -> Samples:
    shards = store.samples.start // store.identity.shard_rows
    return np.flatnonzero(~np.isin(shards, list(committed)))


def _others(samples: int, *left_out: Samples) -> Samples:
    return np.setdiff1d(np.arange(samples), np.concatenate(left_out))


def _refuse(store: Store, missing: Samples, lost: Samples) -> None:
    """Raise where the store lacks samples."""
    if not len(missing) and not len(lost):
        return
    error = SampleMissing if len(missing) else SampleAbsent
    mending = commands.extract if len(missing) else commands.repair
    lacking = np.concatenate([missing, lost])[:NAMED_KEYS]
    keys = ", ".join(store.key(int(sample)) for sample in lacking)
    command = mending(store.root, source=store.source_words())
    raise error(
        f"the store lacks {_counted(missing, lost)}, first: {keys}",
        place=str(store.root),
        remedy=f'run: {command}, or open it with absent="exclude"',
    )


def _counted(missing: Sized, lost: Sized, accepted: Sized = ()) -> str:
    counted = f"{len(missing)} missing and {len(lost)} absent samples"
    return f"{counted}, and {len(accepted)} waived ones" if len(accepted) else counted


def _takes(out: torch.Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> bool:
    fits = out.ndim == len(shape) and out.shape[1:] == shape[1:] and len(out) >= shape[0]
    return fits and out.dtype == dtype and out.device.type == "cpu" and out.is_contiguous()


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}, not one of {', '.join(known)}")
