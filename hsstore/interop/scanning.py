"""Going through a tree before anything is written: what each file says, and which tokens it has."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from hsstore.errors import Stopped
from hsstore.interop.foreign import Fault, ForeignFile, Format, Inspection
from hsstore.interop.matching import Held, Rows, held_in, mask_digest
from hsstore.interop.tokens import tail_of
from hsstore.model.progress import Progress

THREADS = 4
BATCH_FILES = 256


@dataclass(frozen=True, slots=True)
class KeptTokens:
    """Token ids [n] int32 and loss mask [n] uint8, None where the tree has none."""

    ids: NDArray[np.int32]
    mask: NDArray[np.uint8] | None


@dataclass(frozen=True, slots=True)
class ScannedFile:
    """One file of a tree: what its headers say, and what it is matched by, if it has token ids.

    ``tokens`` is kept only where no dataset has them. From token ``tail`` to its end the file
    repeats one token that counts for no loss, as padding does. ``mask`` is the digest of its mask.
    """

    file: ForeignFile
    inspection: Inspection
    faults: tuple[Fault, ...] = ()
    held: Held | None = None
    tokens: KeptTokens | None = None
    tail: int = 0
    mask: int | None = None

    @property
    def length(self) -> int:
        """Its tokens; 0 where they are not known."""
        return self.inspection.tokens or 0

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong with it."""
        return not self.faults

    @property
    def number(self) -> int | None:
        """The number that its name tells."""
        return self.file.row

    @property
    def names(self) -> tuple[str, ...]:
        """The keys that its sample may have: its path, and the stem of its name."""
        return self.file.name, self.file.name.rpartition("/")[2].partition(".")[0]


def scan(
    form: Format,
    files: Iterable[ForeignFile],
    *,
    vocab_size: int,
    rows: Rows | None,
    progress: Progress,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[ScannedFile]:
    """Every file in its order, read by several threads; states are read only within ``.gz``.

    ``rows`` are those of the dataset; the tokens of files are kept where there is none. Raises
    Stopped once ``stop`` says so.
    """
    left = iter(files)
    with ThreadPoolExecutor(THREADS, thread_name_prefix="scan") as threads:
        while batch := list(islice(left, BATCH_FILES)):
            if stop():
                raise Stopped("stopped before anything was written")
            for scanned in threads.map(lambda file: scan_file(form, file, vocab_size, rows), batch):
                progress.advance(1)
                yield scanned


def scan_file(form: Format, file: ForeignFile, vocab_size: int, rows: Rows | None) -> ScannedFile:
    """One file; all that is wrong with it is in ``faults``."""
    inspection, tokens = form.look(file)
    try:
        file.name.encode()
    except UnicodeEncodeError:
        return ScannedFile(file, inspection, (Fault("unreadable", "its name is not UTF-8"),))
    if tokens is None:
        return ScannedFile(file, inspection, inspection.faults)
    highest = int(tokens.input_ids.max())
    if highest >= vocab_size:
        outside = Fault("values", f"token {highest} is outside the model's vocabulary")
        return ScannedFile(file, inspection, (outside,))
    mask = None if tokens.loss_mask is None else tokens.loss_mask.view(np.uint8)
    return ScannedFile(
        file,
        inspection,
        inspection.faults,
        held_in(tokens, rows),
        KeptTokens(tokens.input_ids.astype(np.int32), mask) if rows is None else None,
        tail_of(tokens),
        None if mask is None else mask_digest(mask),
    )
