"""Samples that were left out because they could not be read: counted, logged and bounded."""

import errno
import logging
from typing import Any

import torch

from hsstore.errors import HsstoreError, SampleDamaged, StorageFailed

_REASONS = (SampleDamaged, StorageFailed)
_log = logging.getLogger(__name__)


class Skipped:
    """Which positions of a dataset were left out, and of which kind their errors were.

    The record lies in shared memory: the workers of a DataLoader, forked or spawned, and their
    parent see one and the same, and the bound holds for all of them together. A pickled copy that
    is no worker's begins with what was known and goes its own way.
    """

    def __init__(self, positions: int, most: int) -> None:
        """None of so many positions is left out yet; ``most`` may be."""
        self._most = most
        self._kinds = _shared(torch.zeros(positions, dtype=torch.uint8))

    def leave_out(self, position: int, error: HsstoreError) -> None:
        """Count and log it, once; raise where more than ``most`` positions are left out by now.

        An error that says nothing about the bytes of one sample, such as that it is missing, is
        raised as it is.
        """
        kind = _kind(error)
        if kind is None:
            raise error
        first = not self._kinds[position]
        self._kinds[position] = 1 + kind
        count = int(self._kinds.count_nonzero())
        if count > self._most:
            raise type(error)(
                f"{count} samples could not be read, more than max_skipped={self._most}; "
                f"the last: {error.message}",
                place=error.place,
                remedy=error.remedy,
            ) from error
        if first:
            _log.warning("left out %d of at most %d samples: %s", count, self._most, error)

    def reasons(self) -> dict[int, str]:
        """The ``kind`` of the error by position."""
        positions = self._kinds.nonzero().flatten().tolist()
        return {at: _REASONS[int(self._kinds[at]) - 1].kind for at in positions}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._kinds = _shared(self._kinds)


def _shared(kinds: torch.Tensor) -> torch.Tensor:
    """The same values in shared memory; themselves where they lie there."""
    shared: torch.Tensor = kinds.share_memory_()  # type: ignore[no-untyped-call]
    return shared


def _kind(error: HsstoreError) -> int | None:
    """Which of the reasons it is; None for an error that must not be skipped."""
    if isinstance(error, SampleDamaged):
        return 0
    cause = error.__cause__
    unreadable = isinstance(cause, OSError) and cause.errno == errno.EIO
    return 1 if isinstance(error, StorageFailed) and unreadable else None
