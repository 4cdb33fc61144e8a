"""The list of samples to extract again, in a form that ``create --dataset`` reads."""

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from hsstore.errors import MalformedInput
from hsstore.storage.filesystem import LOCAL, Filesystem

WRITE_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL


@dataclass(frozen=True, slots=True)
class Lost:
    """A sample without a sound file: its row number (None: unknown), its file, and why.

    ``path`` is empty where there is no file at all.
    """

    row: int | None
    path: str
    reason: str

    def to_json(self) -> dict[str, Any]:
        """Its line, where no dataset is there to take the row from."""
        return {"row": self.row, "file": self.path or None, "reason": self.reason}


def refuse_redo(file: Path, root: Path) -> None:
    """MalformedInput where the list would land in the surveyed tree, or on another file.

    Asked before hours of reading, and not after them.
    """
    place = str(file)
    if file.exists() or file.is_symlink():
        raise MalformedInput("there is something of that name", place=place,
                             remedy="give a new name for --redo, or move it away")  # fmt: skip
    if not file.parent.is_dir():
        remedy = "create the folder, or give another name for --redo"
        raise MalformedInput("its folder does not exist", place=place, remedy=remedy)
    if file.resolve().is_relative_to(root.resolve()):
        raise MalformedInput("the list would be inside the tree that is only read", place=place,
                             remedy="give --redo a name outside of it")  # fmt: skip


def dataset_lines(dataset: Path, rows: Iterable[int]) -> Iterator[bytes]:
    """The lines of a JSON lines dataset that hold these rows, in order.

    A row without an id gets its number as one, so that it keeps its key where it is the third of
    the list and was the hundredth of the dataset.
    """
    wanted = set(rows)
    with dataset.open("rb") as file:
        for row, raw in enumerate(file):
            if row in wanted:
                yield _with_id(raw, row)


def _with_id(raw: bytes, row: int) -> bytes:
    document = orjson.loads(raw)
    if "id" in document:
        return raw if raw.endswith(b"\n") else raw + b"\n"
    return orjson.dumps({"id": row} | document, option=orjson.OPT_APPEND_NEWLINE)


def name_lines(lost: Iterable[Lost]) -> Iterator[bytes]:
    """A line of JSON for each sample: ``row``, ``file``, ``reason``.

    A file's name may hold anything, line breaks and bytes that are no text too: those are written
    as JSON writes lone surrogates, and Python's ``os.fsencode`` gives the bytes back.
    """
    for each in lost:
        yield json.dumps(each.to_json()).encode() + b"\n"


def write_redo(file: Path, lines: Iterable[bytes], filesystem: Filesystem = LOCAL) -> int:
    """Make the list appear whole, or not at all; how many lines it has.

    Raises FileExistsError where something has that name by now, OSError where it cannot be written.
    """
    temporary = file.parent / f".{file.name}.{secrets.token_hex(4)}"
    count = offset = 0
    try:
        with filesystem.opened(temporary, WRITE_NEW) as fd:
            for line in lines:
                filesystem.write_at(fd, line, offset, temporary)
                count, offset = count + 1, offset + len(line)
            filesystem.sync(fd, temporary)
        filesystem.link(temporary, file)
    finally:
        with contextlib.suppress(OSError):
            filesystem.unlink(temporary)
    filesystem.sync_folder(file.parent)
    return count
