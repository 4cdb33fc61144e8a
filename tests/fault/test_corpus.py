"""The whole corpus of damage by level: found exactly where promised, and nobody else accused."""

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import pytest

from hsstore.integrity.fsck import fsck
from hsstore.integrity.repair import repair
from hsstore.model.finding import LEVELS, Finding, Level
from hsstore.storage.store import Store
from hsstore.testing import corpus, unprivileged
from hsstore.testing.corpus import FILES, WHOLE_CORPUS, Entry, FileKind
from hsstore.testing.faults import Unreadable
from hsstore.testing.grounds import GROUNDS
from hsstore.testing.places import Planted
from hsstore.testing.sources import SeededSource
from hsstore.testing.thinning import EVERY
from hsstore.testing.verdicts import assert_exact

# Bytes of a shard file lie elsewhere when they are compressed; nothing else depends on the codec.
BY_CODEC = ("data", "shards", "chunks", "index", "stale", "again", "intent")
FORBIDDEN = [entry for entry in WHOLE_CORPUS if entry.name.startswith("forbid-")]
# The other user's look is one for many; these are looked at by this process.
OPEN = [entry for entry in WHOLE_CORPUS if entry not in FORBIDDEN]
SOME = OPEN[::9]


def cases(codec: str, entries: Iterable[Entry]) -> list[Entry]:
    return [e for e in entries if codec == "none" or any(word in e.name for word in BY_CODEC)]


class Stores:
    """Copies of the grounds, each made once; ``before`` is what is said of one unhurt."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._before: dict[tuple[str, str, Level], list[Finding]] = {}

    def copy(self, ground: str, codec: str, to: Path) -> Path:
        origin = self.folder / f"{ground}-{codec}"
        if not origin.exists():
            origin.mkdir()
            GROUNDS[ground](origin / "store", codec)
        shutil.copytree(origin, to, symlinks=True)
        return to / "store"

    def before(self, ground: str, codec: str, level: Level) -> list[Finding]:
        if (ground, codec, level) not in self._before:
            origin = self.folder / f"{ground}-{codec}" / "store"
            self._before[ground, codec, level] = look(origin, level)
        return self._before[ground, codec, level]


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Stores:
    return Stores(tmp_path_factory.mktemp("grounds"))


def look(store: Store | Path, level: Level) -> list[Finding]:
    return list(fsck(store, level, threads=1))


def verdict(
    planted: Planted, level: Level, findings: Sequence[Finding], before: Sequence[Finding]
) -> str:
    """How a look at a level did: ``found``, ``-`` where that is not promised, or what is wrong."""
    known = {(f.kind, f.path, f.shard) for f in before}
    new = [f for f in findings if (f.kind, f.path, f.shard) not in known]
    if missed := planted.missed(level, new):
        return f"MISSED {missed}, said {new}"
    if false := planted.false(level, new):
        return f"FALSE {false}"
    return "found" if planted.promised(level) else "-"


def row(stores: Stores, folder: Path, codec: str, entry: Entry) -> list[str]:
    root = stores.copy(entry.ground, codec, folder)
    planted = entry.inflict(Store.open(root))
    found = [
        verdict(planted, level, look(root, level), stores.before(entry.ground, codec, level))
        for level in LEVELS
    ]
    shutil.rmtree(folder)
    return found


def is_right(found: str) -> bool:
    return found in {"found", "-"}


@pytest.mark.parametrize("entry", SOME, ids=lambda entry: entry.name)
def test_some_of_the_corpus_is_found_where_promised(
    stores: Stores, tmp_path: Path, entry: Entry
) -> None:
    found = row(stores, tmp_path / "case", "none", entry)
    assert all(map(is_right, found)), found


@pytest.mark.sweep
@pytest.mark.parametrize("codec", ["none", "blosc-zstd"])
def test_all_of_the_corpus_is_found_where_promised(
    stores: Stores, tmp_path: Path, codec: str, record_property: Callable[[str, object], None]
) -> None:
    rows = {
        f"{entry.name} ({codec})": row(stores, tmp_path / "case", codec, entry)
        for entry in cases(codec, OPEN)[::EVERY]
    }
    if codec == "none":
        rows |= forbidden(stores, tmp_path / "forbidden", FORBIDDEN, LEVELS)
    tell(rows, record_property)
    assert [name for name, found in rows.items() if not all(map(is_right, found))] == []


def tell(rows: dict[str, list[str]], record_property: Callable[[str, object], None]) -> None:
    """Print the table."""
    lines = [f"{'damage':36}" + "".join(f"{level:10}" for level in LEVELS)]
    lines += [f"{name:36}" + "".join(f"{found:10}" for found in rows[name]) for name in rows]
    verdicts = [found for row in rows.values() for found in row]
    wrong = [found for found in verdicts if not is_right(found)]
    missed = sum(found.startswith("MISSED") for found in wrong)
    counts = f"{len(rows)} damages x {len(LEVELS)} levels: {verdicts.count('found')} found, "
    counts += f"{verdicts.count('-')} not promised, {missed} missed, {len(wrong) - missed} false"
    print("\n".join([*lines, counts]))  # noqa: T201 - the suite's table
    record_property("damages", len(rows))
    record_property("missed", missed)


# -- and mended ------------------------------------------------------------------------------------


def left_after_repair(stores: Stores, folder: Path, codec: str, entry: Entry) -> list[str]:
    """What is wrong after one repair with a source; AssertionError for states not the seeded."""
    root = stores.copy(entry.ground, codec, folder)
    entry.inflict(Store.open(root))
    store = Store.open(root, to_check=True)
    result = repair(store, source=lambda: SeededSource(store.identity), apply=True, threads=1)
    wrong = [f"{f.kind} {f.path}" for f in (*result.remaining, *look(root, "data"))]
    # What was mended by the generation before has the states of that one.
    if entry.ground in {"sound", "extended", "begun"}:
        assert_exact(root)
    shutil.rmtree(folder)
    return wrong


@pytest.mark.sweep
def test_all_of_the_corpus_is_mended(
    stores: Stores, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    mended = [entry for entry in OPEN if entry.mended][::EVERY]
    left = {e.name: left_after_repair(stores, tmp_path / "case", "none", e) for e in mended}
    record_property("mended", len(mended))
    print(f"{len(mended)} damages mended: equal contents, a clean fsck")  # noqa: T201
    assert {name: wrong for name, wrong in left.items() if wrong} == {}


# -- what may not be read --------------------------------------------------------------------------


def forbidden(
    stores: Stores, folder: Path, entries: Sequence[Entry], levels: Sequence[Level]
) -> dict[str, list[str]]:
    """What an ordinary user's fsck says of files without any right, by entry."""
    folder.mkdir(mode=0o755)
    planted = {}
    # What the child loads first must be whole.
    stores.copy("sound", "none", folder / "whole")
    for entry in entries:
        root = stores.copy(entry.ground, "none", folder / entry.name)
        planted[entry] = entry.inflict(Store.open(root))
    names = ["whole/store", *(f"{entry.name}/store" for entry in entries)]
    said = unprivileged.looked_at(folder, names, levels)[len(levels) :]
    return {
        entry.name: [
            verdict(planted[entry], level, findings, stores.before(entry.ground, "none", level))
            for level, findings in zip(levels, said[n * len(levels) :], strict=False)
        ]
        for n, entry in enumerate(entries)
    }


def test_what_may_not_be_read_is_told_from_damage(stores: Stores, tmp_path: Path) -> None:
    some = [*FORBIDDEN[:2], *FORBIDDEN[4::4]]
    rows = forbidden(stores, tmp_path / "forbidden", some, ("manifest",))
    assert [(name, found) for name, found in rows.items() if not all(map(is_right, found))] == []


# The identity is read once, to open the store.
@pytest.mark.parametrize("file", FILES[1:], ids=lambda file: file.name)
def test_bytes_that_the_disk_refuses_are_told_from_damage(
    stores: Stores, tmp_path: Path, file: FileKind
) -> None:
    root = stores.copy(file.ground, "none", tmp_path / "case")
    store = Store.open(root)
    planted = file.hurt("unreadable", lambda _: None)(store)
    if file.name == "data":
        # Its size is told by its folder; the first that is read of it is the index.
        planted = corpus.unread_index(store)
    elif file.name == "intent-renamed":
        planted = corpus.without_intent(store, planted)
    failing = Store(root, store.identity, store.plan, Unreadable(root / file.path(store)))
    for level in LEVELS:
        before = stores.before(file.ground, "none", level)
        assert is_right(found := verdict(planted, level, look(failing, level), before)), found
