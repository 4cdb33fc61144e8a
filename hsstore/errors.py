"""Every error that hsstore raises on purpose.

::

    HsstoreError
    ├── MalformedInput        a dataset, a model folder or an option value is not what it must be
    ├── StoreError            something about one store
    │   ├── NotAStore
    │   ├── StoreExists
    │   ├── UnsupportedFormat     written by a newer hsstore
    │   ├── InvalidDocument       a sealed document is torn, edited or not of its kind
    │   ├── ClaimedByAnother      a live writer holds what was asked for
    │   ├── SnapshotChanged       the store is no longer the one that was opened
    │   └── SampleUnavailable
    │       ├── SampleMissing     its shard is not committed yet
    │       ├── SampleAbsent      its shard is committed without it
    │       └── SampleDamaged     its bytes differ from the manifest
    ├── SourceError           what computes the hidden states
    │   ├── SourceUnavailable
    │   └── IdentityMismatch      another model, layer set or dtype than the store's
    ├── StorageFailed         the filesystem refused an operation
    │   └── OutOfSpace
    └── Stopped               asked to stop; what was journalled is kept

Each class has a stable ``kind``; each error says what, where (``place``) and what to do next
(``remedy``), and survives pickling, so that it can cross from a DataLoader worker.
"""

import errno
from typing import ClassVar, Self


class HsstoreError(Exception):
    """Base of all errors of hsstore: ``kind``, ``message``, ``place`` and ``remedy``."""

    kind: ClassVar[str] = "error"

    def __init__(
        self, message: str, *, place: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.place = place
        self.remedy = remedy

    def __str__(self) -> str:
        line = f"{self.place}: {self.message}" if self.place else self.message
        return f"{line}; {self.remedy}" if self.remedy else line

    def __reduce__(self) -> tuple[object, ...]:
        return _restore, (type(self), self.message, self.place, self.remedy)


def _restore(
    error: type[HsstoreError], message: str, place: str | None, remedy: str | None
) -> HsstoreError:
    return error(message, place=place, remedy=remedy)


class MalformedInput(HsstoreError):
    """A dataset, a model folder or a value is not what it must be."""

    kind = "malformed-input"


class StoreError(HsstoreError):
    """Something about one store."""

    kind = "store"


class NotAStore(StoreError):
    """The path holds no hsstore store."""

    kind = "not-a-store"


class StoreExists(StoreError):
    """The path to create a store at is taken."""

    kind = "store-exists"


class UnsupportedFormat(StoreError):
    """A document was written by a newer format version than this hsstore reads."""

    kind = "unsupported-format"


class InvalidDocument(StoreError):
    """A sealed document is torn, edited, or not of the kind that its place demands."""

    kind = "invalid-document"


class ClaimedByAnother(StoreError):
    """A live writer holds what was asked for."""

    kind = "claimed-by-another"


class SnapshotChanged(StoreError):
    """The store is no longer the one that was opened."""

    kind = "snapshot-changed"


class SampleUnavailable(StoreError):
    """A sample cannot be served."""

    kind = "sample-unavailable"


class SampleMissing(SampleUnavailable):
    """The sample's shard is not committed yet."""

    kind = "sample-missing"


class SampleAbsent(SampleUnavailable):
    """The sample's shard is committed without it."""

    kind = "sample-absent"


class SampleDamaged(SampleUnavailable):
    """The sample's stored bytes differ from what its manifest says."""

    kind = "sample-damaged"


class SourceError(HsstoreError):
    """What computes the hidden states cannot be used."""

    kind = "source"


class SourceUnavailable(SourceError):
    """The source cannot be reached or loaded."""

    kind = "source-unavailable"


class IdentityMismatch(SourceError):
    """The source is another model, layer set, norm or dtype than the store's."""

    kind = "identity-mismatch"


class StorageFailed(HsstoreError):
    """The filesystem refused an operation."""

    kind = "storage-failed"

    @classmethod
    def from_os(cls, error: OSError) -> Self:
        """The same failure as one line: what the system said, where, and what to do next."""
        out_of_space = error.errno in OUT_OF_SPACE
        chosen = OutOfSpace if out_of_space and not issubclass(cls, OutOfSpace) else cls
        place = None if error.filename is None else str(error.filename)
        remedy = _REMEDIES.get(error.errno or 0)
        return chosen(  # type: ignore[return-value]
            error.strerror or str(error), place=place, remedy=remedy
        )


class OutOfSpace(StorageFailed):
    """No space, quota or file-size allowance is left."""

    kind = "out-of-space"


class Stopped(HsstoreError):
    """Asked to stop; what was journalled is kept."""

    kind = "stopped"


OUT_OF_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_REMEDIES = {
    errno.ENOSPC: "free space, then run the same command again",
    errno.EDQUOT: "free space, then run the same command again",
    errno.EFBIG: "raise the limit of file sizes (ulimit -f), or use a filesystem that takes larger "
    "files; then run the same command again",
    errno.EROFS: "the filesystem is read-only: remount it writable or choose another",
    errno.EACCES: "check the permissions of the path",
    errno.EPERM: "check the permissions of the path",
    errno.EIO: "see what dmesg says, mend the storage, then run the same command again",
    errno.ENOENT: "check the path, and that nothing was moved away or mounted over it",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
}
