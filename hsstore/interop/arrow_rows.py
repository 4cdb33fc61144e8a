"""The rows of a dataset that Hugging Face's ``datasets`` saved to disk: token ids and loss masks.

Such a folder has ``state.json``, which names its Arrow files, each an Arrow IPC stream.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from hsstore.errors import MalformedInput
from hsstore.interop.arrow_module import STATE, arrow_module
from hsstore.interop.file_bytes import FileBytes
from hsstore.interop.foreign import MAX_TOKEN, is_plain
from hsstore.model.progress import Progress
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.tokenised import TokenisedSample, changed

STATE_BYTES = 16 << 20
# What ends a stream: a continuation and a message of no bytes (Arrow's "IPC Streaming Format").
END = b"\xff\xff\xff\xff\0\0\0\0"
IDS, MASK = "input_ids", "loss_mask"


@dataclass(frozen=True, slots=True)
class ArrowRows:
    """All rows of a saved dataset, 5 bytes a token.

    ``ids`` int32 and ``masks`` uint8 of all rows one after the other; row r is from ``starts[r]``
    to ``starts[r + 1]``.
    """

    ids: NDArray[np.int32]
    masks: NDArray[np.uint8]
    starts: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, number: int) -> tuple[NDArray[np.int32], NDArray[np.uint8]]:
        """Token ids [n] and loss mask [n] of a row."""
        begin, end = self.starts[number], self.starts[number + 1]
        return self.ids[begin:end], self.masks[begin:end]


@dataclass(frozen=True, slots=True)
class ArrowSamples:
    """``Samples`` of the rows; the key of a row is ``naming`` with its number for the braces."""

    rows: ArrowRows
    naming: str
    place: Path

    def lengths(self, progress: Progress) -> list[int]:
        """The tokens of every row; MalformedInput for no rows and for an empty one."""
        lengths: list[int] = np.diff(self.rows.starts).tolist()
        progress.start(len(lengths), len(lengths), "rows")
        if not lengths or not all(lengths):
            problem = f"row {lengths.index(0)} is empty" if lengths else "the dataset is empty"
            raise MalformedInput(problem, place=str(self.place))
        return lengths

    def samples(self, vocab_size: int) -> Iterator[TokenisedSample]:
        """Every row; MalformedInput for a token id that is not below ``vocab_size``."""
        for number in range(len(self.rows)):
            ids, mask = self.rows.row(number)
            if ids.max() >= vocab_size:
                raise MalformedInput(
                    f"row {number} has token {ids.max()}, outside the model's vocabulary "
                    f"(0 to {vocab_size - 1})",
                    place=str(self.place),
                )
            yield TokenisedSample(self.naming.format(number), ids, mask, number + 1)

    def refuse_change(self) -> None:
        """Nothing: the rows are in memory."""

    def changed(self) -> MalformedInput:
        """That the rows are other ones, which they cannot be."""
        return changed(self.place)


def has_rows(root: Path) -> bool:
    """Whether a folder is a saved dataset."""
    return (root / STATE).is_file()


def read_rows(root: Path, filesystem: Filesystem = LOCAL) -> ArrowRows:
    """The rows of the dataset that was saved in a folder.

    Raises MalformedInput for what is no such dataset, damaged, or without masks; OSError.
    """
    pieces = [
        piece
        for name in _arrow_files(root, filesystem)
        for piece in _pieces(root / name, filesystem)
    ]
    lengths = np.concatenate([np.zeros(1, np.int64), *(piece[2] for piece in pieces)])
    return ArrowRows(
        np.concatenate([np.empty(0, np.int32), *(piece[0] for piece in pieces)]),
        np.concatenate([np.empty(0, np.uint8), *(piece[1] for piece in pieces)]),
        np.cumsum(lengths),
    )


def _arrow_files(root: Path, filesystem: Filesystem) -> list[str]:
    """The names in ``state.json``; MalformedInput for one that would lead out of the folder."""
    path = root / STATE
    status = filesystem.status(path)
    if not is_plain(status.st_mode) or status.st_size > STATE_BYTES:
        raise MalformedInput("no plain file of a saved dataset", place=str(path))
    try:
        names = [part["filename"] for part in orjson.loads(filesystem.read(path))["_data_files"]]
    except (orjson.JSONDecodeError, KeyError, TypeError) as error:
        raise MalformedInput(f"it names no Arrow files ({error})", place=str(path)) from None
    for name in names:
        if not isinstance(name, str) or Path(name).name != name or "\0" in name:
            raise MalformedInput(f"it names {name!r:.120}, no file beside it", place=str(path))
    return names


Piece = tuple[NDArray[np.int32], NDArray[np.uint8], NDArray[np.int64]]


def _pieces(path: Path, filesystem: Filesystem) -> Iterator[Piece]:
    """Ids, masks and lengths of each batch of an Arrow file."""
    arrow = arrow_module()
    if not is_plain(filesystem.status(path).st_mode):
        raise MalformedInput("no plain file of a saved dataset", place=str(path))
    with filesystem.opened(path) as fd:
        stream = FileBytes(filesystem, fd, path)
        _refuse_torn(stream, path)
        try:
            with arrow.ipc.open_stream(arrow.PythonFile(stream, "r")) as batches:
                for batch in batches:
                    batch.validate(full=True)
                    yield _piece(batch, str(path))
        except (arrow.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            # Arrow's own OSError has no number; one that has is the disk's.
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise MalformedInput(f"not a readable Arrow file: {error}", place=str(path)) from None


def _refuse_torn(stream: FileBytes, path: Path) -> None:
    """Arrow takes a stream that was cut between two batches for a shorter one."""
    stream.seek(max(stream.size - len(END), 0))
    if stream.read() != END:
        raise MalformedInput("not a readable Arrow file: its end is missing", place=str(path))
    stream.seek(0)


def _piece(batch: Any, place: str) -> Piece:  # noqa: ANN401 - pyarrow has no types
    ids, id_lengths = _column(batch, IDS, place)
    masks, mask_lengths = _column(batch, MASK, place)
    if not np.array_equal(id_lengths, mask_lengths):
        raise MalformedInput(f"{IDS} and {MASK} of a row differ in length", place=place)
    if len(ids) and (ids.min() < 0 or ids.max() > MAX_TOKEN):
        raise MalformedInput(f"{IDS} holds what is no token id", place=place)
    if not np.isin(masks, (0, 1)).all():
        raise MalformedInput(f"{MASK} holds what is not 0 or 1", place=place)
    return ids.astype(np.int32), masks.astype(np.uint8), id_lengths


def _column(batch: Any, name: str, place: str) -> tuple[NDArray[Any], NDArray[np.int64]]:  # noqa: ANN401 - as above
    """A column of lists: all values one after the other, and the length of each list."""
    types = arrow_module().types
    if (columns := batch.schema.names.count(name)) != 1:
        problem = f"{columns} columns {name}" if columns else f"no column {name}"
        raise MalformedInput(f"the dataset has {problem}", place=place)
    column = batch.column(name)
    lists = types.is_list(column.type) or types.is_large_list(column.type)
    if not lists or column.null_count or column.flatten().null_count:
        raise MalformedInput(f"{name} is {column.type} or has nulls: no lists", place=place)
    values = column.flatten()
    if not (types.is_integer(values.type) or types.is_boolean(values.type)):
        raise MalformedInput(f"{name} holds {values.type}, no integers", place=place)
    lengths = column.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
    return values.to_numpy(zero_copy_only=False), lengths
