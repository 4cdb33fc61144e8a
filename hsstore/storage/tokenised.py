"""Tokenised datasets: JSON lines with ``input_ids``, and optionally ``loss_mask`` and ``id``.

A file is streamed: one line and the keys seen so far are all that is in memory. Whatever is
wrong is refused with its file and line; nothing is skipped, truncated or guessed.
"""

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import orjson
from numpy.typing import NDArray

from hsstore.errors import MalformedInput
from hsstore.model.progress import Progress, Silent
from hsstore.storage.token_file import ShardTokens

KEY_BYTES = 4096
ID_LIMIT = 2**31
FLAGS = {int, bool}
KINDS = {
    dict: "an object",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a float",
    type(None): "null",
}


@dataclass(frozen=True, slots=True)
class TokenisedSample:
    """One sample: its key, ``input_ids`` [tokens] int32 and ``loss_mask`` [tokens] uint8.

    ``line`` is the one of the dataset that it is from, counted from 1.
    """

    key: str
    input_ids: NDArray[np.int32]
    loss_mask: NDArray[np.uint8]
    line: int


class Samples(Protocol):
    """The samples of a dataset, which a store is made for. They are gone through twice."""

    def lengths(self, progress: Progress) -> list[int]:
        """The tokens of every sample, in order; at least one sample, none of them empty."""
        ...

    def samples(self, vocab_size: int) -> Iterator[TokenisedSample]:
        """Every sample in order, fully checked; token ids are below ``vocab_size``."""
        ...

    def refuse_change(self) -> None:
        """MalformedInput where the dataset is not what it was at first."""
        ...

    def changed(self) -> MalformedInput:
        """What to say where the second reading finds another dataset than the first."""
        ...


class JsonLines:
    """The ``Samples`` of a JSON lines file; MalformedInput where there is no such file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._state = file_state(path)

    def lengths(self, progress: Progress) -> list[int]:
        """The tokens of every sample; as ``count_samples`` refuses."""
        return count_samples(self._path, progress=progress)[0]

    def samples(self, vocab_size: int) -> Iterator[TokenisedSample]:
        """Every sample; as ``read_samples`` refuses."""
        return read_samples(self._path, vocab_size=vocab_size)

    def refuse_change(self) -> None:
        """MalformedInput where the file was written to meanwhile."""
        if file_state(self._path) != self._state:
            raise self.changed()

    def changed(self) -> MalformedInput:
        """That the file changed while it was read."""
        return changed(self._path)


@dataclass(slots=True)
class Naming:
    """Gives the samples of one dataset their keys: the ids that they have, else their numbers.

    ``number`` is the global number of the next sample. Every key is given once.
    """

    number: int = 0
    lines: dict[str, int] = field(default_factory=dict)

    def leave_out(self, sample: TokenisedSample) -> bool:
        """Take back the latest sample: the next one gets its number. Whether that was its name."""
        self.number -= 1
        numbered = sample.key == str(self.number)
        if numbered:
            del self.lines[sample.key]
        return numbered

    def name(self, document: dict[str, Any], place: str, line: int) -> str:
        """The key of the sample on a line; MalformedInput where another line has it."""
        given = document.get("id", self.number)
        if type(given) not in (str, int):
            raise MalformedInput(f"id is {_kind(given)}, not a string or an integer", place=place)
        key = str(given)
        if not 1 <= len(key.encode()) <= KEY_BYTES:
            raise MalformedInput(
                f"id has {len(key.encode())} bytes; allowed are 1 to {KEY_BYTES}", place=place
            )
        first = self.lines.setdefault(key, line)
        if first != line:
            raise MalformedInput(
                f"id {key!r} is taken by line {first}",
                place=place,
                remedy="give every sample an id of its own (without one, its number counts)",
            )
        self.number += 1
        return key


def read_samples(
    path: Path, *, vocab_size: int | None = None, naming: Naming | None = None
) -> Iterator[TokenisedSample]:
    """Every sample of a dataset, in order, fully checked.

    ``vocab_size`` bounds the token ids; ``naming`` goes on where a store's samples end. Raises
    MalformedInput naming file and line.
    """
    reader = _Reader(path, vocab_size, naming or Naming())
    for line, raw in _lines(path):
        yield reader.sample(line, raw)


def count_samples(path: Path, *, progress: Progress | None = None) -> tuple[list[int], list[int]]:
    """The tokens and the key's UTF-8 bytes of every sample, at about the cost of parsing the file.

    Refuses what is seen on the way (no JSON, no samples, empty ones, a mask of another length);
    the values of ids and masks, and repeated keys, are left to ``read_samples``.
    """
    progress = progress or Silent()
    progress.start(_regular(path).stat().st_size, 0, "B")
    lengths: list[int] = []
    key_bytes: list[int] = []
    for line, raw in _lines(path):
        place = f"{path}:{line}"
        document = _parse(raw, place)
        length = len(_listed(document, "input_ids", place))
        if not length:
            raise MalformedInput("an empty sample: input_ids holds no token", place=place)
        if "loss_mask" in document:
            _listed(document, "loss_mask", place, length)
        key_bytes.append(len(str(document.get("id", len(lengths))).encode()))
        lengths.append(length)
        progress.advance(len(raw))
    return lengths, key_bytes


def gather(first_sample: int, samples: Sequence[TokenisedSample]) -> ShardTokens:
    """The samples of one shard, the first of which has the number ``first_sample``."""
    return ShardTokens(
        first_sample=first_sample,
        keys=tuple(sample.key for sample in samples),
        lengths=np.array([len(sample.input_ids) for sample in samples], np.int32),
        input_ids=np.concatenate([sample.input_ids for sample in samples]),
        loss_mask=np.concatenate([sample.loss_mask for sample in samples]),
    )


def changed(path: Path) -> MalformedInput:
    """What to say of a dataset of which the second reading finds another than the first."""
    return MalformedInput(
        "the dataset changed while it was read",
        place=str(path),
        remedy="run the same command again when it is complete",
    )


def file_state(path: Path) -> tuple[int, int, int]:
    """Inode, size and time of change: equal as long as nobody writes the file."""
    status = _regular(path).stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(slots=True)
class _Reader:
    path: Path
    vocab_size: int | None
    naming: Naming

    def sample(self, line: int, raw: bytes) -> TokenisedSample:
        place = f"{self.path}:{line}"
        document = _parse(raw, place)
        input_ids = _input_ids(document, place, self.vocab_size)
        loss_mask = _flags(document, "loss_mask", place, len(input_ids))
        if not _flags(document, "attention_mask", place, len(input_ids)).all():
            raise MalformedInput(
                "a padded sample: attention_mask is not all ones",
                place=place,
                remedy="write the tokens without their padding",
            )
        key = self.naming.name(document, place, line)
        return TokenisedSample(key, input_ids, loss_mask, line)


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The numbered lines of a regular file, at least one, none of them blank."""
    line = 0
    with _regular(path).open("rb") as file:
        for line, raw in enumerate(file, 1):
            if raw.isspace():
                raise MalformedInput("a blank line", place=f"{path}:{line}")
            yield line, raw
    if not line:
        raise MalformedInput("the dataset is empty", place=str(path))


def _regular(path: Path) -> Path:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        raise MalformedInput("no such dataset", place=str(path)) from None
    if not stat.S_ISREG(mode):
        raise MalformedInput(
            "the dataset is not a regular file",
            place=str(path),
            remedy="save it to a JSON lines file first: it is read twice",
        )
    return path


def _parse(raw: bytes, place: str) -> dict[str, Any]:
    try:
        document = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        # Of a line that ends too early the parser tells no column.
        where = f" at column {error.colno}" if error.pos else ""
        raise MalformedInput(f"not JSON: {error.msg}{where}", place=place) from None
    if type(document) is not dict:
        raise MalformedInput(f"the line is {_kind(document)}, not an object", place=place)
    return document


def _listed(
    document: dict[str, Any], name: str, place: str, length: int | None = None
) -> list[Any]:
    values = document.get(name)
    if type(values) is not list:
        problem = f"is {_kind(values)}, not a list" if name in document else "is missing"
        raise MalformedInput(f"{name} {problem}", place=place)
    if length is not None and len(values) != length:
        raise MalformedInput(f"{name} has {len(values)} entries for {length} tokens", place=place)
    return values


def _input_ids(document: dict[str, Any], place: str, vocab_size: int | None) -> NDArray[np.int32]:
    values = _listed(document, "input_ids", place)
    if not values:
        raise MalformedInput("an empty sample: input_ids holds no token", place=place)
    # numpy would turn True into 1 and 1.5 into 1 without a word.
    if set(map(type, values)) != {int}:
        at = next(n for n, value in enumerate(values) if type(value) is not int)
        raise MalformedInput(f"input_ids[{at}] is {_kind(values[at])}, not an integer", place=place)
    limit = min(vocab_size or ID_LIMIT, ID_LIMIT)
    ids = _integers(values)
    if ids is None or ids.min() < 0 or ids.max() >= limit:
        at = next(n for n, value in enumerate(values) if not 0 <= value < limit)
        allowed = "the model's vocabulary" if vocab_size else "what int32 holds"
        raise MalformedInput(
            f"input_ids[{at}] is {values[at]}, outside {allowed} (0 to {limit - 1})", place=place
        )
    return ids.astype(np.int32)


def _integers(values: list[int]) -> NDArray[np.int64] | None:
    """The values as an array, twice as fast as numpy.array makes it; None if one is too large."""
    try:
        return np.fromiter(values, np.int64, len(values))
    except OverflowError:
        return None


def _flags(document: dict[str, Any], name: str, place: str, length: int) -> NDArray[np.uint8]:
    """A member of zeros and ones, or all ones where there is none."""
    if name not in document:
        return np.ones(length, np.uint8)
    values = _listed(document, name, place, length)
    try:
        # bytes() takes whole numbers up to 255 and booleans, nothing else.
        flags = np.frombuffer(bytes(values), np.uint8)
    except (TypeError, ValueError):
        flags = None
    if flags is None or flags.max() > 1:
        at = next(n for n, v in enumerate(values) if type(v) not in FLAGS or v not in (0, 1))
        raise MalformedInput(f"{name}[{at}] is {values[at]!r:.40}, not 0 or 1", place=place)
    return flags


def _kind(value: object) -> str:
    return KINDS[type(value)]
