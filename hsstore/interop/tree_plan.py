"""What an import will do, decided before anything is written: which file gives which sample."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hsstore.errors import MalformedInput
from hsstore.interop.duplicates import settle_surplus, without_twins
from hsstore.interop.foreign import Fault, ForeignFile, Format, found_files, gaps
from hsstore.interop.matching import UNMATCHED, Match, Rows, match
from hsstore.interop.scanning import ScannedFile, scan
from hsstore.interop.surveying.names import role_of
from hsstore.interop.tree_capture import Told, TreeCapture, capture_of, with_shape_faults
from hsstore.interop.tree_samples import TreeSamples
from hsstore.interop.tree_source import states_digest
from hsstore.model.capture import ModelIdentity
from hsstore.model.progress import Progress
from hsstore.storage.store import Store
from hsstore.storage.tokenised import Samples

# A shorter run of equal tokens without loss ends many a sample that is whole.
PADDING_TOKENS = 8
NAMED = 3
ANY_NAME = re.compile(".*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree to be imported: its format, where it lies, and the model whose states it holds.

    ``model_place`` is where ``model`` was read.
    """

    form: Format
    root: Path
    model: ModelIdentity
    model_place: Path
    told: Told


@dataclass(frozen=True, slots=True)
class Choices:
    """What is to be done with files that are not what they should be.

    ``trim_padding``: import what is before the padding. ``leave_out_broken``: import a tree of
    which no dataset says what its broken files are.
    """

    trim_padding: bool = False
    leave_out_broken: bool = False


@dataclass(frozen=True, slots=True)
class TreePlan:
    """Which file gives which sample of ``samples``, and what is wrong with the other ones.

    ``left_out`` files give no sample; ``redundant`` ones hold what another file of the same sample
    holds, bit for bit. ``others`` are named as samples are, and not as those of the tree's format.
    """

    scanned: list[ScannedFile]
    capture: TreeCapture
    samples: Samples
    rows: Rows
    match: Match[ScannedFile]
    left_out: list[tuple[ScannedFile, Fault]]
    redundant: list[tuple[ScannedFile, Fault]]
    others: list[str]

    def notes(self) -> Iterator[str]:
        """What a person should know of the tree, one line each."""
        holes = gaps(one.file for one in self.scanned)
        if holes:
            count = sum(map(len, holes))
            yield f"{count} numbers have no file, the first of them {holes[0].start}"
        if self.others:
            yield (
                f"{len(self.others)} files are named otherwise than the format names samples, and "
                f"were not looked at: {some(self.others)}"
            )
        masked = self._other_masks()
        if masked:
            yield (
                f"{len(masked)} files hold another loss mask than the dataset ({some(masked)}); "
                "the store has that of the dataset"
            )
        padded = [
            one.file.name
            for one in self.match.files.values()
            if one.length - one.tail >= PADDING_TOKENS
        ]
        if padded and not self.match.padded:
            yield (
                f"{len(padded)} files end in {PADDING_TOKENS} or more equal tokens without loss, "
                f"which may be padding ({some(padded)}); --dataset and --trim-padding tell"
            )

    def _other_masks(self) -> list[str]:
        return [
            one.file.name
            for row, one in self.match.files.items()
            if one.length == self.rows.lengths[row] and one.mask not in (None, self.rows.masks[row])
        ]


def plan_import(
    tree: Tree,
    dataset: Samples | None,
    store: Store | None,
    choices: Choices,
    progress: Progress,
    stop: Callable[[], bool] = lambda: False,
) -> TreePlan:
    """Look at a whole tree, and say which file gives which sample.

    The samples are those of ``dataset``, else of the dataset within the tree, else the tree's own;
    a ``store`` that is there already says which they were. Raises MalformedInput where the tree is
    not fit to be imported as it was told and chosen, OSError, Stopped.
    """
    files = _files(tree)
    dataset = dataset or tree.form.own_dataset(tree.root)
    _refuse_blind_trimming(choices, dataset)
    rows = _rows(dataset, store, tree.model)
    scanned, redundant = _looked_at(tree, files, rows, progress, stop)
    capture = capture_of(tree.form, scanned, tree.told, tree.model_place, tree.model)
    samples = dataset or TreeSamples([one for one in scanned if not one.faults], tree.root)
    rows = rows or Rows.of(samples.samples(tree.model.vocab_size))
    found = match(scanned, rows)
    repeated, differing = settle_surplus(found, _digest(tree))
    redundant += repeated
    left_out = [*_left_out(scanned, found), *differing]
    _refuse_padding(found, choices, tree.root)
    if not choices.leave_out_broken:
        _refuse_broken(left_out, tree.root, has_dataset=dataset is not None)
    _refuse_nothing(found, tree.root)
    everything = [*scanned, *(one for one, _ in redundant)]
    others = _others(tree.root, files)
    return TreePlan(everything, capture, samples, rows, found, left_out, redundant, others)


def some(names: Sequence[str]) -> str:
    """The first names of many, and how many more there are."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _files(tree: Tree) -> list[ForeignFile]:
    if not tree.root.is_dir():
        raise MalformedInput("no such folder", place=str(tree.root))
    files = tree.form.files(tree.root)
    if not files:
        raise MalformedInput(
            f"no file in it is named as {tree.form.name} names samples", place=str(tree.root)
        )
    return files


def _others(root: Path, files: Sequence[ForeignFile]) -> list[str]:
    """What else in a tree has a name as samples have them: a copy, or another tool's file."""
    ours = {file.name for file in files}
    names = (file.name for file in found_files(root, ANY_NAME) if file.name not in ours)
    return [name for name in names if role_of(name.rpartition("/")[2]) == "sample"]


def _rows(dataset: Samples | None, store: Store | None, model: ModelIdentity) -> Rows | None:
    told = Rows.of(dataset.samples(model.vocab_size)) if dataset else None
    if store is None:
        return told
    rows = Rows.of_store(store)
    # It may have been extended since.
    if told is not None and not rows.begins_like(told):
        raise MalformedInput(
            "the store was made for another dataset",
            place=str(store.root),
            remedy="give the one that it was made for, or another place for the store",
        )
    return rows


def _looked_at(
    tree: Tree,
    files: Sequence[ForeignFile],
    rows: Rows | None,
    progress: Progress,
    stop: Callable[[], bool],
) -> tuple[list[ScannedFile], list[tuple[ScannedFile, Fault]]]:
    progress.note(f"looking at {len(files)} files")
    progress.start(len(files), 0, "files")
    found = scan(
        tree.form,
        files,
        vocab_size=tree.model.vocab_size,
        rows=rows,
        progress=progress,
        stop=stop,
    )
    return without_twins(with_shape_faults(list(found)), _digest(tree))


def _digest(tree: Tree) -> Callable[[ScannedFile], object]:
    return lambda one: states_digest(tree.form, one.file, tree.model.hidden_size)


def _left_out(
    scanned: Sequence[ScannedFile], found: Match[ScannedFile]
) -> Iterator[tuple[ScannedFile, Fault]]:
    """The broken files, and those of no sample."""
    unmatched = {one.file.name for one in found.unmatched}
    for one in scanned:
        if one.faults:
            yield one, one.faults[0]
        elif one.file.name in unmatched:
            yield one, Fault("unmatched", UNMATCHED)


def _refuse_blind_trimming(choices: Choices, dataset: Samples | None) -> None:
    if choices.trim_padding and dataset is None:
        raise MalformedInput(
            "only a dataset says where a sample ends and its padding begins",
            remedy="give --dataset with --trim-padding",
        )


def _refuse_padding(found: Match[ScannedFile], choices: Choices, root: Path) -> None:
    names = [one.file.name for _, one in sorted(found.padded.items())]
    if names and not choices.trim_padding:
        raise MalformedInput(
            f"{len(names)} files hold padding behind their sample: {some(names)}",
            place=str(root),
            remedy="give --trim-padding to import what is before it",
        )


def _refuse_broken(
    left_out: Sequence[tuple[ScannedFile, Fault]], root: Path, *, has_dataset: bool
) -> None:
    """Without a dataset nobody knows what is lost; what cannot be read may be readable tomorrow."""
    wrong = [(one, f) for one, f in left_out if not has_dataset or f.kind == "unreadable"]
    if wrong:
        told = [f"{one.file.name} ({fault})" for one, fault in wrong]
        advice = "make them readable" if has_dataset else "say with --dataset what they should hold"
        raise MalformedInput(
            f"{len(told)} files hold no sample: {some(told)}",
            place=str(root),
            remedy=f"{advice}, or leave them out with --leave-out-broken",
        )


def _refuse_nothing(found: Match[ScannedFile], root: Path) -> None:
    if not found.files:
        raise MalformedInput(
            "not one file holds a sample that is wanted",
            place=str(root),
            remedy="check that dataset and tree belong together",
        )
