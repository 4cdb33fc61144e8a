"""Litter of every kind, planted in a store: what killed and failed commands leave behind."""

import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.keys import ShardVersion
from hsstore.model.litter import Kind
from hsstore.model.manifest import Manifest
from hsstore.storage import claim as claims
from hsstore.storage.claim import acquire
from hsstore.storage.stage import open_stage
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.stores import replace

Planted = Iterator[tuple[Kind, str]]


@dataclass(frozen=True, slots=True)
class Planter:
    """A kind of litter; ``plant`` puts it into a store whose shard 0 is committed.

    It yields the kind and path of each item that the store does not need then.
    """

    name: str
    plant: Callable[[Store], Planted]


def stage_samples(store: Store, shard: int, generation: int = 1) -> Path:
    """The folder of a writer that journalled all samples of a shard, and let go of it."""
    version, source = ShardVersion(shard, generation), SeededSource(store.identity)
    claim = hold(store, shard)
    writer = open_stage(store.filesystem, store.root, store.identity, version, claim)
    tokens = store.tokens(shard)
    for sample in store.samples.shard_samples(shard):
        key, ids, _ = tokens.sample(sample - tokens.first_sample)
        extent = store.samples.extent(sample)
        writer.add(extent, key, seeded_states(store.identity, ids), source.origin())
    writer.close()
    claim.release()
    return writer.folder


def hold(store: Store, shard: int) -> claims.Claim:
    """A claim of this process."""
    writer = secrets.token_hex(8)
    return acquire(store.filesystem, store.root, store.identity.uuid, shard, writer)


def abandon(store: Store, shard: int) -> str:
    """The path of a claim whose holder is gone."""
    claim = hold(store, shard)
    path = claim._path  # noqa: SLF001 - its holder is made to look dead
    claims._HELD.discard(claim.writer)  # noqa: SLF001
    claim._released.set()  # noqa: SLF001
    return path.relative_to(store.root).as_posix()


def _staged(store: Store) -> Planted:
    """Of a committed generation, as its writer left it and as a takeover renamed it."""
    folder = stage_samples(store, 0, store.marker(0).version.generation)
    fenced = store.root / keys.fenced(0, "f" * 16, "0123abcd")
    shutil.copytree(folder, fenced)
    for path in (folder, fenced):
        yield "staged", path.relative_to(store.root).as_posix()


def _nothing_staged(store: Store) -> Planted:
    """Of a generation to come, with bytes of which no journal speaks."""
    folder = store.root / keys.stage(0, secrets.token_hex(8))
    folder.mkdir()
    (folder / keys.STAGED_DATA).write_bytes(b"x" * 5000)
    (folder / keys.STAGED_JOURNAL).write_bytes(b"")
    yield "staged", folder.relative_to(store.root).as_posix()


def _superseded(store: Store) -> Planted:
    """What a replacement that was killed at its very end has not removed."""
    names = [(kind, store.root / name) for kind, name in _documents(store)]
    kept = [(kind, path, path.read_bytes()) for kind, path in names]
    replace(store, 0)
    for kind, path, raw in kept:
        path.write_bytes(raw)
        yield kind, path.relative_to(store.root).as_posix()


def _documents(store: Store) -> Planted:
    marker = store.marker(0)
    yield "marker", marker.name
    yield "manifest", marker.manifest_name


def _orphan_manifests(store: Store) -> Planted:
    """Of attempts at this generation and the next that came to nothing."""
    manifest = store.manifest(store.marker(0))
    for more in (0, 1):
        version = ShardVersion(0, manifest.version.generation + more)
        writer = secrets.token_hex(8)
        fields = {name: getattr(manifest, name) for name in Manifest.__slots__}
        orphan = Manifest(**fields | {"version": version, "writer": writer})
        name = keys.manifest(version, writer)
        (store.root / name).write_bytes(seal(orphan.to_document()))
        yield "manifest", name


def _dead_claims(store: Store) -> Planted:
    """Of writers of a shard and of a growth."""
    for shard in (0, keys.GROWTH):
        yield "claim", abandon(store, shard)


def _temporaries(store: Store) -> Planted:
    """Of publications that were interrupted, in every folder where there may be one."""
    for name in (
        f"{keys.COMMIT}/.00000000-000001.json.0123abcd",
        f"{keys.INTENT}/.00000000-000002.json.0123abcd",
        f"{keys.MANIFEST}/.00000000-000002.{'a' * 16}.json.0123abcd",
        f"{keys.CLAIM}/.00000000-000000.json.0123abcd",
        f"{keys.CLAIM}/.00000000-now.0123abcd",
        f"{keys.CLAIM}/.{keys.GROWTH}-now.0123abcd",
        f"{keys.ZARR}/.zarr.json.0123abcd",
        f"{keys.ZARR}/{keys.INPUT_IDS}/c/.0.0123abcd",
        f"{keys.CALIBRATION}/.00000000.json.0123abcd",
    ):
        (store.root / name).parent.mkdir(exist_ok=True)
        (store.root / name).write_bytes(b"half of a document")
        long_ago = 1_000_000_000
        os.utime(store.root / name, (long_ago, long_ago))
        yield "temporary", name


def _growths(store: Store) -> Planted:
    """Of growths that were never decided: prepared, fenced, and with their tokens in place."""
    generation = store.plan.generation + 1
    prepared, fenced = (keys.growth(generation, digit * 16) for digit in "cd")
    for name in (f"{prepared}/tokens", f"{fenced}.0123abcd/tokens", keys.token_folder(generation)):
        folder = store.root / name
        folder.mkdir(parents=True)
        (folder / f"{store.plan.shards:08d}.npz").write_bytes(b"tokens")
        yield "growth", name.removesuffix("/tokens")


def _creation(store: Store) -> Planted:
    """Of a killed creation of this very store, beside it."""
    folder = store.root.with_name(f".{store.root.name}.creating-0123abcd")
    shutil.copytree(store.root / keys.PLAN, folder / keys.PLAN)
    (folder / keys.IDENTITY).write_bytes(b"{}")
    yield "creation", f"../{folder.name}"


# What takes a claim, and so clears away those of others, comes first.
PLANTERS = (
    Planter("superseded", _superseded),
    Planter("staged", _staged),
    Planter("nothing-staged", _nothing_staged),
    Planter("orphan-manifests", _orphan_manifests),
    Planter("dead-claims", _dead_claims),
    Planter("temporaries", _temporaries),
    Planter("growths", _growths),
    Planter("creation", _creation),
)


def litter(store: Store, names: Collection[str] | None = None) -> list[tuple[Kind, str]]:
    """Plant all of it at once, or what these planters plant; what nothing needs then."""
    wanted = [planter for planter in PLANTERS if names is None or planter.name in names]
    return [item for planter in wanted for item in planter.plant(store)]
