"""The plug pulled on real filesystems, at every operation: what was reported is there."""

import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hsstore.extraction.extractor import extract
from hsstore.model.progress import Silent
from hsstore.storage import writer
from hsstore.storage.extend import extend
from hsstore.storage.store import Store
from hsstore.testing.elsewhere import move_holders_elsewhere
from hsstore.testing.faults import Crash
from hsstore.testing.power import Cut, Disk, disk, why_not
from hsstore.testing.sources import SeededSource
from hsstore.testing.steps import SteppedFilesystem
from hsstore.testing.stores import contents, empty_store, fill, more_samples, replace
from hsstore.testing.thinning import EVERY
from hsstore.testing.verdicts import assert_complete, assert_exact, journalled

LENGTHS, MORE = (3, 4, 16), (5, 9)
CODECS = ("none", "blosc-zstd")


@pytest.fixture(autouse=True)
def journal_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "SYNC_BYTES", 1)


@pytest.fixture(params=["ext4", "xfs"])
def kind(request: pytest.FixtureRequest) -> str:
    kind: str = request.param
    if reason := why_not(kind):
        pytest.skip(reason)
    return kind


@dataclass
class Reports(Silent):
    """What a run said before the power went: this must be true afterwards."""

    committed: set[int] = field(default_factory=set)
    safe: list[int] = field(default_factory=list)
    returned: bool = False

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        if name == "shard-committed":
            self.committed.add(members["shard"])


Work = Callable[[Store, Reports], None]


class Scenario(NamedTuple):
    """What is there, what is done to it, and what is asked of it if that was said to be done."""

    template: Callable[[Path, str], Path]
    work: Work
    generations: range = range(1, 2)
    samples: range = range(len(LENGTHS), len(LENGTHS) + 1)


def extraction(store: Store, reports: Reports) -> None:
    source = SeededSource(store.identity)
    source.safe = reports.safe
    extract(store, source, progress=reports)


def replacement(store: Store, _: Reports) -> None:
    replace(store, 0)


def extension(store: Store, _: Reports) -> None:
    extend(store, store.root.parent / "more.jsonl")


def empty(root: Path, codec: str) -> Path:
    return empty_store(root, LENGTHS, codec=codec).root


def filled(root: Path, codec: str) -> Path:
    return fill(empty_store(root, LENGTHS, codec=codec)).root


def begun(root: Path, codec: str) -> Path:
    """What a killed writer leaves: a claim, a holder, and one of the samples of a shard."""

    def stop(*_: object) -> None:
        if journalled(root):
            raise Crash

    store = empty_store(root, LENGTHS, codec=codec)
    with pytest.raises(Crash):
        extraction(Store.open(root, filesystem=SteppedFilesystem(stop)), Reports())
    assert journalled(root) == {0}
    return store.root


SCENARIOS = {
    "extract": Scenario(empty, extraction),
    "resume": Scenario(begun, extraction),
    "replace": Scenario(filled, replacement, generations=range(1, 3)),
    "extend": Scenario(filled, extension, samples=range(3, 6)),
}


class Material:
    """The templates of a scenario and what an undisturbed run makes of them."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario = scenario
        self.templates = {codec: scenario.template(folder / codec, codec) for codec in CODECS}
        self.more = more_samples(folder / "more.jsonl", MORE, first=len(LENGTHS))
        self.expected: dict[str, dict[str, str]] = {}
        for codec in CODECS:
            root = Path(shutil.copytree(self.templates[codec], folder / f"{codec}-whole"))
            scenario.work(Store.open(root), Reports())
            fill(Store.open(root))
            self.expected[codec] = contents(Store.open(root))

    def lay(self, disk: Disk, codec: str) -> Path:
        """The template on the disk, durable."""
        root = disk.mountpoint / "store"
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(self.templates[codec], root)
        shutil.copy(self.more, disk.mountpoint)
        disk.sync()
        return root


def cut_at(disk: Disk, cut: Cut, at: int, root: Path, work: Work) -> Reports:
    """Run until the operation ``at``, pull the plug instead of it, and switch on again."""
    reports = Reports()

    def before(number: int, _: str, __: Path) -> None:
        if number == at:
            disk.cut(cut)
            raise Crash

    try:
        work(Store.open(root, filesystem=SteppedFilesystem(before)), reports)
        reports.returned = True
        disk.cut(cut)
    except Crash:
        pass
    disk.remount()
    return reports


def assert_as_reported(root: Path, reports: Reports, scenario: Scenario) -> set[int]:
    """All that was said is so; the samples that are journalled."""
    assert_exact(root)
    store, kept = Store.open(root), journalled(root)
    committed = store.committed()
    assert reports.committed <= committed.keys()
    whole = {s for shard in committed for s in store.samples.shard_samples(shard)}
    assert set(reports.safe) <= kept | whole
    assert store.plan.samples in (scenario.samples[0], scenario.samples[-1])
    for shard in committed:
        assert store.marker(shard).version.generation in scenario.generations
    if reports.returned:
        assert store.plan.samples == scenario.samples[-1]
        if 0 in committed:
            assert store.marker(0).version.generation == scenario.generations[-1]
    return kept


def assert_goes_on(root: Path, kept: set[int], scenario: Scenario) -> dict[str, str]:
    """The same command completes the store without what was journalled; its contents."""
    store = Store.open(root)
    if scenario.work is extension:
        store = extend(store, root.parent / "more.jsonl").store
    source = SeededSource(store.identity)
    assert extract(store, source).complete
    assert not kept & set(source.asked)
    if scenario.work is replacement and store.marker(0).version.generation == 1:
        replace(store, 0)
    assert_complete(root)
    return contents(store)


def power_cuts(
    disk: Disk, cut: Cut, material: Material, every: int, first: int = 0
) -> Iterator[int]:
    """Cut at every n-th operation; one codec after the other, this boot and another in turn."""
    scenario = material.scenario
    for turn, codec in enumerate(CODECS):
        returned, n = False, (first + turn * every // len(CODECS)) % every
        while not returned:
            root = material.lay(disk, codec)
            reports = cut_at(disk, cut, n, root, scenario.work)
            if (n // 2) % 2:
                move_holders_elsewhere(root)
            kept = assert_as_reported(root, reports, scenario)
            assert assert_goes_on(root, kept, scenario) == material.expected[codec], n
            returned = reports.returned
            yield n
            n += every


# Every operation is cut on one of them, with either codec; all on each would take an hour. A thin
# sweep cuts at each n-th.
TURNS = [(kind, cut) for kind in ("ext4", "xfs") for cut in Cut]


@pytest.mark.root
@pytest.mark.sweep
@pytest.mark.parametrize("cut", Cut, ids=lambda cut: cut.name)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_power_cut_at_any_operation_loses_nothing_that_was_reported(
    tmp_path: Path, kind: str, name: str, cut: Cut, record_property: Callable[[str, object], None]
) -> None:
    material = Material(SCENARIOS[name], tmp_path)
    with disk(kind) as plugged:
        first, every = TURNS.index((kind, cut)), len(TURNS) * EVERY
        cuts = len(list(power_cuts(plugged, cut, material, every, first)))
    record_property("power cuts", cuts)
    print(f"{cuts} power cuts on {kind} ({cut.name} reaches the disk) during {name}: 0 violations")  # noqa: T201
    assert cuts > 20 / EVERY


@pytest.mark.root
@pytest.mark.parametrize("name", ["extract", "replace"])
def test_some_power_cuts(
    tmp_path: Path, kind: str, name: str, record_property: Callable[[str, object], None]
) -> None:
    material = Material(SCENARIOS[name], tmp_path)
    with disk(kind) as plugged:
        cuts = len(list(power_cuts(plugged, Cut.NOTHING, material, every=47)))
    record_property("power cuts", cuts)
    assert cuts >= 4
