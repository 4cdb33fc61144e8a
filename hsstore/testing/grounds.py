"""Stores in the states that damage can meet: whole, grown, replaced, half replaced, half filled."""

import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from hsstore.extraction.extractor import extract
from hsstore.model import keys
from hsstore.model.source import Extracted, Failed, Request, Waiting
from hsstore.storage.calibrations import publish_calibration
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.store import Store
from hsstore.testing import damage
from hsstore.testing.damage import SHARD
from hsstore.testing.litter import abandon, stage_samples
from hsstore.testing.sources import SeededSource
from hsstore.testing.stores import (
    LENGTHS,
    calibration,
    empty_store,
    fill,
    grown,
    replace,
)

BACKUP = "backup"
"""Beside a replaced store: the three files of the generation before."""


class NegatedSource(SeededSource):
    """Answers with the seeded states, their signs turned: of the same size, and other bytes."""

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed | Waiting]:
        """One answer a request, in their order."""
        for answer in super().states(requests):
            if isinstance(answer, Extracted):
                states = answer.states.copy()
                bits = states.view(f"<u{states.itemsize}")
                bits ^= bits.dtype.type(1 << 8 * states.itemsize - 1)
                yield Extracted(answer.sample, states)
            else:
                yield answer


def _empty(root: Path, codec: str, lengths: Iterable[int] = LENGTHS) -> Store:
    return empty_store(
        root, [*lengths], layers=(1, "final"), hidden_size=32, codec=codec, chunk_rows=8,
        shard_rows=64,
    )  # fmt: skip


def sound(root: Path, codec: str) -> Store:
    """All is committed, and two servers were calibrated."""
    store = fill(_empty(root, codec))
    for number in range(2):
        publish_calibration(store, calibration(store, number))
    return store


def extended(root: Path, codec: str) -> Store:
    """Three generations of plans, all committed; SHARD is of the second."""
    store = fill(_empty(root, codec, LENGTHS[:2]))
    return fill(grown(store, LENGTHS[2:8], LENGTHS[8:]))


def replaced(root: Path, codec: str) -> Store:
    """SHARD is of generation 2; the files of generation 1, with other states, lie beside it."""
    store = _first_generation(root, codec)
    marker = store.marker(SHARD)
    for name in (keys.shard_file(SHARD), marker.name, marker.manifest_name):
        copy = root.with_name(BACKUP) / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, copy)
    replace(store, SHARD)
    return store


def _first_generation(root: Path, codec: str) -> Store:
    store = _empty(root, codec)
    extract(store, NegatedSource(store.identity), shards=range(SHARD, SHARD + 1))
    return fill(store)


class _DiesAt(Filesystem):
    """Dies in front of the renaming, or of the marker, of a replacement that was decided."""

    def __init__(self, *, renamed: bool) -> None:
        self._renamed = renamed

    def rename(self, source: Path, target: Path) -> None:
        if source.name == keys.STAGED_SPARE and not self._renamed:
            raise KeyboardInterrupt
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        if target.parent.name == keys.COMMIT and self._renamed:
            raise KeyboardInterrupt
        super().link(source, target)


def decided(root: Path, codec: str) -> Store:
    """The replacement of SHARD is decided; nothing of it is in place."""
    return _killed(root, codec, renamed=False)


def renamed(root: Path, codec: str) -> Store:
    """The replacement of SHARD is decided, its file in place, its marker not."""
    return _killed(root, codec, renamed=True)


def _killed(root: Path, codec: str, *, renamed: bool) -> Store:
    store = _first_generation(root, codec)
    dying = Store(root, store.identity, store.plan, _DiesAt(renamed=renamed))
    try:
        replace(dying, SHARD)
    except KeyboardInterrupt:
        _age(root)
        return store
    raise AssertionError("the replacement was not interrupted")


def begun(root: Path, codec: str) -> Store:
    """The last shard is staged and journalled, by a writer that is dead and left its claim."""
    store = _empty(root, codec)
    last = store.plan.shards - 1
    fill(store, shards=range(last))
    folder = stage_samples(store, last)
    claim = root / abandon(store, last)
    (folder / keys.STAGED_HOLDER).write_bytes(claim.read_bytes())
    _age(root)
    return store


def _age(root: Path) -> None:
    """Who left these claims behind has not been heard of for long."""
    for path in (root / keys.CLAIM).iterdir():
        damage.age(path)


GROUNDS: dict[str, Callable[[Path, str], Store]] = {
    "sound": sound,
    "extended": extended,
    "replaced": replaced,
    "decided": decided,
    "renamed": renamed,
    "begun": begun,
}
