"""Work to be disturbed: what is there before, the command, and what must be true after it.

Each works on a store in a folder of its own, so that what lies beside the store counts too. Run
again after any end, the work goes on where it was.
"""

import contextlib
import dataclasses
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from hsstore.errors import SampleAbsent, SampleDamaged, StoreExists
from hsstore.extraction.extractor import extract
from hsstore.integrity.copying.copy import copy_store
from hsstore.integrity.fsck import fsck
from hsstore.integrity.mending.head_documents import give_back_documents
from hsstore.integrity.mending.waive import waive
from hsstore.integrity.repair import repair
from hsstore.interop.exporting import export_tree
from hsstore.model import keys
from hsstore.model.calibration import Calibration
from hsstore.model.keys import ShardVersion
from hsstore.model.progress import Silent
from hsstore.storage import gc
from hsstore.storage.calibrations import calibrations, publish_calibration
from hsstore.storage.claim import Holder
from hsstore.storage.create import create
from hsstore.storage.extend import extend
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.leftovers import clear_leftovers
from hsstore.storage.reader import Reader
from hsstore.storage.status import status
from hsstore.storage.store import Store
from hsstore.storage.waivers import waiver_numbers, waivers
from hsstore.testing.faults import Crash, FaultyFilesystem
from hsstore.testing.litter import litter
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.stores import (
    CONFIG,
    calibration,
    contents,
    empty_store,
    fill,
    grown,
    ids_of,
    key_of,
    more_samples,
    replace,
)
from hsstore.testing.verdicts import Litter, assert_complete, assert_exact, assert_tidy, leftovers

# Two shards: two samples, then one that fills a shard.
LENGTHS = (3, 6, 16)
MORE = (5, 9)
WAIVED = "it is too long"
UNEXPLAINED = b"unexplained" * 100


class Witness(Silent):
    """Notes what was promised, and how many operations there had been by then.

    ``safe`` are the samples that the source was told to be durable, ``committed`` the shards that
    were reported, ``done`` the end of the whole work; ``asked`` are the samples computed.
    """

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self.safe: dict[int, int] = {}
        self.committed: dict[int, int] = {}
        self.done: int | None = None
        self.asked: list[int] = []

    def now(self) -> int:
        """How many operations there were."""
        counted = getattr(self._filesystem, "operations", 0)
        return counted if isinstance(counted, int) else len(counted)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        """Take note of reported commits."""
        if name == "shard-committed":
            self.committed.setdefault(members["shard"], self.now())

    def source(self, store: Store) -> SeededSource:
        """A source that takes note of what it is told."""
        witness = self

        class Told(SeededSource):
            def settled(self, samples: Iterable[int]) -> None:
                for sample in samples:
                    witness.safe.setdefault(sample, witness.now())

        told = Told(store.identity)
        told.asked = self.asked
        return told


Work = Callable[[Path, Filesystem, Witness], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``prepare`` takes an empty folder and a codec, the others the folder of a store.

    ``truth`` raises unless all that is there is right, at any moment. ``gained`` says whether what
    the work promises by returning holds. ``verdict`` describes a finished store, to be compared
    with an undisturbed one. ``killed`` is, where a first process is killed at the same work, the
    """

    name: str
    prepare: Callable[[Path, str], None]
    work: Work
    truth: Callable[[Path], object]
    gained: Callable[[Path], bool]
    verdict: Callable[[Path], object]

    def __str__(self) -> str:
        return self.name


def store_in(folder: Path) -> Path:
    """Where a scenario keeps its store."""
    return folder / "store"


def _tree_in(folder: Path) -> Path:
    return folder / "tree"


# -- before ----------------------------------------------------------------------------------------


def _empty(folder: Path, codec: str) -> None:
    empty_store(store_in(folder), LENGTHS, codec=codec)


def _filled(folder: Path, codec: str) -> None:
    fill(empty_store(store_in(folder), LENGTHS, codec=codec))


def _lacking(folder: Path, codec: str) -> None:
    """All is committed, the first sample as absent."""
    fill(empty_store(store_in(folder), LENGTHS, codec=codec), failing={key_of(0): "not yet"})


def _nothing(folder: Path, codec: str) -> None:
    (folder / "codec").write_text(codec)


# Whether a process is killed when it comes to an operation, by its kind and path.
Fatal = Callable[[str, Path], bool]


def _dead_before(work: Work, fatal: Fatal, count: int = 1) -> Callable[[Path, str], None]:
    """A store whose writer was killed when it came to the ``count``-th fatal operation."""

    def prepare(folder: Path, codec: str) -> None:
        _empty(folder, codec)
        _kill(folder, work, fatal, count)

    return prepare


def _kill(folder: Path, work: Work, fatal: Fatal, count: int = 1) -> None:
    class Deadly(FaultyFilesystem):
        def _count(self, kind: str, path: Path) -> None:
            seen = [p for k, p in self.operations if fatal(k, p)]
            if fatal(kind, path) and len(seen) == count - 1:
                self.crash(0)
            super()._count(kind, path)

    filesystem = Deadly()
    with contextlib.suppress(Crash):
        work(folder, filesystem, Witness(filesystem))


def _writing_journal(kind: str, path: Path) -> bool:
    return (kind, path.name) == ("write", keys.STAGED_JOURNAL)


def _writing_marker(kind: str, path: Path) -> bool:
    name = keys.marker(ShardVersion(0, 1), absent=False).rpartition("/")[2]
    return kind == "create" and path.name.startswith(f".{name}.")


def _replacing(kind: str, path: Path) -> bool:
    return kind == "rename" and keys.HIDDEN_STATES in path.parts


def _of_another_boot(prepare: Callable[[Path, str], None]) -> Callable[[Path, str], None]:
    """The same, by a process of which nothing can be proved."""

    def prepared(folder: Path, codec: str) -> None:
        here = Holder.this_process

        def elsewhere(writer: str) -> Holder:
            return dataclasses.replace(here(writer), boot="another")

        with mock.patch.object(Holder, "this_process", elsewhere):
            prepare(folder, codec)

    return prepared


def _undecided(folder: Path, codec: str) -> None:
    """A replacement whose file is in place, without its marker, and whose intent was lost."""
    _lacking(folder, codec)
    # The intent has the name of the marker, and comes first.
    _kill(folder, _replace, _writing_second, 2)
    (intent,) = (store_in(folder) / keys.INTENT).iterdir()
    intent.unlink()


def _writing_second(kind: str, path: Path) -> bool:
    name = keys.marker(ShardVersion(0, 2), absent=False).rpartition("/")[2]
    return kind == "create" and path.name.startswith(f".{name}.")


def _decided(folder: Path, codec: str) -> None:
    """A replacement that was decided, and its writer killed."""
    _lacking(folder, codec)
    _kill(folder, _replace, _replacing)


def _unexplained(folder: Path, codec: str) -> None:
    """A shard file in place that no manifest explains."""
    _empty(folder, codec)
    path = store_in(folder) / keys.shard_file(0)
    path.parent.mkdir(parents=True)
    path.write_bytes(UNEXPLAINED)


def _damaged(folder: Path, codec: str) -> None:
    """Bad bytes in a shard file, a token file gone and metadata edited."""
    _filled(folder, codec)
    root = store_in(folder)
    path = root / keys.shard_file(0)
    raw = bytearray(path.read_bytes())
    raw[5] ^= 1
    path.write_bytes(raw)
    (root / keys.tokens(0, 1)).unlink()
    (root / keys.zarr_metadata()).write_text("{}")


def _lost(folder: Path, codec: str) -> None:
    """All shard files are gone, with their folders."""
    _filled(folder, codec)
    shutil.rmtree(store_in(folder) / keys.ZARR / keys.HIDDEN_STATES / "c")


def _of_the_first_days(folder: Path, codec: str) -> None:
    """A store without the folders that came later."""
    _filled(folder, codec)
    for name in keys.LATER_FOLDERS:
        (store_in(folder) / name).rmdir()


def _unlisted(folder: Path, codec: str) -> None:
    """A manifest is gone, and a replica has it."""
    _filled(folder, codec)
    shutil.copytree(store_in(folder), _replica_of(folder))
    next((store_in(folder) / keys.MANIFEST).glob("00000001-*")).unlink()


def _replica_of(folder: Path) -> Path:
    return folder.parent / "replica"


def _beheaded(folder: Path, codec: str) -> None:
    """hsstore.json and the newest plan are gone or torn, and a copy of the store has them."""
    _filled(folder, codec)
    root = store_in(folder)
    grown(Store.open(root), MORE)
    fill(Store.open(root))
    shutil.copytree(root, _replica_of(folder))
    (root / keys.IDENTITY).write_text("torn")
    (root / keys.plan(1)).unlink()


def _unchained(folder: Path, codec: str) -> None:
    """A plan before the newest is gone."""
    _filled(folder, codec)
    root = store_in(folder)
    grown(Store.open(root), MORE)
    fill(Store.open(root))
    (root / keys.plan(0)).unlink()


def _bare(folder: Path, codec: str) -> None:
    """A folder gone."""
    _filled(folder, codec)
    (store_in(folder) / keys.QUARANTINE).rmdir()


def _displaced(folder: Path, codec: str) -> None:
    """A folder gone, and a folder in place of a file."""
    _bare(folder, codec)
    root = store_in(folder)
    path = root / keys.array_chunk(keys.LOSS_MASK, 0)
    path.unlink()
    path.mkdir()


def _littered(folder: Path, codec: str) -> None:
    """A committed shard beside which everything that killed writers may leave is left."""
    _decided(folder, codec)
    root = store_in(folder)
    for name in (keys.COMMIT, keys.INTENT, keys.MANIFEST):
        (root / name / ".00000001-000001.json.0123abcd").write_text("half")
    (root / keys.stage(1, "1" * 16)).mkdir()
    (root / keys.stage(1, "1" * 16) / keys.STAGED_DATA).write_bytes(b"data")
    (root / keys.claim(1, 3)).write_text("torn")


def _waived_in_vain(folder: Path, codec: str) -> None:
    """A sample is absent, and the waiver of it torn; the folder of waivers may be gone by now."""
    _lacking(folder, codec)
    (store_in(folder) / keys.waiver(0)).write_text("torn")


def _folderless(folder: Path, codec: str) -> None:
    """A sample is absent, and there is no folder for waivers."""
    _lacking(folder, codec)
    (store_in(folder) / keys.WAIVER).rmdir()


def _strewn(folder: Path, codec: str) -> None:
    """Committed shards beside which older generations, failed attempts and growths are left."""
    _filled(folder, codec)
    litter(Store.open(store_in(folder)), ("superseded", "staged", "orphan-manifests", "growths"))


def _original_of(folder: Path) -> Path:
    """The store that a scenario copies; nobody disturbs it."""
    return folder.parent / "original"


def _uncopied(folder: Path, codec: str) -> None:
    """A filled store, and nothing at the destination."""
    fill(empty_store(_original_of(folder), LENGTHS, codec=codec))


def _unexported(form: str) -> Callable[[Path, str], None]:
    layers = (1, 2, 4, "final" if form == "specforge" else "final:pre")

    def prepare(folder: Path, codec: str) -> None:
        fill(empty_store(store_in(folder), LENGTHS, layers=layers, codec=codec))

    return prepare


def _outdated(folder: Path, codec: str) -> None:
    """A copy of a store whose first shard was replaced since."""
    lacking = {key_of(0): "not yet"}
    original = fill(empty_store(_original_of(folder), LENGTHS, codec=codec), failing=lacking)
    copy_store(original, store_in(folder), min_free_bytes=0)
    replace(original, 0)


def _outgrown(folder: Path, codec: str) -> None:
    """A copy of a store that was extended and filled since, and calibrated."""
    _uncopied(folder, codec)
    original = Store.open(_original_of(folder))
    copy_store(original, store_in(folder), min_free_bytes=0)
    publish_calibration(original, calibration(original))
    fill(grown(original, MORE))


# -- work ------------------------------------------------------------------------------------------


def _extract(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    store = Store.open(store_in(folder), filesystem=filesystem)
    if extract(store, witness.source(store), progress=witness).complete:
        witness.done = witness.now()


def _replace(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    store = Store.open(store_in(folder), filesystem=filesystem)
    clear_leftovers(store, witness)
    if store.committed()[0][0].generation == 1:
        replace(store, 0)
    witness.done = witness.now()


def _gc(folder: Path, filesystem: Filesystem, _: Witness) -> None:
    gc.clear(Store.open(store_in(folder), filesystem=filesystem))


def _clear(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    clear_leftovers(Store.open(store_in(folder), filesystem=filesystem), witness)
    witness.done = witness.now()


def _repair(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    store = Store.open(store_in(folder), filesystem=filesystem, to_check=True)
    result = repair(
        store,
        source=lambda: witness.source(store),
        replica=_replica_of(folder) if _replica_of(folder).exists() else None,
        apply=True,
        threads=1,
        progress=witness,
    )
    if not result.remaining:
        witness.done = witness.now()


def _give_back(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    give_back_documents(store_in(folder), _replica_of(folder), apply=True, filesystem=filesystem)
    witness.done = witness.now()


def _waive(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    store = Store.open(store_in(folder), filesystem=filesystem)
    if not waive(store, [key_of(0)], WAIVED, apply=True).remaining:
        witness.done = witness.now()


def _extend(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    dataset = more_samples(folder.parent / "more.jsonl", MORE, first=len(LENGTHS))
    extend(store_in(folder), dataset, filesystem=filesystem)
    witness.done = witness.now()


def _extend_and_fill(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    """Whoever sees the new plan goes on from there, durable or not."""
    if not Store.open(store_in(folder), filesystem=filesystem).plan.generation:
        _extend(folder, filesystem, witness)
        witness.done = None
    _extract(folder, filesystem, witness)


def _create(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    model = folder.parent / "model" / "config.json"
    model.parent.mkdir(exist_ok=True)
    model.write_text(json.dumps(CONFIG | {"hidden_size": 8}))
    dataset = more_samples(folder.parent / "first.jsonl", LENGTHS, first=0)
    options: dict[str, Any] = {
        "codec": (folder / "codec").read_text(), "chunk_rows": 4, "shard_rows": 16,
    }  # fmt: skip
    with contextlib.suppress(StoreExists):
        create(store_in(folder), dataset, model, (1, "final"), "bfloat16",
               filesystem=filesystem, **options)  # fmt: skip
    witness.done = witness.now()


def _copy(folder: Path, filesystem: Filesystem, witness: Witness, codec: str | None = None) -> None:
    result = copy_store(_original_of(folder), store_in(folder), filesystem=filesystem,
                        progress=witness, min_free_bytes=0, codec=codec)  # fmt: skip
    if result.complete:
        witness.done = witness.now()


def _export(form: str) -> Work:
    def work(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
        if not _tree_in(folder).exists():
            export_tree(form, store_in(folder), _tree_in(folder), min_free_bytes=0,
                        filesystem=filesystem)  # fmt: skip
        witness.done = witness.now()

    return work


def _encode(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    """Copy with the other codec."""
    plain = Store.open(_original_of(folder)).identity.codec == "none"
    _copy(folder, filesystem, witness, codec="blosc-zstd" if plain else "none")


def _calibrate(folder: Path, filesystem: Filesystem, witness: Witness) -> None:
    store = Store.open(store_in(folder), filesystem=filesystem)
    with contextlib.suppress(FileExistsError):
        publish_calibration(store, calibration(store))
    witness.done = witness.now()


# -- at any moment ---------------------------------------------------------------------------------


def _exact(folder: Path) -> object:
    return assert_exact(store_in(folder))


def _old_or_new(folder: Path) -> object:
    """The first sample is absent in the first generation, and everything else is right."""
    store = Store.open(store_in(folder))
    assert 0 in store.committed(), "a committed shard is gone"
    old = store.committed()[0][0].generation == 1
    with contextlib.suppress(*((SampleAbsent,) if old else ())):
        assert_exact(store.root)
    _others_exact(folder)
    return old


def _exact_and_kept(folder: Path) -> object:
    """The bytes that nobody can explain are still there."""
    root = store_in(folder)
    kept = [root / keys.shard_file(0), *(root / keys.QUARANTINE).iterdir()]
    assert any(path.exists() and path.read_bytes() == UNEXPLAINED for path in kept)
    return _exact(folder)


def _exact_if_there(folder: Path) -> object:
    """A store that is being created is there as a whole or not at all."""
    return store_in(folder).exists() and _planned(folder)


def _whole_if_there(form: str) -> Callable[[Path], object]:
    """An exported tree is there with all of its files or not at all."""

    def truth(folder: Path) -> object:
        if not _tree_in(folder).exists():
            return False
        with tempfile.TemporaryDirectory() as place:
            other = export_tree(form, store_in(folder), Path(place, "tree"), min_free_bytes=0)
            assert _all_files(other.root) == _all_files(_tree_in(folder))
        return True

    return truth


def _planned(folder: Path) -> object:
    """The plan, its token files and its table are whole, and so is what is committed."""
    store = Store.open(store_in(folder))
    planned = LENGTHS + MORE if store.plan.generation else LENGTHS
    assert [store.samples.extent(n).rows for n in range(store.plan.samples)] == [*planned]
    for shard in range(store.plan.shards):
        store.tokens(shard)
    return assert_exact(store.root)


def _others_exact(folder: Path) -> object:
    """All but the first sample read as they were computed, whatever else is not mended yet."""
    store = Store.open(store_in(folder), to_check=True)
    reader = Reader(store)
    for sample, rows in enumerate(LENGTHS):
        expected = seeded_states(store.identity, ids_of(sample, rows))
        with contextlib.suppress(*((SampleDamaged, SampleAbsent) if sample == 0 else ())):
            np.testing.assert_array_equal(reader.read(sample, verify=True), expected, strict=True)
    return None


def _others_there(folder: Path) -> object:
    """A waiver that is there, under its name, is whole or still the torn one."""
    store = Store.open(store_in(folder))
    assert {*waiver_numbers(store)} <= {0}
    return _others_exact(folder)


def _calibrations(folder: Path) -> list[Calibration]:
    return calibrations(Store.open(store_in(folder)))


# -- once it is done -------------------------------------------------------------------------------


def _all_committed(folder: Path) -> bool:
    store = Store.open(store_in(folder))
    return len(store.committed()) == store.plan.shards


def _second_generation(folder: Path) -> bool:
    return Store.open(store_in(folder)).committed()[0][0].generation == 2  # noqa: PLR2004


def _second_plan(folder: Path) -> bool:
    return Store.open(store_in(folder)).plan.generation == 1


def _there_and_committed(folder: Path) -> bool:
    return _there(folder) and _all_committed(folder)


def _sound(folder: Path) -> bool:
    return not [found for found in fsck(store_in(folder), threads=1) if found.severity == "error"]


def _opens(folder: Path) -> bool:
    return Store.open(store_in(folder)).plan.generation == 1


def _chained(folder: Path) -> bool:
    return [*fsck(store_in(folder), "quick", threads=1)] == []


def _waived(folder: Path) -> bool:
    return [w.reason for w in waivers(Store.open(store_in(folder))).values()] == [WAIVED]


def _there(folder: Path) -> bool:
    return store_in(folder).exists()


def _anything(_: Path) -> bool:
    return True


# -- in the end ------------------------------------------------------------------------------------


def _complete(folder: Path) -> object:
    assert_complete(store_in(folder))
    return contents(Store.open(store_in(folder)))


def _tidy(folder: Path) -> object:
    assert_tidy(store_in(folder))
    store = Store.open(store_in(folder))
    assert_exact(store.root)
    return store.committed()


def _replaced(folder: Path) -> object:
    return _complete(folder), Store.open(store_in(folder)).committed()


def _mended(folder: Path) -> object:
    store = Store.open(store_in(folder))
    # A repair that finds nothing to do leaves a dead one's claim to whoever works there next.
    clear_leftovers(store, Silent())
    # What a dead one did not come to rename into place is for gc.
    left = [Path(name).parts[0] for name in leftovers(store.root)]
    assert {*left} <= {keys.ZARR, keys.PLAN, keys.QUARANTINE}, left
    assert assert_exact(store.root) == store.plan.samples
    return contents(store), _files(folder, keys.PLAN), _arrays(folder)


def _grown(folder: Path) -> object:
    assert_exact(store_in(folder))
    return _tidy(folder), _files(folder, keys.PLAN), _arrays(folder)


def _created(folder: Path) -> object:
    _alone(folder)
    root, kinds = store_in(folder), {found.kind for found in fsck(store_in(folder), threads=1)}
    plan = Store.open(root).plan
    names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))
    return kinds, plan.dataset, plan.sample_table, plan.token_files, names


def _alone(folder: Path) -> None:
    """Litter where something is left beside the store."""
    if left := [path.name for path in folder.iterdir() if path.name.startswith(".")]:
        raise Litter(f"left behind: {', '.join(left)}")


def _exported(folder: Path) -> object:
    _alone(folder)
    return _all_files(_tree_in(folder))


def _encoded(folder: Path) -> object:
    _alone(folder)
    return _complete(folder), _arrays_but_metadata(folder)


def _tidy_but_for(kind: str, root: Path) -> None:
    """A temporary name of such a document, to which no writer comes back, is for gc.

    What is in the quarantine is for people.
    """
    left = [n for n in leftovers(root) if Path(n).parts[0] not in (kind, keys.QUARANTINE)]
    if left:
        raise Litter(f"left behind: {', '.join(left)}")


def _same(folder: Path) -> object:
    """All files of the copy are those of the original; there is no other file."""
    _alone(folder)
    _tidy_but_for(keys.CALIBRATION, store_in(folder))
    # A power cut may bring an older marker back.
    gc.clear(Store.open(store_in(folder)))
    copied, original = (
        {
            path.relative_to(root): path.read_bytes()
            for path in root.rglob("[!.]*")
            if path.is_file()
        }
        for root in (store_in(folder), _original_of(folder))
    )
    differing = sorted(
        n for n in copied.keys() | original.keys() if copied.get(n) != original.get(n)
    )
    assert not differing, differing
    return assert_exact(store_in(folder))


def _arrays_but_metadata(folder: Path) -> dict[str, bytes]:
    found = _arrays(folder)
    return {name: found[name] for name in found if not name.endswith("zarr.json")}


def _arrays(folder: Path) -> dict[str, bytes]:
    """All of states.zarr but the shard files."""
    found = _files(folder, keys.ZARR)
    return {name: found[name] for name in found if f"{keys.HIDDEN_STATES}/c" not in name}


def _all_files(root: Path) -> dict[str, bytes]:
    paths = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in paths}


def _files(folder: Path, part: str) -> dict[str, bytes]:
    paths = sorted((store_in(folder) / part).rglob("*"))
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in paths
        if path.is_file() and not path.name.startswith(".")
    }


def _given_back(folder: Path) -> object:
    root = store_in(folder)
    clear_leftovers(Store.open(root), Silent())
    assert assert_exact(root) == len(LENGTHS + MORE)
    names = (keys.IDENTITY, keys.plan(0), keys.plan(1))
    return [(root / n).read_bytes() == (_replica_of(folder) / n).read_bytes() for n in names]


def _accepted(folder: Path) -> object:
    store = Store.open(store_in(folder))
    clear_leftovers(store, Silent())
    _tidy_but_for(keys.WAIVER, store.root)
    found = status(store)
    return contents(store), found.samples_waived, found.complete, _sound(folder)


# -- all of them -----------------------------------------------------------------------------------


def _filling(name: str, prepare: Callable[[Path, str], None]) -> Scenario:
    return Scenario(name, prepare, _extract, _exact, _all_committed, _complete)


_journalled = _dead_before(_extract, _writing_journal, 2)
_unmarked = _dead_before(_extract, _writing_marker)

EXTRACT = _filling("extract", _empty)
ADOPT = _filling("resume in place", _journalled)
SALVAGE = _filling("resume by copying", _of_another_boot(_journalled))
ROLL_FORWARD = _filling("roll forward", _unmarked)
SET_ASIDE = Scenario(
    "set aside", _unexplained, _extract, _exact_and_kept, _all_committed, _complete
)
REPLACE = Scenario("replace", _lacking, _replace, _old_or_new, _second_generation, _replaced)
REPLAY = Scenario(
    "replay an intent", _decided, _replace, _old_or_new, _second_generation, _replaced
)
SUPERSEDE = Scenario("commit a later generation", _undecided, _repair, _anything, _sound, _mended)
CLEAR = Scenario("clear leftovers", _littered, _clear, _old_or_new, _anything, _tidy)
GC = Scenario("gc", _strewn, _gc, _exact, _anything, _tidy)
CREATE = Scenario("create", _nothing, _create, _exact_if_there, _there, _created)
EXTEND = Scenario("extend", _filled, _extend, _planned, _second_plan, _grown)
EXTEND_AND_FILL = Scenario(
    "extend and fill", _filled, _extend_and_fill, _planned, _all_committed, _complete
)
ADOPT_MANIFEST = Scenario("repair a manifest", _unlisted, _repair, _anything, _sound, _mended)
REPAIR = Scenario("repair", _damaged, _repair, _others_exact, _sound, _mended)
REMAKE = Scenario("repair lost files", _lost, _repair, _anything, _sound, _mended)
RESTORE = Scenario("restore", _displaced, _repair, _others_exact, _sound, _mended)
RESTORE_FOLDER = Scenario("restore a folder", _bare, _repair, _exact, _sound, _mended)
CALIBRATE = Scenario(
    "calibrate", _of_the_first_days, _calibrate, _calibrations, lambda f: bool(_calibrations(f)),
    lambda f: [dataclasses.replace(found, store="") for found in _calibrations(f)],
)  # fmt: skip

GIVE_BACK = Scenario("give back", _beheaded, _give_back, _anything, _opens, _given_back)
REBUILD_PLAN = Scenario("rebuild a plan", _unchained, _repair, _exact, _chained, _mended)
WAIVE = Scenario("waive", _folderless, _waive, _others_there, _waived, _accepted)
WAIVE_AGAIN = Scenario("waive again", _waived_in_vain, _waive, _others_there, _waived, _accepted)
COPY = Scenario("copy", _uncopied, _copy, _exact_if_there, _there_and_committed, _same)
COPY_AGAIN = Scenario("copy again", _outdated, _copy, _old_or_new, _second_generation, _same)
COPY_GROWN = Scenario(
    "copy a growth", _outgrown, _copy, _planned,
    lambda f: _all_committed(f) and bool(_calibrations(f)), _same,
)  # fmt: skip
ENCODE = Scenario(
    "copy with another codec", _uncopied, _encode, _exact_if_there, _there_and_committed, _encoded
)
EXPORT, EXPORT_DATASET = (
    Scenario(f"export for {form}", _unexported(form), _export(form), _whole_if_there(form),
             lambda f: _tree_in(f).exists(), _exported)
    for form in ("specforge", "speculators")
)  # fmt: skip

SCENARIOS = (
    EXTRACT, ADOPT, SALVAGE, ROLL_FORWARD, SET_ASIDE, REPLACE, REPLAY, SUPERSEDE, CLEAR, GC,
    CREATE, EXTEND, EXTEND_AND_FILL, REPAIR, REMAKE, ADOPT_MANIFEST, RESTORE, RESTORE_FOLDER,
    CALIBRATE, GIVE_BACK, REBUILD_PLAN, WAIVE, WAIVE_AGAIN, COPY, COPY_AGAIN, COPY_GROWN, ENCODE,
    EXPORT, EXPORT_DATASET,
)  # fmt: skip
