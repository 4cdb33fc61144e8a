"""One pass over a sample's decoded rows, chunk by chunk as they are read.

Large samples are never whole in memory: what is kept of one is a few figures a row and layer, and
the up to 64 rows that statistics are taken from.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from hsstore.integrity.content.form import Bits, Form
from hsstore.model.manifest import Chunk, Statistics, StoredSample
from hsstore.storage import codec, digest

# Small enough that what is computed from a piece finds it in the processor's cache.
PIECE_BYTES = 256 << 10
# Positions whose rows are compared between samples that begin with the same tokens.
BEGINNINGS = (0, 1, 3, 7, 15)
SKETCH_VALUES = 32
# As many values decide whether two rows are worth comparing whole.
PROBED_VALUES = 8

TELLING_BYTES = 16


@dataclass(frozen=True, slots=True)
class Looked:
    """What one sample's rows are, as far as the checks ask.

    ``highest`` [rows, layers]: the largest bits of a row's values, the sign shifted out;
    ``repeats`` [rows, layers]: whether a row equals the one before; ``padding`` whether all of it
    is zeros; ``hashes``: xxh3_64 of rows by position, over the telling layers; ``sketches``
    float32 [beginnings, telling layers, values], for those of BEGINNINGS that there are.
    """

    stored: StoredSample
    content: str
    statistics: Statistics
    padding: bool
    highest: Bits
    repeats: NDArray[np.bool_]
    hashes: dict[int, int]
    sketches: NDArray[np.float32]


@dataclass(slots=True)
class SampleScan:
    """Takes the chunks of one sample in order; ``looked`` is there once all of them came.

    ``undecodable`` says which chunk did not decode, and why.
    """

    form: Form
    stored: StoredSample
    looked: Looked | None = None
    undecodable: str | None = None
    _pass: "_Pass | None" = None
    _memory: NDArray[np.uint8] | None = None
    _given_up: bool = False

    def add(self, chunk: Chunk, stored: memoryview | None) -> None:
        """Look at the next chunk; None in place of its bytes means that they are not right."""
        if self._given_up:
            return
        if stored is None or (decoded := self._decoded(chunk, stored)) is None:
            self._pass, self._memory, self._given_up = None, None, True
            return
        if self._pass is None:
            self._pass = _Pass(self.form, self.stored)
        self._pass.add(decoded)
        if self._pass.row == self.stored.rows:
            self.looked, self._pass, self._memory = self._pass.end(), None, None

    def _decoded(self, chunk: Chunk, stored: memoryview) -> memoryview | None:
        identity = self.form.identity
        if identity.codec == "none":
            return stored
        if self._memory is None:
            self._memory = np.empty(identity.geometry.chunk_bytes, np.uint8)
        try:
            codec.decompress(stored, self._memory)
        except ValueError as error:
            self.undecodable = f"chunk {chunk.chunk}: {error}"
            return None
        return self._memory.data


@dataclass(slots=True)
class _Pass:
    """The state of a scan under way; ``row`` is how many rows were seen."""

    form: Form
    stored: StoredSample
    row: int = 0
    padding: bool = True
    _content: Any = field(default_factory=xxhash.xxh3_128)
    _hashes: dict[int, int] = field(default_factory=dict)
    _sketches: list[NDArray[np.float32]] = field(default_factory=list)
    _last: Bits | None = None
    _kept: list[int] = field(init=False)
    _chosen_rows: NDArray[np.intp] = field(init=False)
    _chosen: NDArray[Any] = field(init=False)
    _highest: Bits = field(init=False)
    _repeats: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        rows, form = self.stored.rows, self.form
        count = min(rows, digest.STATISTICS_ROWS)
        self._kept = sorted({*(p for p in BEGINNINGS if p < rows), rows - 1})
        self._chosen_rows = np.arange(count) * rows // count
        self._chosen = np.empty((count, *form.shape), form.bits)
        self._highest = np.empty((rows, form.shape[0]), form.bits)
        self._repeats = np.zeros((rows, form.shape[0]), np.bool_)

    def add(self, decoded: memoryview) -> None:
        """Look at the rows of one whole decoded chunk."""
        rows = np.frombuffer(decoded, self.form.bits).reshape(-1, *self.form.shape)
        own = rows[: self.stored.rows - self.row]
        self.padding = self.padding and not rows[len(own) :].any()
        self._content.update(own.data)
        piece_rows = max(PIECE_BYTES // own[0].nbytes, 1)
        memory = np.empty_like(own[:piece_rows])
        for at in range(0, len(own), piece_rows):
            self._look(own[at : at + piece_rows], memory)

    def end(self) -> Looked:
        """All that was seen."""
        return Looked(
            stored=self.stored,
            content=self._content.hexdigest(),
            statistics=digest.statistics(self._chosen.view(self.form.stored)),
            padding=self.padding,
            highest=self._highest,
            repeats=self._repeats,
            hashes=self._hashes,
            sketches=np.array(self._sketches, np.float32),
        )

    def _look(self, piece: Bits, memory: Bits) -> None:
        after = self.row + len(piece)
        doubled = np.left_shift(piece, 1, out=memory[: len(piece)])
        doubled.max(axis=2, out=self._highest[self.row : after])
        self._note_repeats(piece)
        low, high = np.searchsorted(self._chosen_rows, [self.row, after])
        self._chosen[low:high] = piece[self._chosen_rows[low:high] - self.row]
        while self._kept and self._kept[0] < after:
            position = self._kept.pop(0)
            self._keep(position, piece[position - self.row])
        self.row = after

    def _note_repeats(self, piece: Bits) -> None:
        if self._last is not None:
            self._repeats[self.row] = (piece[0] == self._last).all(axis=1)
        step = max(piece.shape[2] // PROBED_VALUES, 1)
        probed = piece[:, :, ::step]
        row, layer = np.nonzero((probed[1:] == probed[:-1]).all(axis=2))
        if len(row):
            equal = (piece[row + 1, layer] == piece[row, layer]).all(axis=1)
            self._repeats[self.row + 1 + row, layer] = equal
        self._last = piece[-1].copy()

    def _keep(self, position: int, row: Bits) -> None:
        telling = row[self.form.telling]
        # Rows of a few bits are equal by chance.
        if telling.nbytes >= TELLING_BYTES:
            self._hashes[position] = xxhash.xxh3_64_intdigest(telling.data)
        if position in BEGINNINGS:
            step = max(telling.shape[1] // SKETCH_VALUES, 1)
            values = telling[:, ::step][:, :SKETCH_VALUES].copy()
            self._sketches.append(digest.as_float32(values.view(self.form.stored)))
