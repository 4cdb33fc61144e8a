"""Which file of a tree holds which sample of a dataset, told by token ids before anything else."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, Self, TypeVar

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.interop.foreign import Tokens
from hsstore.interop.tokens import tail_of
from hsstore.storage.digest_index import DIGEST_BYTES, DigestIndex
from hsstore.storage.store import Store
from hsstore.storage.token_file import token_digest
from hsstore.storage.tokenised import TokenisedSample

UNMATCHED = "no sample of the dataset has its tokens"
Row = tuple[str, NDArray[np.int32], NDArray[np.uint8]]


class Rows:
    """The samples of a dataset by token digest: 40 bytes a row and its key, however long it is.

    ``keys``, ``lengths`` (int64 [rows], tokens), ``digests`` (S16) and ``masks`` (uint64, as
    ``mask_digest``) are in the dataset's order.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        """Key, token ids [n] and loss mask [n] of each row."""
        self.keys: list[str] = []
        lengths: list[int] = []
        digests: list[bytes] = []
        masks: list[int] = []
        for key, ids, mask in rows:
            self.keys.append(key)
            lengths.append(len(ids))
            digests.append(token_digest(ids))
            masks.append(mask_digest(mask))
        self.lengths = np.array(lengths, np.int64)
        self.digests = np.array(digests, f"S{DIGEST_BYTES}")
        self.masks = np.array(masks, np.uint64)
        self._index = DigestIndex(self.digests)
        self._every_length = np.unique(self.lengths)
        self._by_key = {key: row for row, key in enumerate(self.keys)}

    @classmethod
    def of(cls, samples: Iterable[TokenisedSample]) -> Self:
        """Those of a dataset."""
        return cls((sample.key, sample.input_ids, sample.loss_mask) for sample in samples)

    @classmethod
    def of_store(cls, store: Store) -> Self:
        """Those of a store. Raises InvalidDocument, OSError."""
        return cls(
            row for shard in range(store.plan.shards) for row in store.tokens(shard).samples()
        )

    def __len__(self) -> int:
        return len(self.keys)

    def begins_like(self, other: "Rows") -> bool:
        """Whether the rows of ``other`` are the first of these, by their tokens."""
        return np.array_equal(self.digests[: len(other)], other.digests)

    def with_tokens(self, digest: bytes) -> list[int]:
        """The rows whose token ids have a digest, in order."""
        return self._index.find_all(digest)

    def named(self, *names: str) -> int | None:
        """The row whose own key is one of these names; a number that stands for a key is none."""
        found = ((self._by_key.get(name), name) for name in names)
        return next((row for row, name in found if row is not None and name != str(row)), None)

    def lengths_between(self, low: int, high: int) -> list[int]:
        """The lengths that rows have, from ``low`` to below ``high``."""
        begin, end = np.searchsorted(self._every_length, (low, high))
        found: list[int] = self._every_length[begin:end].tolist()
        return found

    def known(self, digests: Sequence[bytes]) -> list[bytes]:
        """Those of the digests that rows have."""
        told = self._index.hold(digests)
        return [digest for digest, known in zip(digests, told, strict=True) if known]


def mask_digest(mask: NDArray[np.uint8]) -> int:
    """By what two loss masks [n] of zeros and ones are compared: their xxh3_64."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(mask).data)


@dataclass(frozen=True, slots=True)
class Held:
    """The tokens that a file holds: how many, and the digest of all.

    ``sample`` is the digest of those before its padding, ``padding`` how many are behind them.
    """

    tokens: int
    digest: bytes
    sample: bytes
    padding: int = 0


def held_in(tokens: Tokens, rows: Rows | None) -> Held:
    """What a file is matched by: all its ids, or those before what can be padding.

    Padding is told by the rows alone, and only where it leaves the ids of one of them: a file that
    could end in two places is taken for neither.
    """
    ids = tokens.input_ids.astype(np.int32)
    count, digest = len(ids), token_digest(ids)
    if rows is None or rows.with_tokens(digest):
        return Held(count, digest, digest)
    lengths = rows.lengths_between(max(tail_of(tokens), 1), count)
    shorter = {token_digest(ids[:length]): length for length in lengths}
    known = rows.known(list(shorter))
    if len(known) != 1:
        return Held(count, digest, digest)
    return Held(count, digest, known[0], count - shorter[known[0]])


class SampleFile(Protocol):
    """A file as matching sees it."""

    @property
    def held(self) -> Held | None:
        """The tokens in it, None where it tells none."""
        ...

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with it."""
        ...

    @property
    def number(self) -> int | None:
        """The number that its name tells, which may be its row."""
        ...

    @property
    def names(self) -> tuple[str, ...]:
        """What the key of its sample may be."""
        ...


F = TypeVar("F", bound=SampleFile)


@dataclass(slots=True)
class Match(Generic[F]):
    """Which row each file holds.

    ``files`` are sound ones by row; ``broken`` those of rows without one. ``surplus`` lists, with
    their rows, the sound files that hold the same tokens as the files of these rows; ``unmatched``
    the sound ones whose tokens are of no row. ``numbered`` says whether names tell rows.
    """

    files: dict[int, F] = field(default_factory=dict)
    broken: dict[int, F] = field(default_factory=dict)
    surplus: list[tuple[list[int], list[F]]] = field(default_factory=list)
    unmatched: list[F] = field(default_factory=list)
    numbered: bool = False

    @property
    def padded(self) -> dict[int, F]:
        """The files with padding behind their sample, by row."""
        return {row: file for row, file in self.files.items() if file.held and file.held.padding}


def match(files: Sequence[F], rows: Rows) -> Match[F]:
    """Give every row its file, by the digest of its ids.

    Of rows with the same ids each gets a file of its own: the one that has its key as a name, else
    the one of its number, else the next. Sound ones come first: a broken copy takes no row from
    them. What tells no tokens is broken, and known by its name, or by its number where most other
    files have the number of their row.
    """
    found: Match[F] = Match()
    for digest, group in _by_tokens(files, sound=True).items():
        samples = rows.with_tokens(digest)
        if not samples:
            found.unmatched += group
            continue
        given, left = _assigned(samples, rows, group)
        found.files |= given
        if left:
            found.surplus.append((samples, left))
    for digest, group in _by_tokens(files, sound=False).items():
        free = [row for row in rows.with_tokens(digest) if row not in found.files]
        found.broken |= _assigned(free, rows, group)[0]
    found.numbered = _numbered({**found.files, **found.broken})
    _place_by_name(found, files, rows)
    return found


def _by_tokens(files: Iterable[F], *, sound: bool) -> dict[bytes, list[F]]:
    groups: dict[bytes, list[F]] = defaultdict(list)
    for file in files:
        if file.sound is sound and file.held is not None:
            groups[file.held.sample].append(file)
    return groups


def _assigned(
    samples: Sequence[int], rows: Rows, files: Sequence[F]
) -> tuple[dict[int, F], list[F]]:
    """A file for each row as far as they go, and the files that are left."""
    left, given = list(files), {}
    for row in sorted(samples, key=lambda row: _own(rows, row, left) is None):
        if not left:
            break
        own = _own(rows, row, left)
        given[row] = left.pop(0 if own is None else own)
    return given, left


def _own(rows: Rows, row: int, files: Sequence[SampleFile]) -> int | None:
    """Which of the files is the row's by name, else by number."""
    named = (at for at, file in enumerate(files) if rows.keys[row] in file.names)
    numbered = (at for at, file in enumerate(files) if file.number == row)
    return next(named, next(numbered, None))


def _numbered(taken: dict[int, F]) -> bool:
    """Whether most files that have a number and a row have the same one."""
    told = [(file.number, row) for row, file in taken.items() if file.number is not None]
    return 2 * sum(number == row for number, row in told) > len(told)


def _place_by_name(found: Match[F], files: Iterable[F], rows: Rows) -> None:
    """Broken files that have no row yet, where no other file is of it."""
    placed = {id(file) for file in found.broken.values()}
    for file in files:
        if file.sound or id(file) in placed:
            continue
        row = rows.named(*file.names)
        row = file.number if row is None and found.numbered else row
        if row is not None and row < len(rows) and row not in found.files:
            found.broken.setdefault(row, file)
