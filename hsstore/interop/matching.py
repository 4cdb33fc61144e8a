"""Which file of a tree holds which sample, told by its token ids and by nothing else."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.foreign import Fault
from hsstore.interop.scanning import MaskDigest, ScannedFile, mask_digest
from hsstore.storage.store import Store
from hsstore.storage.token_file import token_digest
from hsstore.storage.tokenised import TokenisedSample


@dataclass(slots=True)
class Rows:
    """The samples that states are wanted for, in order: key, ids and mask by digest, length."""

    keys: list[str] = field(default_factory=list)
    digests: list[bytes] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    masks: list[MaskDigest] = field(default_factory=list)

    @classmethod
    def of(cls, samples: Iterable[TokenisedSample]) -> "Rows":
        """Those of a dataset."""
        rows = cls()
        for sample in samples:
            rows.add(sample.key, sample.input_ids, sample.loss_mask)
        return rows

    @classmethod
    def of_store(cls, store: Store) -> "Rows":
        """Those of a store. Raises InvalidDocument, OSError."""
        rows = cls()
        for shard in range(store.plan.shards):
            for key, ids, mask in store.tokens(shard).samples():
                rows.add(key, ids, mask)
        return rows

    def add(self, key: str, ids: NDArray[np.int32], mask: NDArray[np.uint8]) -> None:
        """One more sample, by its token ids [n] and loss mask [n]."""
        self.keys.append(key)
        self.digests.append(token_digest(ids))
        self.lengths.append(len(ids))
        self.masks.append(mask_digest(mask))

    def by_digest(self) -> Mapping[bytes, list[int]]:
        """The numbers of the samples with the same ids, in order."""
        found: dict[bytes, list[int]] = defaultdict(list)
        for number, digest in enumerate(self.digests):
            found[digest].append(number)
        return found


@dataclass(slots=True)
class Match:
    """What became of each file: it holds a sample, or it is in ``extra`` with the reason why not.

    ``files`` is by sample. ``trimmed`` lists the samples whose files hold padding behind them.
    ``surplus`` lists by its samples the files that hold the same tokens as others do.
    """

    files: dict[int, ScannedFile] = field(default_factory=dict)
    broken: dict[int, tuple[ScannedFile, Fault]] = field(default_factory=dict)
    extra: list[tuple[ScannedFile, Fault]] = field(default_factory=list)
    trimmed: set[int] = field(default_factory=set)
    surplus: list[tuple[list[int], list[ScannedFile]]] = field(default_factory=list)


def match(rows: Rows, scanned: Sequence[ScannedFile]) -> Match:
    """Give every sample its file, by the digest of its ids.

    Of samples with the same ids each gets a file of its own: the one it is named after, else the
    one of its number, else the next. A file with a fault holds no sample, and says why it has none.
    """
    found, by_digest = Match(), rows.by_digest()
    names = {key: number for number, key in enumerate(rows.keys)}
    groups: dict[bytes, list[ScannedFile]] = defaultdict(list)
    lengths = sorted(set(rows.lengths))
    for one in scanned:
        digest, trimmed = _wanted(one, lengths, by_digest)
        if one.faults:
            found.extra.append((one, one.faults[0]))
            _explain(found, one, by_digest.get(digest, []), names.get(one.file.name))
        elif digest not in by_digest:
            found.extra.append((one, Fault("unmatched", "no sample of the dataset has its tokens")))
        else:
            groups[digest].append(one)
            found.trimmed.update(by_digest[digest] if trimmed else ())
    for digest, files in groups.items():
        _assign(found, rows, by_digest[digest], files)
    for sample in found.files:
        found.broken.pop(sample, None)
    return found


def _wanted(
    one: ScannedFile, lengths: list[int], by_digest: Mapping[bytes, list[int]]
) -> tuple[bytes, bool]:
    """The digest by which a file is looked for: of all its ids, or of those before its padding.

    Padded files are matched as padded only by the one sample that they can be of.
    """
    digest = one.digest or b""
    if digest in by_digest or one.tokens is None:
        return digest, False
    ids = one.tokens.ids
    between = lengths[bisect_left(lengths, max(one.tail, 1)) : bisect_left(lengths, len(ids))]
    shorter = {token_digest(ids[:length]) for length in between} & by_digest.keys()
    return (shorter.pop(), True) if len(shorter) == 1 else (digest, False)


def _explain(found: Match, one: ScannedFile, samples: list[int], named: int | None) -> None:
    """Remember a broken file as the reason of samples that no other file holds."""
    for sample in {*samples, *(() if named is None else (named,))}:
        found.broken.setdefault(sample, (one, one.faults[0]))


def _assign(found: Match, rows: Rows, samples: list[int], files: list[ScannedFile]) -> None:
    left = list(files)
    for sample in sorted(samples, key=lambda sample: not _own(rows, sample, left)):
        if not left:
            return
        own = _own(rows, sample, left)
        chosen = own[0] if own else left[0]
        left.remove(chosen)
        found.files[sample] = chosen
    if left:
        found.surplus.append((samples, left))


def _own(rows: Rows, sample: int, files: list[ScannedFile]) -> list[ScannedFile]:
    """The files that are a sample's by name; else those by number."""
    named = [one for one in files if one.file.name == rows.keys[sample]]
    return named or [one for one in files if one.file.row == sample]


def twins(scanned: Iterable[ScannedFile]) -> Iterator[list[ScannedFile]]:
    """Sound files with one number in one folder: ``data_5.ckpt`` beside ``data_5.ckpt.gz``."""
    groups: dict[tuple[str, int], list[ScannedFile]] = defaultdict(list)
    for one in scanned:
        if not one.faults and one.file.row is not None:
            groups[one.file.name.rpartition("/")[0], one.file.row].append(one)
    return (group for group in groups.values() if len(group) > 1)
