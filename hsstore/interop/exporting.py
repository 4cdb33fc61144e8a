"""``export``: a tree of files as other trainers read them, made of a store.

The tree is built in a hidden folder beside its place and gets its name when all of it is there and
durable. Each file in it is whole once it has its own name, so an interrupted export goes on.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hsstore.errors import ClaimedByAnother, MalformedInput, Stopped
from hsstore.integrity.copying.room import Room
from hsstore.interop.exported_trees import TREES, ExportedTree
from hsstore.model.capture import Layer
from hsstore.model.progress import Progress, Silent
from hsstore.storage.filesystem import LOCAL, Buffer, Filesystem
from hsstore.storage.store import Store
from hsstore.training.dataset import Absent, HiddenStateDataset
from hsstore.views.eagle3 import DraftLayers

DOCUMENT = "hsstore-export.json"
ANOTHER_PATH = "choose another path"
# Names and headers of a file, and the rest of its last block.
BESIDE_FILE_BYTES = 1 << 13
BYTES_A_TOKEN = 2 * 8  # ids and mask, or ids in a file and in the dataset


@dataclass(frozen=True, slots=True)
class Export:
    """What an export did.

    ``samples`` are in the tree; ``before`` of them were written by an earlier run. ``excluded``
    are those that the store lacks.
    """

    root: Path
    form: str
    layers: tuple[Layer, ...]
    samples: int
    before: int
    excluded: int
    bytes_written: int


def export_tree(  # noqa: PLR0913 - keyword-only, as for copy_store
    form: str,
    store: str | Path,
    destination: str | Path,
    *,
    layers: Sequence[Layer] | None = None,
    absent: Absent = "raise",
    min_free_bytes: int | None = None,
    filesystem: Filesystem = LOCAL,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Export:
    """Make a tree of a store at ``destination``, or go on where an earlier export of it ended.

    ``form`` is ``"specforge"`` or ``"speculators"``. ``layers`` are the auxiliary ones in ascending
    order and the last state that the form demands, all of the store by default. ``absent`` is
    HiddenStateDataset's. Everything is verified against the manifests as it is read; a damaged
    sample ends the export, and what was written is kept. Raises MalformedInput (the store does not
    have what the form takes, the destination is taken, or another export was begun there),
    SampleUnavailable, ClaimedByAnother, OutOfSpace, StorageFailed, Stopped, OSError.
    """
    if form not in TREES:
        raise ValueError(f"form is {form!r}, not one of {', '.join(TREES)}")
    tree, opened = TREES[form], Store.open(store)
    tree.begin()
    chosen = tree.layers(opened.identity.capture.layers, layers, place=str(store))
    dataset = HiddenStateDataset(store, absent=absent, verify="always")
    target = _free(Path(destination), Path(store), filesystem)
    with _building(target, _document(form, opened, chosen, dataset), filesystem) as root:
        writing = _Writing(tree, chosen, dataset, root, filesystem)
        Room(root, min_free_bytes).require(writing.needed_bytes(), "the tree")
        writing.run(progress or Silent(), stop)
        tree.finish(root, opened, dataset.samples, dataset.fingerprint, filesystem)
        _publish(root, target, filesystem)
    return Export(target, form, chosen.layers, len(dataset), writing.before, dataset.excluded,
                  writing.bytes_written)  # fmt: skip


class _Writing:
    """The files of the samples."""

    def __init__(
        self, tree: ExportedTree, layers: DraftLayers, dataset: HiddenStateDataset, root: Path,
        filesystem: Filesystem,
    ) -> None:  # fmt: skip
        self._tree, self._layers, self._dataset = tree, layers, dataset
        self._root, self._filesystem = root, filesystem
        names = (tree.file(int(number), n) for n, number in enumerate(dataset.samples))
        self._files = [root / name for name in names]
        self._open = [n for n, file in enumerate(self._files) if not filesystem.exists(file)]
        self.before = len(self._files) - len(self._open)
        self.bytes_written = 0

    def needed_bytes(self) -> int:
        """About what the files that are not there will take."""
        tokens = int(self._dataset.lengths[self._open].sum())
        return tokens * self._token_bytes() + len(self._open) * BESIDE_FILE_BYTES

    def _token_bytes(self) -> int:
        hidden, itemsize = self._dataset.row_shape[1], self._dataset.stored_dtype.itemsize
        return len(self._layers.layers) * hidden * itemsize + BYTES_A_TOKEN

    def run(self, progress: Progress, stop: Callable[[], bool]) -> None:
        lengths, each = self._dataset.lengths, self._token_bytes()
        total = int(lengths.sum()) * each
        progress.start(total, total - int(lengths[self._open].sum()) * each, "B")
        for folder in sorted({file.parent for file in self._files}):
            self._filesystem.make_folders(folder, below=self._root)
        for n in self._open:
            if stop():
                raise Stopped(
                    "stopped; the files that were written are kept",
                    place=str(self._root),
                    remedy="run the same command again",
                )
            self._write(self._files[n], self._tree.content(self._dataset[n], self._layers))
            progress.advance(int(lengths[n]) * each)
        for folder in sorted({file.parent for file in self._files}):
            self._filesystem.sync_folder(folder)

    def _write(self, file: Path, content: Buffer) -> None:
        """A file has its name only once its bytes are durable."""
        part = file.with_name(f".{file.name}.part")
        with contextlib.suppress(FileNotFoundError):
            self._filesystem.unlink(part)  # a killed run left it
        self._filesystem.write_new(part, content)
        self._filesystem.rename(part, file)
        self.bytes_written += memoryview(content).nbytes


def _free(destination: Path, store: Path, filesystem: Filesystem) -> Path:
    """The absolute path of a tree to be; MalformedInput where none can be made."""
    try:
        target = destination.resolve()
    except RuntimeError as error:  # a loop of symbolic links, before Python 3.13
        raise MalformedInput(str(error), place=str(destination), remedy=ANOTHER_PATH) from None
    if target.is_relative_to(store.resolve()):
        raise MalformedInput(
            "the tree would be inside the store", place=str(target), remedy=ANOTHER_PATH
        )
    if not target.parent.is_dir():
        raise MalformedInput(
            "there is no such folder to make a tree in",
            place=str(target.parent),
            remedy="make it first",
        )
    if target.is_mount() or (
        filesystem.exists(target) and (not target.is_dir() or filesystem.names(target))
    ):
        raise _taken(target)
    return target


def _taken(target: Path) -> MalformedInput:
    return MalformedInput(
        "something is there already", place=str(target), remedy="choose another path or remove it"
    )


def _document(form: str, store: Store, layers: DraftLayers, dataset: HiddenStateDataset) -> bytes:
    """What the tree is of: files of sample formats say nothing about themselves."""
    identity = store.identity
    told = {
        "form": form,
        "store": identity.uuid,
        "model": identity.model.to_document(),
        "dtype": identity.capture.dtype,
        "layers": list(layers.layers),
        "layer_convention": "after k blocks; final is after the final norm, final:pre before it",
        "samples": len(dataset),
        "selection": dataset.fingerprint,
    }
    return json.dumps(told, indent=2, sort_keys=True).encode()


@contextlib.contextmanager
def _building(target: Path, document: bytes, filesystem: Filesystem) -> Iterator[Path]:
    """The folder that becomes the tree, locked, with the document that says what it is of."""
    root = target.with_name(f".{target.name}.exporting")
    filesystem.make_folder(root)
    with contextlib.suppress(FileExistsError):
        filesystem.publish(root / DOCUMENT, document)
    with filesystem.opened(root / DOCUMENT, os.O_RDWR) as fd:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClaimedByAnother("another export writes here", place=str(root)) from None
        if filesystem.read(root / DOCUMENT) != document:
            raise MalformedInput(
                "the export that was begun here is of another store, other samples or other layers",
                place=str(root),
                remedy="remove that folder, or finish the export with the command that began it",
            )
        _clear(root, filesystem)
        yield root


def _clear(root: Path, filesystem: Filesystem) -> None:
    """Remove what killed exports left half-written beside the document."""
    for name in filesystem.names(root):
        if name.startswith("."):
            filesystem.unlink(root / name)


def _publish(root: Path, target: Path, filesystem: Filesystem) -> None:
    filesystem.sync_folder(root)
    try:
        filesystem.rename(root, target)
    except OSError as error:
        if filesystem.exists(target) and filesystem.exists(root):
            raise _taken(target) from error
        raise
    filesystem.sync_folder(target.parent)
