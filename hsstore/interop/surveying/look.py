"""One look at one sample file: what its container proves, what it holds, what is wrong with it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import xxhash

from hsstore.interop.contents import WILD_FROM, state_faults
from hsstore.interop.file_bytes import opened_bytes
from hsstore.interop.foreign import Broken, Container, Fault, ForeignFile, Tokens
from hsstore.interop.matching import Held, Rows, held_in
from hsstore.interop.safetensors_file import SafetensorsFile
from hsstore.interop.surveying.finding import Depth
from hsstore.interop.surveying.held import tokens_in
from hsstore.interop.surveying.legacy import LegacyTorchFile, is_legacy
from hsstore.interop.surveying.schema import SCALES, Arrays, is_states
from hsstore.interop.tokens import bare_tokens
from hsstore.interop.torch_file import ZIP_START, TorchFile
from hsstore.storage.filesystem import LOCAL, Filesystem

Proof = Literal["checksum", "none", "unread"]


@dataclass(frozen=True, slots=True)
class Look:
    """What a file is, as far as somebody looked.

    ``arrays`` and ``held``, its tokens, are None where the container does not tell. ``content`` is
    a digest over all states, where they were read. ``proof`` says what vouches for the bytes: a
    checksum in the container, nothing, or nobody looked.
    """

    faults: tuple[Fault, ...] = ()
    arrays: Arrays | None = None
    held: Held | None = None
    content: bytes | None = None
    proof: Proof = "unread"

    @property
    def tokens(self) -> int | None:
        """How many tokens it holds, padding among them."""
        return None if self.held is None else self.held.tokens


def look_at(
    root: Path,
    name: str,
    depth: Depth,
    filesystem: Filesystem = LOCAL,
    rows: Rows | None = None,
) -> Look:
    """Look at the file of that name below ``root``; nothing of it is run.

    ``quick`` reads headers and token ids (of a ``.gz``, which must be expanded for them, all),
    ``checksums`` all that a checksum vouches for, ``content`` also every value of the states.
    ``rows`` tell where padding begins. What is wrong with the file is told, not raised; OSError
    only where descriptors or memory have run out.
    """
    looking = _Looking(rows)
    try:
        with opened_container(ForeignFile(root, name, None), filesystem) as container:
            looking.see(container, depth, compressed=name.endswith(".gz"))
    except Broken as broken:
        looking.faults.append(broken.fault)
    return looking.look()


@contextmanager
def opened_container(file: ForeignFile, filesystem: Filesystem = LOCAL) -> Iterator[Container]:
    """A file as the container that its first bytes say; raises Broken.

    A container that the name promises is named in the refusal of what is none.
    """
    with opened_bytes(file, filesystem) as stream:
        yield _container(stream, safetensors=file.name.endswith(".safetensors"))


def _container(stream: BinaryIO, *, safetensors: bool) -> Container:
    start = stream.read(len(ZIP_START))
    stream.seek(0)
    if safetensors:
        return SafetensorsFile(stream)
    if start == ZIP_START:
        return TorchFile(stream)
    if is_legacy(stream):
        return LegacyTorchFile(stream)
    stream.seek(0)
    if not any(start):
        raise Broken("no-container", "it begins with zeros")
    raise Broken("no-container", "neither a zip of torch.save nor its older form")


class _Looking:
    """What was seen so far, also where the next step finds the file broken."""

    def __init__(self, rows: Rows | None) -> None:
        self._rows = rows
        self.faults: list[Fault] = []
        self._seen: dict[str, object] = {}

    def look(self) -> Look:
        return Look(tuple(self.faults), **self._seen)  # type: ignore[arg-type]

    def see(self, container: Container, depth: Depth, *, compressed: bool) -> None:
        arrays = {key: (header.dtype, header.shape) for key, header in container.tensors.items()}
        self._seen["arrays"] = arrays
        ids = tokens_in(container)
        if ids is not None:
            tokens = Tokens(ids, None)
            self._seen["held"] = held_in(tokens, self._rows)
            if depth == "content":
                self._see_states(container, len(ids), bare_tokens(tokens))
        if depth != "quick":
            container.prove()
        if not container.verifiable and not compressed:
            self._seen["proof"] = "none"
        elif depth != "quick" or compressed:
            self._seen["proof"] = "checksum"

    def _see_states(self, container: Container, tokens: int, bare: int) -> None:
        """Look at all states; behind the ``bare`` tokens of a padded sample zeros are no fault."""
        digest = xxhash.xxh3_128()
        states = {
            key: header for key, header in container.tensors.items() if is_states(key, header)
        }
        hidden = min((header.shape[-1] for header in states.values()), default=0)
        for key, header in states.items():
            values = container.array(key)
            digest.update(key.encode())
            digest.update(values.data)
            if hidden and values.size and values.size % (tokens * hidden) == 0:
                layers = values.reshape(tokens, -1, hidden)
                self.faults += state_faults(key, header.dtype, layers, bare)
            self._see_scales(container, key + SCALES, tokens, bare)
        self._seen["content"] = digest.digest()

    def _see_scales(self, container: Container, key: str, tokens: int, bare: int) -> None:
        """Look at what the states of one key are multiplied by, if anything."""
        header = container.tensors.get(key)
        if header is None or header.dtype not in WILD_FROM:
            return
        scales = container.array(key)
        if scales.size == tokens:
            self.faults += state_faults(key, header.dtype, scales.reshape(tokens, 1, 1), bare)
