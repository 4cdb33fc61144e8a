"""A store as an iterable PyTorch dataset: samples in any order, resumed where it stopped."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sized
from typing import Any, Protocol, runtime_checkable

import xxhash
from torch.utils.data import DistributedSampler, IterableDataset, get_worker_info
from typing_extensions import TypeVar

from hsstore.errors import MalformedInput, SnapshotChanged
from hsstore.training.dataset import HiddenStateDataset
from hsstore.training.epochs import EpochSampler, Replaced
from hsstore.training.saved import checked
from hsstore.views.item import Item
from hsstore.views.options import one_of, whole_number

T_co = TypeVar("T_co", covariant=True, default=Item)

# What a state must share with the stream that takes it up, and why not if it does not.
_FIXED = {
    "rank": "of another rank",
    "ranks": "of another number of ranks",
    "worker": "of another DataLoader worker",
    "workers": "of another number of DataLoader workers",
}
_MEMBERS = {
    **dict.fromkeys((*_FIXED, "position"), int),
    **dict.fromkeys(("fingerprint", "snapshot_id", "passed"), str),
    "finished": bool,
}


@runtime_checkable
class StatefulOrder(Protocol):
    """An order that remembers by itself how far it was iterated.

    ``state_dict`` tells it between two indexes and at the end; an iteration that is begun after
    ``load_state_dict`` goes on behind them, and after an end begins the next epoch.
    """

    def state_dict(self) -> dict[str, Any]:
        """How far the iteration under way has come."""

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        """Begin the next iteration there."""


class HiddenStateStream(IterableDataset[T_co]):
    """The samples of a ``dataset`` in the order of an iterable of its indexes.

    Every rank and every DataLoader worker iterates over the whole ``order`` and serves its share:
    of the indexes in turn, each rank gets every ``ranks``-th, and of these each worker of it every
    so-many-th. So each index is served exactly once if the order is the same everywhere, and ranks
    differ by one sample at most. An order that is a rank's own already is given with ``ranks=1``.
    Without an ``order`` the samples come in dataset order, which reads the disk sequentially.

    Samples are skipped as the dataset's ``on_damage`` says; batches stay full then.

    ``state_dict`` tells where the iteration under way is and what it is of; the iteration that
    follows ``load_state_dict`` serves exactly the rest, and the one after it everything again.
    torchdata's StatefulDataLoader does both by itself, in every worker; the number of workers must
    be the same again. PyTorch's own DataLoader does so without workers only: with workers each has
    its own stream, and the state of the one in the main process does not move. The order is
    iterated anew and its beginning passed over, and compared with what was served; one that is a
    StatefulOrder goes on by its own state instead. An order that makes each epoch another one does
    so in every process by itself: with workers that are not persistent, tell it the epoch.
    """

    def __init__(
        self,
        dataset: HiddenStateDataset[T_co],
        order: Iterable[int] | None = None,
        *,
        rank: int = 0,
        ranks: int = 1,
        replaced: Replaced = "raise",
    ) -> None:
        """``order`` yields indexes of ``dataset``: a list, or a sampler.

        ``replaced`` says whether a state is taken up although shards were replaced since. Raises
        ValueError for a rank outside of its number, for an unknown option, and for several
        ``ranks`` with an order that is one rank's already, as hsstore's samplers and torch's tell.
        """
        rank, ranks = whole_number("rank", rank, 0), whole_number("ranks", ranks, 1)
        if rank >= ranks:
            raise ValueError(f"rank is {rank} of {ranks}; it must be from 0 to {ranks - 1}")
        one_of("replaced", replaced, ("raise", "accept"))
        if ranks > 1 and (dealt := _dealt(order)) > 1:
            raise ValueError(
                f"the order is one of {dealt} ranks' already, and would be dealt out again; make "
                "the stream with ranks=1"
            )
        self._dataset, self._replaced = dataset, replaced
        self._order: Iterable[int] = range(len(dataset)) if order is None else order
        self._rank, self._ranks = rank, ranks
        self._progress: _Progress | None = None
        self._to_resume: Mapping[str, Any] | None = None

    @property
    def dataset(self) -> HiddenStateDataset[T_co]:
        """What the samples are read from: its ``skipped`` counts for this stream too."""
        return self._dataset

    def __len__(self) -> int:
        """Samples of this rank in a whole iteration, with those skipped; TypeError if unknown."""
        if not isinstance(self._order, Sized):
            raise TypeError(f"the order, a {type(self._order).__name__}, does not tell its length")
        return len(range(self._rank, len(self._order), self._ranks))

    def __iter__(self) -> Iterator[T_co]:
        """Begin an iteration, where a loaded state says or else at the beginning.

        Raises MalformedInput where that state is of another stream or order, SnapshotChanged where
        the store is another one than it was.
        """
        # Not a generator: a state is taken up now, and told of, before the first sample is read.
        state, self._to_resume = self._to_resume, None
        self._progress = progress = _Progress()
        indexes = iter(self._order) if state is None else self._rest(state, progress)
        return self._served(indexes, progress)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iteration in this process is: a few plain values."""
        if self._to_resume is not None:
            return dict(self._to_resume)
        progress = self._progress or _Progress()
        return {
            **self._fixed(),
            "fingerprint": self._dataset.fingerprint,
            "snapshot_id": self._dataset.snapshot_id,
            "position": progress.position,
            "finished": progress.finished,
            "passed": progress.passed.hexdigest(),
            "order": self._order.state_dict() if isinstance(self._order, StatefulOrder) else None,
        }

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Have the next iteration serve the rest; it refuses the state of another stream.

        Raises MalformedInput for anything else than the state of a stream.
        """
        self._to_resume = dict(checked(state_dict, _MEMBERS, "a stream"))

    def __getstate__(self) -> dict[str, Any]:
        # A copy, as in a spawned worker, has no iteration under way; a loaded state goes along.
        return {**self.__dict__, "_progress": None}

    # -- one iteration ------------------------------------------------------------------------

    def _served(self, indexes: Iterator[int], progress: "_Progress") -> Iterator[T_co]:
        worker, workers = _worker()
        own, shares = self._rank + self._ranks * worker, self._ranks * workers
        for index in indexes:
            mine = progress.position % shares == own
            progress.pass_by(index)
            if mine:
                yield from self._dataset.readable([index])
        progress.finished = True

    def _rest(self, state: Mapping[str, Any], progress: "_Progress") -> Iterator[int]:
        """The indexes behind a state, with ``progress`` brought to where it was."""
        self._refuse_another(state)
        if isinstance(self._order, StatefulOrder):
            if state.get("order") is None:
                raise MalformedInput(
                    "the state is of an order that has no state of its own, and this one has",
                    remedy="give the order that the state was taken with, or begin a new epoch",
                )
            self._order.load_state_dict(state["order"])
            progress.position, progress.finished = state["position"], state["finished"]
            return iter(()) if progress.finished else iter(self._order)
        indexes = iter(self._order)
        for index in itertools.islice(indexes, state["position"]):
            progress.pass_by(index)
        if progress.passed.hexdigest() != state["passed"]:
            raise MalformedInput(
                f"the order does not begin with the {state['position']} indexes that were served "
                "before the state was taken",
                remedy="give the same order: a list, or a sampler with the same seed and epoch",
            )
        return indexes

    def _fixed(self) -> dict[str, Any]:
        worker, workers = _worker()
        return {
            "rank": self._rank,
            "ranks": self._ranks,
            "worker": worker,
            "workers": workers,
        }

    def _refuse_another(self, state: Mapping[str, Any]) -> None:
        for name, own in self._fixed().items():
            if state[name] != own:
                raise MalformedInput(
                    f"the state is {_FIXED[name]} ({name} {state[name]}, here {own})",
                    remedy="resume with what the state was taken with, or begin a new epoch",
                )
        if state["fingerprint"] != self._dataset.fingerprint:
            raise SnapshotChanged(
                "the dataset has other samples, or other lengths, than when the state was taken",
                remedy="open the same samples with the same options, or begin a new epoch",
            )
        if state["snapshot_id"] != self._dataset.snapshot_id and self._replaced == "raise":
            raise SnapshotChanged(
                "shards were replaced since the state was taken; the samples are the same",
                remedy='go on with the replacements: make the stream with replaced="accept"',
            )


class _Progress:
    """How much of an order one iteration has passed by, and which indexes those were."""

    def __init__(self) -> None:
        self.position = 0
        self.finished = False
        self.passed = xxhash.xxh3_64()

    def pass_by(self, index: int) -> None:
        self.position += 1
        self.passed.update(int(index).to_bytes(8, "little", signed=True))


def _dealt(order: Iterable[int] | None) -> int:
    """Among how many ranks an order is dealt out, as far as it tells."""
    if isinstance(order, EpochSampler):
        return order.world
    return order.num_replicas if isinstance(order, DistributedSampler) else 1


def _worker() -> tuple[int, int]:
    """Which DataLoader worker it is and how many there are; (0, 1) in the main process."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)
