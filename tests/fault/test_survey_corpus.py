"""A tree of 500 files with every damage that applies: what is found, and by what.

Nothing that a container, the values or the dataset can prove is missed; what nothing can prove is
called unverifiable or, where the container vouches for what somebody saved, is nobody's to find.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hsstore.interop.survey import Survey, survey
from hsstore.interop.surveying.finding import Depth
from hsstore.testing import loose_files
from hsstore.testing.loose_damage import CORPUS, DONOR, SHOWS, Loose, LooseDamage, Shows
from hsstore.testing.loose_files import Saver

SAMPLES = 500
FEW = 140
RUNS: dict[Shows, tuple[Depth, bool]] = {
    "quick": ("quick", False),
    "checksums": ("checksums", False),
    "content": ("content", False),
    "dataset": ("content", True),
}


@dataclass(frozen=True, slots=True)
class Container:
    name: str
    save: Saver
    suffix: str
    checked: bool
    samples: int


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree of one container; ``damage_of`` names what was done to which sample."""

    root: Path
    container: Container
    dataset: Path
    damage_of: dict[int, LooseDamage]

    def shows(self, damage: LooseDamage) -> Shows:
        if self.container.name == "gzip" and damage.checked == "checksums":
            return "quick"  # all of it is expanded, for the tokens
        return damage.checked if self.container.checked else damage.bare


CONTAINERS = (
    Container("zip", loose_files.as_zip, ".pt", checked=True, samples=SAMPLES),
    Container("gzip", loose_files.as_gzip, ".ckpt.gz", checked=True, samples=FEW),
    Container("legacy", loose_files.as_legacy, ".pt", checked=False, samples=FEW),
    Container(
        "safetensors", loose_files.as_safetensors, ".safetensors", checked=False, samples=FEW
    ),
)


def found(run: Survey, samples: int) -> dict[int, set[str]]:
    """The kinds found, by sample."""
    kinds: dict[int, set[str]] = {}
    for finding in run:
        first = last = finding.row
        if finding.path is not None:
            # Of two with the same states the later is told, and the earlier is the damaged one.
            where = finding.detail if finding.kind == "same-states" else finding.path
            told = re.search(r"(?:data|hs)_([0-9]+)", where)
            first = last = int(told[1]) if told else None
        if finding.last_row is not None:
            last = finding.last_row
        assert first is not None
        assert last is not None
        assert last < samples
        for sample in range(first, last + 1):
            kinds.setdefault(sample, set()).add(finding.kind)
    return kinds


@pytest.fixture(scope="module", params=CONTAINERS, ids=lambda container: container.name)
def container(request: pytest.FixtureRequest) -> Container:
    chosen: Container = request.param
    return chosen


@pytest.fixture(scope="module")
def healthy(container: Container, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    folder = tmp_path_factory.mktemp(container.name)
    loose_files.tree(folder / "tree", container.samples, container.save, container.suffix)
    dataset = loose_files.dataset(folder / "data.jsonl", container.samples)
    return Tree(folder / "tree", container, dataset, {})


# The shallowest goes by names, the deepest does all that the two between them do.
@pytest.mark.parametrize("shows", ["quick", "dataset"])
def test_nothing_is_said_of_a_healthy_tree(healthy: Tree, shows: Shows) -> None:
    depth, dataset = RUNS[shows]
    run = survey(healthy.root, depth=depth, dataset=healthy.dataset if dataset else None)
    assert [*run] == []
    summary = run.summary
    assert summary.complete
    assert summary.present == healthy.container.samples
    if healthy.container.checked and depth != "quick":
        assert summary.proven.files == healthy.container.samples
    if not healthy.container.checked:
        assert summary.proven.files == 0
        assert summary.unverifiable.files == healthy.container.samples


def corpus_of(container: Container) -> list[LooseDamage]:
    return [damage for damage in CORPUS if container.name == "zip" or not damage.zip_only]


def inflicted(healthy: Tree) -> Tree:
    """Every damage, each on files far apart from each other."""
    container = healthy.container
    corpus = corpus_of(container)
    damages: dict[int, LooseDamage] = {}
    for at, sample in enumerate(range(1, container.samples - DONOR - 1, 3)):
        damages[sample] = corpus[at % len(corpus)]
    for sample, damage in damages.items():
        path = loose_files.path_of(healthy.root, sample, container.suffix)
        item = loose_files.item_for(container.suffix)
        damage.inflict(Loose(path, container.save, item, sample))
    return Tree(healthy.root, container, healthy.dataset, damages)


def judged(tree: Tree, kinds: dict[int, set[str]], shows: Shows) -> Iterator[str]:
    """What is wrong with what was said in one run."""
    for sample, damage in tree.damage_of.items():
        said = kinds.pop(sample, set()) - {"sparse"}
        due = SHOWS.index(shows) >= SHOWS.index(tree.shows(damage))
        if tree.shows(damage) != "nowhere" and due and not said & damage.kinds:
            yield f"{damage.name} (sample {sample}) missed, said was {said or 'nothing'}"
        # Earlier is well: older files hold their tensors in an order of chance, and zeros of a tail
        # may reach what is checked first.
        elif not due and said - damage.kinds:
            yield f"{damage.name} (sample {sample}) is told as {said}"
    yield from (f"false alarm on sample {n}: {said}" for n, said in kinds.items())


def test_all_that_can_be_proven_is_found(healthy: Tree) -> None:
    tree = inflicted(healthy)
    wrong: list[str] = []
    for shows, (depth, dataset) in RUNS.items():
        run = survey(tree.root, depth=depth, dataset=tree.dataset if dataset else None,
                     samples=None if dataset else tree.container.samples)  # fmt: skip
        kinds = found(run, tree.container.samples)
        wrong += [f"{shows}: {line}" for line in judged(tree, kinds, shows)]
        assert run.summary.complete
        assert not run.summary.sound
    for damage in corpus_of(tree.container):
        count = sum(each is damage for each in tree.damage_of.values())
        line = f"{tree.container.name}: {damage.name}, {count} files: {tree.shows(damage)}"
        print(line)  # noqa: T201 - the table, for the log of CI
    assert not wrong, "\n".join(wrong)
