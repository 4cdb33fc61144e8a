"""The metadata of a GGUF file: what model it holds, without its tensors.

Follows the GGUF specification, versions 2 and 3. A header lies before the tensors, so a file of
any size costs only its header to read; every length in it is checked against the file's size
before anything of that length is read.
"""

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hsstore.errors import MalformedInput

MAGIC = b"GGUF"
VERSIONS = (2, 3)
BOOL, STRING, ARRAY = 7, 8, 9
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", BOOL: "?",
           10: "Q", 11: "q", 12: "d"}  # fmt: skip


def read_header(path: Path) -> dict[str, Any]:
    """Every metadata field by name; MalformedInput where the file is not GGUF or torn."""
    try:
        with path.open("rb") as file:
            return _Header(file, path.stat().st_size).fields()
    except (ValueError, struct.error) as error:
        raise MalformedInput(f"not a readable GGUF file: {error}", place=str(path)) from None


@dataclass(slots=True)
class _Header:
    file: BinaryIO
    size: int

    def fields(self) -> dict[str, Any]:
        if self._take(4) != MAGIC:
            raise ValueError("it does not begin with 'GGUF'")
        version, _, count = self._unpack("IQQ")
        if version not in VERSIONS:
            raise ValueError(f"version {version} is none of {VERSIONS}")
        return {self._string(): self._value(*self._unpack("I")) for _ in range(count)}

    def _value(self, kind: int) -> Any:  # noqa: ANN401 - whatever the field holds
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._unpack(_scalar(kind))[0]
        item, count = self._unpack("IQ")
        if item == STRING:
            return [self._string() for _ in range(count)]
        code = _scalar(item)
        values = self._take(count * struct.calcsize(code))
        return [value for (value,) in struct.iter_unpack(f"<{code}", values)]

    def _string(self) -> str:
        return self._take(*self._unpack("Q")).decode(errors="surrogateescape")

    def _unpack(self, codes: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{codes}", self._take(struct.calcsize(f"<{codes}")))

    def _take(self, count: int) -> bytes:
        if count > self.size - self.file.tell():
            raise ValueError("it ends inside its header")
        return self.file.read(count)


def _scalar(kind: int) -> str:
    if kind not in SCALARS:
        raise ValueError(f"unknown value type {kind}")
    return SCALARS[kind]
