"""Moving a foreign tree into a store: looked at as a whole first, then read sample by sample.

A store is made for the samples of a dataset, or for those of the tree itself, and is then filled
by the extractor as from any source. So an import that was interrupted goes on where it ended.
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from hsstore.errors import MalformedInput, StoreExists
from hsstore.extraction.account import ExtractionSummary
from hsstore.extraction.extractor import already_filled, extract
from hsstore.extraction.room import SpacePolicy
from hsstore.integrity.repair import repair
from hsstore.interop.foreign import Fault
from hsstore.interop.formats import format_named
from hsstore.interop.scanning import ScannedFile
from hsstore.interop.tree_capture import Told
from hsstore.interop.tree_plan import Choices, Tree, TreePlan, plan_import
from hsstore.interop.tree_source import Holdings, TreeSource, failed
from hsstore.model import keys
from hsstore.model.capture import parse_layers
from hsstore.model.progress import Progress, Silent
from hsstore.model.source import Failed
from hsstore.storage.building import free_target
from hsstore.storage.create import create
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.model_files import read_model
from hsstore.storage.status import status
from hsstore.storage.store import Store
from hsstore.storage.tokenised import JsonLines

__all__ = ["Choices", "Import", "Layout", "Told", "import_tree"]


@dataclass(frozen=True, slots=True)
class Layout:
    """How a store is laid out that does not exist yet; None is what ``create`` chooses."""

    codec: str = "none"
    revision: str | None = None
    chunk_rows: int | None = None
    shard_rows: int | None = None


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A file of the tree that gives no sample of the store, and why."""

    name: str
    fault: Fault


@dataclass(frozen=True, slots=True)
class Import:
    """What an import did.

    ``left_out`` lists the files that give no sample, ``redundant`` those of them that hold what
    another file holds bit for bit; ``without_file`` counts samples that no file gives states for,
    ``trimmed`` those that were cut from padding, ``given_back`` those that were absent until this
    import found a sound file of theirs. ``norm_by`` says how the norm is known, ``notes`` what a
    person should know of the tree.
    """

    store: Store
    files: int
    norm_by: str
    left_out: list[LeftOut]
    redundant: list[LeftOut]
    without_file: int
    trimmed: int
    given_back: int
    notes: list[str]
    extraction: ExtractionSummary


def import_tree(  # noqa: PLR0913 - what a store is made of, and of what
    name: str,
    root: str | Path,
    path: str | Path,
    model: str | Path,
    told: Told,
    *,
    dataset: str | Path | None = None,
    choices: Choices | None = None,
    layout: Layout | None = None,
    space: SpacePolicy | None = None,
    progress: Progress | None = None,
    stop: Callable[[], bool] = lambda: False,
    filesystem: Filesystem = LOCAL,
) -> Import:
    """Fill the store at ``path`` with the states of the tree at ``root``, bit for bit.

    ``name`` is the tree's format. Where no store is at ``path``, one is made: for the samples of
    ``dataset`` (JSON lines), of the dataset that lies in the tree, or of the tree's own files,
    named after them. Samples are matched to files by their token ids. A sample whose file is
    damaged is absent, with the fault as its reason; a later import gives it back once the tree has
    a sound file of it, in a new generation of its shard. The tree is never written to.

    Raises MalformedInput for what is wrong with the arguments or told wrongly of the tree, for
    padded files unless they are to be trimmed, and where no dataset tells what broken files are,
    unless they are to be left out; all of this before anything is written. Otherwise as ``create``
    and ``extract``; Stopped.
    """
    progress = progress or Silent()
    place = Path(model)
    tree = Tree(format_named(name), Path(root), read_model(place), place, told)
    samples = None if dataset is None else JsonLines(Path(dataset))
    store = _existing(Path(path), tree.root, filesystem)
    plan = plan_import(tree, samples, store, choices or Choices(), progress, stop)
    for line in plan.notes():
        progress.note(line)
    if store is None:
        store = _created(Path(path), tree, plan, layout or Layout(), progress, filesystem)
    else:
        _refuse_other_store(store, tree, plan)
    extraction = already_filled(store, progress=progress)
    given_back = 0
    if extraction is None:
        with closing(_source(store, tree, plan)) as source:
            extraction = extract(store, source, space=space, progress=progress, stop=stop)
    else:
        given_back = _give_back(store, tree, plan, progress, stop)
    return _told(store, plan, extraction, given_back)


def _existing(path: Path, tree: Path, filesystem: Filesystem) -> Store | None:
    """The store that is there already; None where one can be made.

    Where none can be, that is said before hours of looking at files. Raises StoreExists,
    StorageFailed, and MalformedInput for a place within the tree.
    """
    if filesystem.exists(path / keys.IDENTITY):
        return Store.open(path, filesystem=filesystem)
    if free_target(path, filesystem).is_relative_to(tree.resolve()):
        raise MalformedInput(
            "the store would be inside the tree that is only read",
            place=str(path),
            remedy="choose a place outside of it",
        )
    return None


def _created(
    path: Path,
    tree: Tree,
    plan: TreePlan,
    layout: Layout,
    progress: Progress,
    filesystem: Filesystem,
) -> Store:
    try:
        return create(
            path,
            plan.samples,
            tree.model_place,
            plan.capture.layers,
            plan.capture.dtype,
            codec=layout.codec,
            revision=layout.revision,
            chunk_rows=layout.chunk_rows,
            shard_rows=layout.shard_rows,
            layer_convention=tree.told.layer_convention,
            progress=progress,
            filesystem=filesystem,
        )
    except StoreExists as error:
        raise StoreExists(
            "something was put there while the tree was looked at",
            place=str(path),
            remedy="if it is another import of this tree, run the same command again",
        ) from error


def _refuse_other_store(store: Store, tree: Tree, plan: TreePlan) -> None:
    held, model = store.identity, tree.model
    layers = parse_layers(
        plan.capture.layers,
        model.num_layers,
        convention=tree.told.layer_convention,
        model_type=model.model_type,
    )
    pairs = {
        "layers": (held.capture.layers, layers),
        "dtype": (held.capture.dtype, plan.capture.dtype),
        "model": (held.model.config_digest, model.config_digest),
    }
    different = [name for name, (there, told) in pairs.items() if there != told]
    if different:
        raise MalformedInput(
            f"the store there is another one: its {' and '.join(different)} are others",
            place=str(store.root),
            remedy="give another place for the store, or say of the tree what the store says",
        )


def _source(store: Store, tree: Tree, plan: TreePlan) -> TreeSource:
    files = {sample: one.file for sample, one in plan.match.files.items()}
    absent = (sample for sample in range(store.plan.samples) if sample not in files)
    reasons = {sample: _reason(sample, plan) for sample in absent}
    recorded = {
        "engine": "import",
        "format": tree.form.name,
        "norm_by": plan.capture.norm_by,
    }
    return TreeSource(tree.form, store.identity, Holdings(files, reasons), recorded)


def _give_back(
    store: Store, tree: Tree, plan: TreePlan, progress: Progress, stop: Callable[[], bool]
) -> int:
    """Mend the shards of absent samples that have a sound file now; how many are there again."""
    absent = status(store).shards_absent
    shards = [shard for shard in absent if _has_sound(store, shard, tree, plan)]
    if not shards:
        return 0
    done = repair(
        store,
        source=lambda: _source(store, tree, plan),
        shards=range(shards[0], shards[-1] + 1),
        apply=True,
        progress=progress,
        stop=stop,
    ).done
    return done.samples_reextracted


def _has_sound(store: Store, shard: int, tree: Tree, plan: TreePlan) -> bool:
    """Whether the file of an absent sample of a shard can be read as its states."""
    hidden = store.identity.model.hidden_size
    files = (plan.match.files.get(one.sample) for one in store.manifest(store.marker(shard)).absent)
    return any(one and not tree.form.read(one.file, hidden).faults for one in files)


def _reason(sample: int, plan: TreePlan) -> Failed:
    if sample not in plan.match.broken:
        return Failed(sample, "missing", "no file of the tree holds its tokens")
    one = plan.match.broken[sample]
    return failed(sample, one.file.name, one.faults[0])


def _told(store: Store, plan: TreePlan, extraction: ExtractionSummary, given_back: int) -> Import:
    return Import(
        store=store,
        files=len(plan.scanned),
        norm_by=plan.capture.norm_by,
        left_out=_named(plan.left_out),
        redundant=_named(plan.redundant),
        without_file=len(plan.rows) - len(plan.match.files),
        trimmed=len(plan.match.padded),
        given_back=given_back,
        notes=list(plan.notes()),
        extraction=extraction,
    )


def _named(files: list[tuple[ScannedFile, Fault]]) -> list[LeftOut]:
    return [LeftOut(one.file.name, fault) for one, fault in files]
