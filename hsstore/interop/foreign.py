"""The seam of foreign formats: what a tree of sample files is, and what can be wrong with one.

A format is one small module: it says which files of a tree are samples, and which tensors of a
file are what. Containers (``torch_file``, ``safetensors_file``) prove what their bytes can prove.
"""

import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hsstore.storage.tokenised import Samples

FAULTS = {
    "empty": "the file has no bytes",
    "truncated": "the file ends before its container does",
    "crc": "bytes differ from the checksum that the container keeps of them",
    "no-container": "the file is not the container that its name says",
    "pickle": "the pickle asks for more than tensors and plain values; nothing of it was run",
    "keys": "a tensor that the format demands is not in the file",
    "shape": "a tensor has another shape than the format demands",
    "dtype": "a tensor has another dtype than the format demands",
    "rows-differ": "the tensors of one sample do not agree on its number of tokens",
    "values": "token ids or loss mask hold what they cannot hold",
    "non-finite": "states hold infinities or NaN",
    "all-zero": "a layer, a row or a stretch of the states is zero throughout",
    "duplicate": "another file holds the same sample",
    "padded": "the file holds tokens behind the end of its sample",
    "unreadable": "the file cannot be read, or is no plain file",
    "gap": "the numbers in the file names leave out some",
    "unmatched": "no sample of the dataset has these tokens",
    "missing": "no file holds this sample of the dataset",
}
"""Every kind of fault, and what it says. The list is closed: reports are compared by kind."""

MAX_TOKEN = 2**31 - 1


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one file: a kind of ``FAULTS``, and the particulars."""

    kind: str
    detail: str

    def __post_init__(self) -> None:
        if self.kind not in FAULTS:
            raise ValueError(f"{self.kind!r} is no kind of fault")

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class Broken(Exception):
    """A file cannot be read further; ``fault`` says why. It never leaves this room."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(kind, detail)
        self.fault = Fault(kind, detail)


@dataclass(frozen=True, slots=True)
class ForeignFile:
    """One sample file of the tree at ``root``.

    ``name`` is its path below the root, with slashes; ``row`` the number that the name tells.
    """

    root: Path
    name: str
    row: int | None

    @property
    def path(self) -> Path:
        """Where it lies."""
        return self.root / self.name


@dataclass(frozen=True, slots=True)
class TensorHeader:
    """What a container says of a tensor before its bytes are read; ``dtype`` as torch names it."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Inspection:
    """What headers prove, without the payload where the container allows it.

    ``tokens`` is the length of the sample, None where it is not told. ``dtype`` is that of its
    states; those of float8 are read as bfloat16. ``layers`` and ``hidden`` are None where the
    format joins layers without a word of their width; ``has_last`` says whether the last of them
    is the model's last state.
    """

    tokens: int | None = None
    dtype: str | None = None
    layers: int | None = None
    hidden: int | None = None
    has_last: bool = False
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class Tokens:
    """Token ids [n] int64 and loss mask [n] bool of one sample, as their file holds them.

    ``loss_mask`` is None where the tree has none.
    """

    input_ids: NDArray[np.int64]
    loss_mask: NDArray[np.bool_] | None


@dataclass(frozen=True, slots=True)
class ForeignSample:
    """One sample as its file holds it.

    ``states`` [n, layers, hidden] is C-contiguous: bfloat16 as its uint16 bits, float16 and float32
    as themselves. With ``has_last`` its last layer is the model's last state (before or after the
    final norm: files do not tell). ``dtype`` is the one of the states as torch names it,
    ``dequantised`` the formula that made them from a narrower one.
    """

    tokens: Tokens
    states: NDArray[Any]
    dtype: str
    has_last: bool
    dequantised: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """The whole of one file: the sample, where there is one, and all that is wrong with it.

    A sample may come with faults that are about its values (``non-finite``, ``all-zero``).
    """

    sample: ForeignSample | None
    faults: tuple[Fault, ...] = ()


class Container(Protocol):
    """An open file of named tensors. What is wrong with the file is raised as ``Broken``."""

    @property
    def tensors(self) -> Mapping[str, TensorHeader]:
        """The header of each tensor by its name."""
        ...

    @property
    def verifiable(self) -> bool:
        """Whether the container keeps checksums: without, a changed bit cannot be seen."""
        ...

    def array(self, name: str) -> NDArray[Any]:
        """A tensor's values, checked as far as the container can.

        bfloat16 comes as its uint16 bits, float8 as uint8.
        """
        ...

    def prove(self) -> None:
        """Check what was not read yet, as far as the container can."""
        ...


class Format(Protocol):
    """How one tool lays out samples in files. Nothing in a file is ever executed."""

    @property
    def name(self) -> str:
        """What users call it."""
        ...

    def files(self, root: Path) -> list[ForeignFile]:
        """The sample files of a tree, in natural order (data_2 before data_10).

        Raises OSError where a folder cannot be listed.
        """
        ...

    def own_dataset(self, root: Path) -> Samples | None:
        """The dataset that lies in a tree, its samples named after their files.

        None where this tree has none. Raises MalformedInput where it is damaged, OSError.
        """
        ...

    def look(self, file: ForeignFile) -> tuple[Inspection, Tokens | None]:
        """What its headers prove, and ids and mask, without the states where the container allows.

        All that is wrong is in ``faults``; OSError is raised only where descriptors or memory have
        run out, which is no fault of the file. The ids are checked: none is negative
        or above int32. They are None where they cannot be read.
        """
        ...

    def read(self, file: ForeignFile, hidden: int | None = None) -> Reading:
        """The sample, and every fault that reading all of the file finds; raises as ``look``.

        ``hidden`` is the width of a layer, for formats that join layers without saying it; without
        it the states of such a file have one layer.
        """
        ...


def found_files(root: Path, pattern: re.Pattern[str]) -> list[ForeignFile]:
    """The files below ``root`` whose names match wholly, in natural order.

    A group called ``row`` holds the number. Symbolic links to folders are not entered; each is
    among the files, as one that cannot be read, for nobody knows what samples it leads to. Raises
    OSError where a folder cannot be listed.
    """
    found = []
    for name, leads_away in _names(root):
        match = pattern.fullmatch(name.rpartition("/")[2])
        if match:
            told = match.groupdict().get("row")
            found.append(ForeignFile(root, name, None if told is None else int(told)))
        elif leads_away:
            found.append(ForeignFile(root, name, None))
    return sorted(found, key=lambda file: natural(file.name))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A sort key by which numbers in names count as numbers."""
    return tuple(
        (0, int(part), part) if part.isdecimal() and part.isascii() else (1, 0, part)
        for part in re.split(r"([0-9]+)", name)
    )


def gaps(files: Iterable[ForeignFile]) -> list[range]:
    """The runs of numbers that no name has, between the lowest and the highest that one has."""
    rows = sorted({file.row for file in files if file.row is not None})
    pairs = itertools.pairwise(rows)
    return [range(before + 1, after) for before, after in pairs if after > before + 1]


def _names(root: Path) -> Iterator[tuple[str, bool]]:
    """Every file below a folder, and whether it is a link to a folder."""
    folders = [""]
    while folders:
        prefix = folders.pop()
        with os.scandir(root / prefix) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{prefix}{entry.name}/")
                else:
                    yield prefix + entry.name, entry.is_symlink() and entry.is_dir()


def is_plain(mode: int) -> bool:
    """Whether a file of this mode is a regular one."""
    return stat.S_ISREG(mode)
