"""A folder as Hugging Face's ``datasets`` saves one: tokens and masks as an Arrow IPC stream.

Source: datasets 5.1, ``Dataset.save_to_disk``; the columns are those of speculators 0.9.0,
``speculators/data_generation/preprocessing.py``, and ``id``, the key in the store.
"""

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.arrow_module import STATE, arrow_module
from hsstore.storage.filesystem import Filesystem

DATA, INFO = "data-00000-of-00001.arrow", "dataset_info.json"
ROWS_AT_ONCE = 1000

Tokens = tuple[str, NDArray[np.int32], NDArray[np.uint8]]


def write_arrow_folder(
    folder: Path, rows: Iterator[Tokens], fingerprint: str, filesystem: Filesystem
) -> None:
    """Write the rows into an existing folder, in their order; files of an earlier try are replaced.

    ``fingerprint``, 16 hex digits, is what ``datasets`` names the content by in its caches. Raises
    MalformedInput without pyarrow, OSError.
    """
    _write_data(folder / DATA, rows, filesystem)
    ids = {"feature": {"dtype": "int32", "_type": "Value"}, "_type": "List"}
    mask = {"feature": {"dtype": "int64", "_type": "Value"}, "_type": "List"}
    features = {
        "id": {"dtype": "string", "_type": "Value"},
        "input_ids": ids,
        "loss_mask": mask,
        "seq_len": {"dtype": "int64", "_type": "Value"},
    }
    info = {"citation": "", "description": "", "features": features, "homepage": "", "license": ""}
    state: dict[str, object] = {
        "_data_files": [{"filename": DATA}],
        "_fingerprint": fingerprint,
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": "torch",
        "_output_all_columns": False,
        "_split": None,
    }
    for name, document in ((INFO, info), (STATE, state)):
        filesystem.replace(folder / name, json.dumps(document, indent=2).encode())


def _write_data(path: Path, rows: Iterator[Tokens], filesystem: Filesystem) -> None:
    arrow = arrow_module()
    schema = arrow.schema(
        [
            ("id", arrow.string()),
            ("input_ids", arrow.list_(arrow.int32())),
            ("loss_mask", arrow.list_(arrow.int64())),
            ("seq_len", arrow.int64()),
        ]
    )
    with filesystem.opened(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) as fd:
        sink = _Appending(filesystem, fd, path)
        with arrow.ipc.new_stream(arrow.PythonFile(sink, "w"), schema) as stream:
            for some in _batches(rows):
                stream.write_batch(_batch(arrow, schema, some))
        filesystem.sync(fd, path)


def _batches(rows: Iterator[Tokens]) -> Iterator[list[Tokens]]:
    while some := [row for row, _ in zip(rows, range(ROWS_AT_ONCE), strict=False)]:
        yield some


def _batch(arrow: Any, schema: Any, rows: list[Tokens]) -> Any:  # noqa: ANN401 - pyarrow
    keys, ids, masks = zip(*rows, strict=True)
    lengths = np.array([len(each) for each in ids], np.int64)
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    lists = [
        arrow.ListArray.from_arrays(
            arrow.array(ends), arrow.array(np.concatenate(each, dtype=kind))
        )
        for each, kind in ((ids, np.int32), (masks, np.int64))
    ]
    columns = [arrow.array(keys, arrow.string()), *lists, arrow.array(lengths)]
    return arrow.record_batch(columns, schema=schema)


class _Appending(io.RawIOBase):
    """What pyarrow writes to: each piece goes behind the one before it."""

    def __init__(self, filesystem: Filesystem, fd: int, path: Path) -> None:
        self._filesystem, self._fd, self._path, self._end = filesystem, fd, path, 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._end

    def write(self, data: Any) -> int:  # noqa: ANN401 - a buffer; its type has no name in 3.11
        size = memoryview(data).nbytes
        self._filesystem.write_at(self._fd, data, self._end, self._path)
        self._end += size
        return size
