"""A store as a map-style PyTorch dataset: whole samples, checked for completeness when opened."""

import contextlib
import functools
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, Unpack, overload

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch.utils.data import Dataset
from typing_extensions import TypeVar

from hsstore.errors import InvalidDocument, SampleDamaged, SnapshotChanged, StorageFailed
from hsstore.model import commands
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store
from hsstore.training.skipping import Skipped
from hsstore.training.snapshot import take_snapshot
from hsstore.views.choose import View, ViewName, choose
from hsstore.views.item import Item
from hsstore.views.options import one_of, whole_number
from hsstore.views.plain import RawView
from hsstore.views.where import Where, select

if TYPE_CHECKING:
    from hsstore.model.capture import Layer
    from hsstore.storage.token_file import ShardTokens
    from hsstore.views.plain import LayerItem
    from hsstore.views.specforge import SpecForgeItem
    from hsstore.views.speculators import SpeculatorsItem

__all__ = ["Absent", "HiddenStateDataset", "Item", "OnDamage", "Options", "Verify", "Where"]

Absent = Literal["raise", "exclude"]
Verify = Literal["never", "first", "always"]
OnDamage = Literal["raise", "skip"]
T_co = TypeVar("T_co", covariant=True, default=Item)

# A shard's tokens are small beside its states (some 160 kB against 2 GiB).
CACHED_TOKEN_FILES = 256
# A failing disk reaches it within minutes; a few flipped bits in terabytes do not.
MAX_SKIPPED = 10

_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
_log = logging.getLogger(__name__)


class Options(TypedDict, total=False):
    """The options of a HiddenStateDataset that do not change the type of its samples."""

    absent: Absent
    verify: Verify
    layers: "Sequence[Layer] | None"
    dtype: torch.dtype | None
    max_length: int | None
    where: Where | None
    on_damage: OnDamage
    max_skipped: int


class HiddenStateDataset(Dataset[T_co]):
    """The samples of one store, in dataset order.

    Opening takes a snapshot: which samples there are is fixed then. Where a shard is replaced
    later (a repair), its samples are read from the replacement; ``check_snapshot`` tells.

    ``absent="raise"`` refuses a store that lacks samples; ``"exclude"`` leaves those out, logs how
    many and counts them in ``excluded``; a shard that is committed without some of its samples and
    cannot tell which, its marker or manifest being damaged, counts with all of them. Samples that
    somebody has waived by name are left out either way, logged and counted likewise. ``verify``
    hashes what is read against the manifest:
    ``"never"``, ``"first"`` (each sample's first read in a process) or ``"always"``.

    What a sample looks like:

    - ``view="raw"``: an ``Item``. ``"by_layer"``: a ``LayerItem``, each layer apart.
      ``"specforge"`` and ``"speculators"``: what those trainers read from their own files,
      ``SpecForgeItem`` and ``SpeculatorsItem``. The first wants a store with the last state after
      the final norm (``final``), the second before it (``final:pre``); another store is refused,
      never converted. A function is called with each Item and may return anything.
    - ``layers``: which of the store's layers, in which order (None: all). Everything is read, and
      the item is a view of it where strides can say so: layers that are stored in equal steps, in
      ascending order; another order costs a copy of the chosen layers, and ``"by_layer"`` never
      copies. A view keeps the memory of the whole sample alive.
    - ``dtype``: what states are cast to (None: as stored). A value that is too large for it raises
      MalformedInput; it never becomes infinite.
    - ``max_length``: longer samples are cut at the right, to their first so many tokens; chunks
      behind the cut are not read.

    ``where`` leaves samples out by their tokens (see ``Where``): logged, and counted in
    ``filtered``.

    ``on_damage="skip"`` leaves out a sample that turns out damaged (SampleDamaged) or that the disk
    cannot read (StorageFailed for EIO), where leaving out is possible without lying about indexes:
    in the batches that a DataLoader asks for, which become smaller (``BufferedPacked`` and
    ``BufferedPadded`` too), and in a HiddenStateStream.
    ``dataset[i]`` and ``read_into`` name one sample and always raise; so does a batch of which
    nothing is left. Each sample is logged once and counted in ``skipped``, by the workers of a
    DataLoader together; more than ``max_skipped`` of them raise. A later read tries again. Samples
    that are missing or absent are never skipped. Most damage shows only to ``verify``.

    Every process opens files for itself, so it works under forked and spawned DataLoader workers.

    Attributes:
        snapshot_id: 32 hex digits that name the committed shards at opening.
        excluded: how many samples were left out as lacking, ``waived`` ones among them.
        waived: how many of them somebody has accepted to go without.
        filtered: how many samples each criterion of ``where`` left out, by its name.
        lengths: int32 [len(self)], tokens of every sample as served.
        layers: the layers of what is served, in order.
        row_shape: (layers, hidden) of the memory that ``read_into`` takes: all layers stored.
        stored_dtype: the dtype of that memory.

    """

    @overload
    def __init__(
        self: "HiddenStateDataset[Item]",
        path: str | Path,
        *,
        view: Literal["raw"] = "raw",
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self: "HiddenStateDataset[LayerItem]",
        path: str | Path,
        *,
        view: Literal["by_layer"],
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self: "HiddenStateDataset[SpecForgeItem]",
        path: str | Path,
        *,
        view: Literal["specforge"],
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self: "HiddenStateDataset[SpeculatorsItem]",
        path: str | Path,
        *,
        view: Literal["speculators"],
        **options: Unpack[Options],
    ) -> None: ...

    @overload
    def __init__(
        self, path: str | Path, *, view: Callable[[Item], T_co], **options: Unpack[Options]
    ) -> None: ...

    def __init__(  # noqa: PLR0913 - a dataset's options are its arguments
        self,
        path: str | Path,
        *,
        absent: Absent = "raise",
        verify: Verify = "never",
        view: ViewName | View = "raw",
        layers: "Sequence[Layer] | None" = None,
        dtype: torch.dtype | None = None,
        max_length: int | None = None,
        where: Where | None = None,
        on_damage: OnDamage = "raise",
        max_skipped: int = MAX_SKIPPED,
    ) -> None:
        """Open the store at ``path``.

        Raises SampleMissing or SampleAbsent where samples are lacking (unless excluded),
        MalformedInput where the store cannot serve the view or layers or ``where`` leaves nothing,
        StoreError where the store cannot be opened, ValueError for an unknown option.
        """
        one_of("absent", absent, ("raise", "exclude"))
        one_of("verify", verify, ("never", "first", "always"))
        one_of("on_damage", on_damage, ("raise", "skip"))
        max_length = None if max_length is None else whole_number("max_length", max_length, 1)
        max_skipped = whole_number("max_skipped", max_skipped, 0)
        if where is not None and not isinstance(where, Where):
            raise ValueError(f"where is {where!r}; it must be a Where")
        self._verify = verify
        self._store = Store.open(path)
        capture, geometry = self._store.identity.capture, self._store.identity.geometry
        chosen = choose(view, capture.layers, layers, dtype, place=str(path))
        self._view, self.layers = chosen.view, chosen.layers
        self.row_shape = geometry.layers, geometry.hidden_size
        self.stored_dtype = _DTYPES[capture.dtype]
        self._open_samples(tolerant=absent == "exclude")
        self._select(where, max_length)
        self._skipped = Skipped(len(self), max_skipped) if on_damage == "skip" else None
        self._opened: _Opened | None = None

    def _open_samples(self, *, tolerant: bool) -> None:
        snapshot = take_snapshot(self._store, tolerant=tolerant)
        self.snapshot_id = snapshot.snapshot_id
        self.waived, self.excluded = len(snapshot.waived), snapshot.excluded
        if self.excluded:
            _log.warning("%s: left out %s", self._store.root, snapshot.counted())
        self._samples = snapshot.samples

    def _select(self, where: Where | None, max_length: int | None) -> None:
        self.filtered: Mapping[str, int] = {}
        if where is not None:
            selected = select(self._store, self._samples, where, served=max_length)
            self._samples, self.filtered = selected.samples, selected.left_out
            if self.filtered:
                _log.info("%s: %s", self._store.root, selected)
        lengths: NDArray[np.int32] = self._store.samples.length[self._samples]
        self.lengths = lengths if max_length is None else np.minimum(lengths, np.int32(max_length))

    @property
    def shards(self) -> NDArray[np.int64]:
        """The shard of every sample, int64 [len(self)]."""
        table = self._store.samples
        return table.start[self._samples] // table.shard_rows

    @property
    def fingerprint(self) -> str:
        """32 hex digits that name the store, and which of its samples these are, in what lengths.

        Unlike ``snapshot_id`` it stays the same where a shard is replaced.
        """
        digest = xxhash.xxh3_128(self._store.identity.uuid.encode())
        digest.update(np.ascontiguousarray(self._samples, "<i8").data)
        digest.update(np.ascontiguousarray(self.lengths, "<i4").data)
        return digest.hexdigest()

    @property
    def skipped(self) -> dict[str, str]:
        """The samples that were left out as unreadable: the ``kind`` of the error by key."""
        found = {} if self._skipped is None else self._skipped.reasons()
        return {self._store.key(int(self._samples[at])): kind for at, kind in found.items()}

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def samples(self) -> NDArray[np.int64]:
        """int64 [len(self)], the number in the store of each sample, ascending."""
        return self._samples

    def __getitem__(self, index: int) -> T_co:
        return self.read_into(index, self.memory(int(self.lengths[index])))

    def __getitems__(self, indices: Sequence[int]) -> list[T_co]:
        """The samples of a batch; a DataLoader asks so. What is skipped is not among them."""
        items = list(self.readable(indices))
        if not items and len(indices):
            raise self.nothing_left(len(indices))
        return items

    def readable(self, indices: Iterable[int]) -> Iterator[T_co]:
        """The samples at ``indices``, in that order, but for those that ``on_damage`` skips.

        Raises what reading a sample raises, and SampleDamaged or StorageFailed beyond
        ``max_skipped``.
        """
        for index in indices:
            try:
                item = self[index]
            except (SampleDamaged, StorageFailed) as error:
                self.leave_out(index, error)
            else:
                yield item

    def leave_out(self, index: int, error: SampleDamaged | StorageFailed) -> None:
        """Skip a sample whose reading raised ``error``; raises that where it is not to be skipped.

        Raises likewise beyond ``max_skipped``.
        """
        if self._skipped is None:
            raise error
        self._skipped.leave_out(range(len(self))[index], error)

    def nothing_left(self, samples: int) -> SampleDamaged:
        """The error of a batch of which all ``samples`` were left out."""
        return SampleDamaged(
            f"none of the {samples} samples of a batch can be read",
            place=str(self._store.root),
            remedy=f"read larger batches, a HiddenStateStream, or first {self._fsck()}",
        )

    def read_into(self, index: int, out: torch.Tensor) -> T_co:
        """The same sample, its states read into memory that the caller keeps.

        ``out`` is a contiguous CPU tensor [at least tokens, *row_shape] in ``stored_dtype``. All
        layers are read into ``out[:tokens]``, and what is returned is a view of that as far as the
        view says; of ``"raw"``, the ``hidden_states`` are ``out[:tokens]``. Raises ValueError for
        another tensor, and what reading a sample raises.
        """
        states = self._part_of(out, index)
        key, ids, mask = self._read_sample(index, states)
        item = Item(
            id=key,
            input_ids=torch.from_numpy(ids.astype(np.int64)),
            loss_mask=torch.from_numpy(mask.astype(np.bool_)),
            hidden_states=states,
        )
        served: T_co = self._view(item)
        return served

    def fill(
        self, index: int, out: torch.Tensor, input_ids: torch.Tensor, loss_mask: torch.Tensor
    ) -> str:
        """Read a sample into memory that the caller keeps, and return its id.

        ``out`` as in ``read_into``; ``input_ids`` int64 and ``loss_mask`` bool, contiguous CPU
        tensors [at least tokens]. What lies behind the sample's tokens is left as it is. Nothing
        that grows with the sample is allocated, unless its store is compressed. Raises as
        ``read_into`` does, and ValueError where the dataset has a view, layers or a dtype of its
        own: what is filled is what is stored.
        """
        if self._view != RawView():
            raise ValueError(
                "fill reads what is stored; open the dataset without view, layers, dtype"
            )
        key, ids, mask = self._read_sample(index, self._part_of(out, index))
        np.copyto(input_ids.numpy()[: len(ids)], ids)
        np.copyto(loss_mask.numpy()[: len(mask)], mask, casting="unsafe")
        return key

    def memory(self, tokens: int) -> torch.Tensor:
        """Uninitialised memory for so many tokens, of the kind that ``read_into`` takes."""
        return torch.empty((tokens, *self.row_shape), dtype=self.stored_dtype)

    def check_snapshot(self) -> None:
        """SnapshotChanged where shards that the store had when opened were committed or replaced.

        Samples that it was extended by since lie in shards of their own, which are not asked about:
        open it again to see them.
        """
        if self._store.snapshot_id() != self.snapshot_id:
            raise SnapshotChanged(
                "shards were committed or replaced since the dataset was opened",
                place=str(self._store.root),
                remedy="open it again",
            )

    # -- reading ------------------------------------------------------------------------------

    def _shape(self, index: int) -> tuple[int, int, int]:
        return int(self.lengths[index]), *self.row_shape

    def _part_of(self, out: torch.Tensor, index: int) -> torch.Tensor:
        """The first rows of ``out``, as many as the sample has tokens; ValueError if it has not."""
        shape = self._shape(index)
        if not _takes(out, shape, self.stored_dtype):
            raise ValueError(
                f"out is {out.dtype} {tuple(out.shape)} on {out.device}; it must be contiguous "
                f"{self.stored_dtype} of at least {shape} on the CPU"
            )
        return out[: shape[0]]

    def _read_sample(
        self, index: int, states: torch.Tensor
    ) -> tuple[str, NDArray[np.int32], NDArray[np.uint8]]:
        """Fill ``states``, and return the sample's key, and token ids and loss mask as served."""
        sample, tokens = int(self._samples[index]), len(states)
        with self._naming(sample):
            key, ids, mask = self._tokens(sample)
            self._read(sample, states)
        return key, ids[:tokens], mask[:tokens]

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
        opened.reader.read(sample, bits.numpy(), rows=len(states), verify=verify)
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
                remedy=self._fsck(),
            ) from error
        except OSError as error:
            failed = StorageFailed.from_os(error)
            detail = f"sample #{sample} cannot be read: {failed.message}"
            raise type(failed)(detail, place=failed.place, remedy=failed.remedy) from error

    def _fsck(self) -> str:
        return f"run: {commands.hsstore('fsck', self._store.root)}"

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


def _takes(out: torch.Tensor, shape: tuple[int, int, int], dtype: torch.dtype) -> bool:
    fits = out.ndim == len(shape) and out.shape[1:] == shape[1:] and len(out) >= shape[0]
    return fits and out.dtype == dtype and out.device.type == "cpu" and out.is_contiguous()
