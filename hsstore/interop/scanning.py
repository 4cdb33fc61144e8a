"""Going through a tree before anything is written: what each file says, and which tokens it has."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.errors import Stopped
from hsstore.interop.foreign import Broken, Fault, ForeignFile, Format, Inspection, Tokens
from hsstore.model.progress import Progress
from hsstore.storage.token_file import token_digest

THREADS = 4
BATCH_FILES = 256


# The xxh3_64 of a loss mask as uint8, and its length.
MaskDigest = tuple[int, int]


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """Token ids [n] int32 and loss mask [n] uint8, None where the tree has none."""

    ids: NDArray[np.int32]
    mask: NDArray[np.uint8] | None


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """One file of a tree: what its headers say, and the digest of its token ids, if it has any.

    ``tokens`` is kept only where it was wanted. From token ``tail`` to its end the file repeats
    one token that counts for no loss, as padding does.
    """

    file: ForeignFile
    inspection: Inspection
    faults: tuple[Fault, ...] = ()
    digest: bytes | None = None
    tokens: KeptTokens | None = None
    tail: int = 0
    mask: MaskDigest | None = None

    @property
    def length(self) -> int:
        """Its tokens; 0 where they are not known."""
        return self.inspection.tokens or 0


def scan(
    form: Format,
    files: Iterable[ForeignFile],
    *,
    vocab_size: int,
    keep: Callable[[bytes], bool],
    progress: Progress,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[ScannedFile]:
    """Every file in its order, read by several threads; states are read only within ``.gz``.

    ``keep`` says by the digest of its ids whether the tokens of a file are wanted. Raises Stopped
    once ``stop`` says so.
    """
    left = iter(files)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="scan") as threads:
        while batch := list(islice(left, BATCH_FILES)):
            if stop():
                raise Stopped("stopped before anything was written")
            for scanned in threads.map(lambda file: scan_file(form, file, vocab_size, keep), batch):
                progress.advance(1)
                yield scanned


def scan_file(
    form: Format, file: ForeignFile, vocab_size: int, keep: Callable[[bytes], bool]
) -> ScannedFile:
    """One file; all that is wrong with it is in ``faults``."""
    inspection = form.inspect(file)
    try:
        file.name.encode()
        tokens = form.tokens(file)
    except UnicodeEncodeError:
        return ScannedFile(file, inspection, (Fault("unreadable", "its name is not UTF-8"),))
    except Broken as broken:
        faults = inspection.faults or (broken.fault,)
        return ScannedFile(file, inspection, faults)
    highest = int(tokens.input_ids.max())
    if highest >= vocab_size:
        outside = Fault("values", f"token {highest} is outside the model's vocabulary")
        return ScannedFile(file, inspection, (outside,))
    ids, mask = tokens.input_ids.astype(np.int32), tokens.loss_mask
    digest = token_digest(ids)
    flags = None if mask is None else mask.view(np.uint8)
    kept = KeptTokens(ids, flags) if keep(digest) else None
    told = None if flags is None else mask_digest(flags)
    return ScannedFile(file, inspection, inspection.faults, digest, kept, tail_of(tokens), told)


def mask_digest(mask: NDArray[np.uint8]) -> MaskDigest:
    """By what two loss masks [n] of zeros and ones are compared."""
    return xxhash.xxh3_64_intdigest(np.ascontiguousarray(mask).data), len(mask)


def tail_of(tokens: Tokens) -> int:
    """Where the run of equal tokens without loss begins that ends a sample; its length if none."""
    ids, mask = tokens.input_ids, tokens.loss_mask
    same = ids == ids[-1]
    if mask is not None:
        same &= ~mask
    other = np.flatnonzero(~same)
    return int(other[-1]) + 1 if len(other) else 0
