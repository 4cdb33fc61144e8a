"""Files of torch.save before torch 1.6 (and of ``_use_new_zipfile_serialization=False`` since).

Five pickles (a magic number, a version, the system, the value, the keys of its storages), then
each storage: how many values, in 8 bytes, and the values. See ``_legacy_save`` in
torch/serialization.py.
There is no checksum; all that can be proven is that the storages fill the file to its end.
"""

import io
import pickletools
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.foreign import Broken, TensorHeader
from hsstore.interop.torch_file import NUMPY, strided, tensors_of
from hsstore.interop.torch_pickle import PICKLE_BYTES, NotPlain, described

# The pickle of 0x1950a86a20f9469cfc6c, behind any protocol.
MAGIC = b"\x8a\n\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19."
MAGIC_AT = 2
PICKLES = 5
COUNT_BYTES = 8


def is_legacy(stream: BinaryIO) -> bool:
    """Whether a file begins as the older torch.save began it."""
    stream.seek(0)
    return stream.read(MAGIC_AT + len(MAGIC))[MAGIC_AT:] == MAGIC


class LegacyTorchFile:
    """An open file of the older torch.save that holds a dict of tensors; a Container."""

    verifiable = False

    def __init__(self, stream: BinaryIO) -> None:
        """Read what describes the tensors. Raises Broken."""
        self._stream = stream
        size = stream.seek(0, 2)
        stream.seek(0)
        head = stream.read(min(size, PICKLE_BYTES))
        whole = len(head) == size
        try:
            _, _, system, saved, keys = (described(each) for each in _pickles(head))
        except NotPlain as error:
            raise Broken("pickle", str(error)) from None
        except (ValueError, EOFError):
            kind = "truncated" if whole else "pickle"
            raise Broken(kind, f"its description does not end within {len(head)} bytes") from None
        if not isinstance(system, dict) or system.get("little_endian") is not True:
            raise Broken("dtype", "its bytes are not little-endian")
        self._refs = tensors_of(saved)
        self._begins = self._walk(keys, sum(map(len, _pickles(head))), size)

    @property
    def tensors(self) -> Mapping[str, TensorHeader]:
        """The header of each tensor by its name."""
        return {name: TensorHeader(ref.dtype, ref.shape) for name, ref in self._refs.items()}

    def array(self, name: str) -> NDArray[Any]:
        """A tensor's values, C-contiguous; Broken where they lie outside of their storage."""
        ref = self._refs[name]
        values = np.empty(ref.storage.values, NUMPY[ref.storage.dtype])
        self._stream.seek(self._begins[ref.storage.key])
        into = values.view(np.uint8)
        if self._stream.readinto(into.data) != len(into):  # type: ignore[attr-defined]
            raise Broken("truncated", f"the file ends within {name!r:.120}")
        return strided(name, values.view(NUMPY[ref.dtype]), ref)

    def prove(self) -> None:
        """Nothing more can be proven."""

    def _walk(self, keys: Any, at: int, size: int) -> dict[str, int]:  # noqa: ANN401 - whatever the file says
        """Where the values of each storage begin; Broken where they do not fill the file."""
        storages = {ref.storage for ref in self._refs.values()}
        refs = {storage.key: storage for storage in storages}
        if (
            type(keys) is not list
            or not all(type(key) is str for key in keys)
            or sorted(keys) != sorted(storage.key for storage in storages)
        ):
            raise Broken("no-container", "its storages are not those of its tensors")
        begins = {}
        for key in keys:
            begins[key] = at + COUNT_BYTES
            self._refuse_count(key, at, refs[key].values)
            at += COUNT_BYTES + refs[key].values * np.dtype(NUMPY[refs[key].dtype]).itemsize
        if at > size:
            raise Broken("truncated", f"{size} bytes, where its description tells of {at}")
        if at < size:
            raise Broken("no-container", f"{size - at} bytes follow behind its last storage")
        return begins

    def _refuse_count(self, key: str, at: int, values: int) -> None:
        """Broken where a storage that is there tells of another length than its tensors do."""
        self._stream.seek(at)
        told = self._stream.read(COUNT_BYTES)
        if len(told) == COUNT_BYTES and int.from_bytes(told, "little") != values:
            raise Broken("no-container", f"storage {key!r:.120} is not where it should begin")


def _pickles(head: bytes) -> Iterator[bytes]:
    """The pickles at the beginning of the file; ValueError where one does not end."""
    stream = io.BytesIO(head)
    for _ in range(PICKLES):
        begin = stream.tell()
        for _ in pickletools.genops(stream):
            pass
        yield head[begin : stream.tell()]
