"""Samplers whose place in an epoch can be saved: where training stood is two numbers."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Sampler

from hsstore.errors import MalformedInput, SnapshotChanged
from hsstore.training.saved import checked
from hsstore.views.options import one_of, whole_number

T = TypeVar("T")
Replaced = Literal["raise", "accept"]

# What a state says beside the options that made its order.
EPOCH, POSITION, FINGERPRINT, SNAPSHOT, OPTIONS = (
    *("epoch", "position"),
    *("fingerprint", "snapshot_id", "options"),
)
_MEMBERS = {EPOCH: int, POSITION: int, FINGERPRINT: str, SNAPSHOT: str, OPTIONS: dict}


class Samples(Protocol):
    """What an order is made from; ``HiddenStateDataset`` has it without reading payload."""

    @property
    def lengths(self) -> NDArray[np.int32]:
        """Tokens of every sample, int32 [samples]."""
        ...

    @property
    def shards(self) -> NDArray[np.int64]:
        """The shard of every sample, int64 [samples]."""
        ...

    @property
    def fingerprint(self) -> str:
        """Names the samples and their lengths."""
        ...

    @property
    def snapshot_id(self) -> str:
        """Names the files that they are read from."""
        ...


class EpochSampler(Sampler[T], ABC):
    """One rank's turns of an epoch, the same for the same options, store and epoch.

    Each iteration is of the next epoch, also behind one that was left early; ``set_epoch`` says
    which it is to be. Were that one begun anew, ranks and workers would come to differ: some have
    read ahead to the end of their share when the loop leaves it, and others have not. (The first
    one behind a loaded state that is at an epoch's beginning is begun anew, once.)

    ``state_dict`` is of the turns that were handed out. torchdata's StatefulDataLoader keeps the
    state that belongs to the batch in the loop's hands. A plain DataLoader with workers is ahead of
    the loop: there ``state_at`` makes the state from what the loop has counted. All ranks have the
    same state, so that one of them may save it for all.

    Attributes:
        epoch: that of the iteration under way; without one, that of the next.
        world: among how many ranks an epoch is dealt out.

    """

    def __init__(
        self, samples: Samples, *, options: Mapping[str, Any], rank: int, world: int,
        replaced: Replaced,
    ) -> None:  # fmt: skip
        """Check what all samplers share; ``options`` are all that the order depends on.

        Raises ValueError for a rank outside of its world and for an unknown option.
        """
        rank, world = whole_number("rank", rank, 0), whole_number("world", world, 1)
        if rank >= world:
            raise ValueError(f"rank {rank} is not one of {world}")
        one_of("replaced", replaced, ("raise", "accept"))
        self.epoch = 0
        self._samples = samples
        self._fingerprint = samples.fingerprint
        self._options = {"order": type(self).__name__, "world": world, **options}
        self._rank, self.world = rank, world
        self._replaced = replaced
        self._start = 0
        # torchdata's loader takes up the state of an epoch's end by an iteration that it leaves.
        self._loaded_whole = False
        self._running: _Iteration[T] | None = None
        self._made: tuple[int, Sequence[T]] | None = None

    @abstractmethod
    def _turns(self, epoch: int) -> Sequence[T]:
        """The turns of this rank in an epoch, in order."""

    def turns(self, epoch: int) -> Sequence[T]:
        """The turns of this rank in an epoch; those of the last epoch asked for are kept."""
        if self._made is None or self._made[0] != epoch:
            self._made = epoch, self._turns(epoch)
        return self._made[1]

    def __len__(self) -> int:
        """How many turns this rank has in the epoch."""
        return len(self.turns(self.epoch))

    def __iter__(self) -> Iterator[T]:
        if self._running is not None:
            self.epoch = self._running.epoch + (not self._loaded_whole)
            self._running, self._loaded_whole = None, False
        return _Iteration(self)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch; a place within it that was loaded is kept.

        ValueError for anything but a number from 0 on.
        """
        self._running, self._loaded_whole = None, False
        if epoch != self.epoch:
            self.epoch, self._start = whole_number("epoch", epoch, 0), 0

    def __getstate__(self) -> dict[str, Any]:
        # A copy, as in a spawned worker, has no iteration under way, and makes its turns itself.
        return {**self.__dict__, "_running": None, "_made": None}

    # -- saving and going on ------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Where the newest iteration is, as plain numbers and strings."""
        if self._running is None:
            return self._state(self.epoch, self._start)
        return self._state(self._running.epoch, self._running.position)

    def state_at(self, epoch: int, position: int) -> dict[str, Any]:
        """The state after ``position`` turns of each rank in an epoch.

        ValueError below 0, and for more turns than a rank has in it.
        """
        epoch, position = whole_number("epoch", epoch, 0), whole_number("position", position, 0)
        # A lower rank may have a turn more.
        if position > len(self.turns(epoch)) + (self._rank > 0):
            raise ValueError(
                f"position is {position}; a rank has {len(self.turns(epoch))} turns in epoch "
                f"{epoch}: count anew in each epoch"
            )
        return self._state(epoch, position)

    def _state(self, epoch: int, position: int) -> dict[str, Any]:
        return {
            EPOCH: epoch,
            POSITION: position,
            FINGERPRINT: self._fingerprint,
            SNAPSHOT: self._samples.snapshot_id,
            OPTIONS: dict(self._options),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration go on where the state was saved.

        Raises MalformedInput for anything else than a state of such a sampler with the same
        options; SnapshotChanged where the store has other samples than it had, and where shards
        were replaced since (unless the sampler was made with ``replaced="accept"``).
        """
        self._refuse(checked(state, _MEMBERS, "an order"))
        self.epoch, self._start = state[EPOCH], state[POSITION]
        self._running, self._loaded_whole = None, not self._start

    def _refuse(self, state: Mapping[str, Any]) -> None:
        """Raise where the state is of another order."""
        options = state[OPTIONS]
        for name in sorted(options.keys() | self._options):
            then, now = options.get(name), self._options.get(name)
            if then != now:
                raise MalformedInput(
                    f"the order was saved with {name}={then!r}, and this one has {name}={now!r}",
                    remedy="make the sampler with the options of then, or begin a new epoch",
                )
        if state[FINGERPRINT] != self._fingerprint:
            raise SnapshotChanged(
                "the store has other samples than when the order was saved",
                remedy="open the same samples, or begin a new epoch",
            )
        if state[SNAPSHOT] != self._samples.snapshot_id and self._replaced == "raise":
            raise SnapshotChanged(
                "shards were replaced since the order was saved; the samples are the same",
                remedy='go on with the replacements: make the sampler with replaced="accept"',
            )

    # -- for the iterations -------------------------------------------------------------------

    def _begin(self, iteration: "_Iteration[T]") -> tuple[int, int]:
        """The epoch and place that an iteration begins with."""
        start, self._start = self._start, 0
        self._running = iteration
        return self.epoch, start

    def _end(self, iteration: "_Iteration[T]") -> None:
        """The epoch is over, unless another iteration has begun meanwhile."""
        if self._running is iteration:
            self.epoch, self._running = iteration.epoch + 1, None
            self._loaded_whole = False


class _Iteration(Iterator[T]):
    """One pass. It begins with its first turn: loaders make iterators that they never use."""

    def __init__(self, sampler: EpochSampler[T]) -> None:
        self.epoch, self.position = -1, 0
        self._sampler = sampler
        self._turns: Sequence[T] | None = None

    def __next__(self) -> T:
        if self._turns is None:
            self.epoch, self.position = self._sampler._begin(self)  # noqa: SLF001 - its own sampler
            self._turns = self._sampler.turns(self.epoch)
        if self.position >= len(self._turns):
            self._sampler._end(self)  # noqa: SLF001 - its own sampler
            raise StopIteration
        self.position += 1
        return self._turns[self.position - 1]
