"""fsck --level quick and status over 30,000 shards, against listing and reading all their markers.

``python benchmarks/many_shards.py [--dir DIR] [--shards N]``. The store is made up: its documents
are whole, its shard files are holes of the right size, and nothing else of it is ever opened at
this level.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
from measure import machine
from numpy.typing import NDArray

from hsstore.integrity.fsck import fsck
from hsstore.integrity.scrub.coverage import coverage
from hsstore.integrity.scrub.schedule import Scrub
from hsstore.integrity.scrub.state import State
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.keys import ShardVersion
from hsstore.model.marker import Marker
from hsstore.model.plan import Plan, TokenFiles
from hsstore.storage.sample_table import SampleTable
from hsstore.storage.status import status
from hsstore.storage.store import Store
from hsstore.storage.zarr_arrays import metadata_documents, table_chunks
from hsstore.testing.stores import empty_store

SHARDS, SAMPLES_A_SHARD = 30_000, 100 / 3
CHUNK_ROWS, SHARD_ROWS = 64, 34 * 64
DATA_BYTES = 1 << 30
WRITER = "0123456789abcdef"
ROUNDS = 3


def main() -> None:
    """Build, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dir", type=Path, help="where to write; its filesystem is measured")
    parser.add_argument("--shards", type=int, default=SHARDS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="hsstore-bench-", dir=chosen.dir) as made:
        folder = Path(made)
        store = simulated(folder / "store", chosen.shards)
        state = folder / "state"
        contenders = {
            "list and read all markers": lambda: read_markers(store.root),
            "fsck --level quick": lambda: clean(store.root, Scrub()),
            "fsck --level quick --state": lambda: clean(store.root, Scrub(state=state)),
            "status": lambda: status(Store.open(store.root)),
            "status, with coverage": lambda: covered(store.root, state),
        }
        clean(store.root, Scrub(state=state))
        seconds = measured(contenders, chosen.rounds)
        print(json.dumps({"machine": machine(folder), "shards": store.plan.shards,
                          "samples": store.plan.samples}))  # fmt: skip
    wall, cpu = next(iter(seconds.values()))
    for name, (taken, computed) in seconds.items():
        print(
            f"  {name:28} {taken:7.2f} s  {taken / wall:5.2f} x"
            f"   of one CPU {computed:7.2f} s  {computed / cpu:5.2f} x"
        )


def measured(
    contenders: Mapping[str, Callable[[], object]], rounds: int
) -> dict[str, tuple[float, float]]:
    """Median seconds of each contender, by the clock and of computing, all run in turn."""
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, work in contenders.items():
            started, computed = time.perf_counter(), time.process_time()
            work()
            taken[name].append((time.perf_counter() - started, time.process_time() - computed))
    return {
        name: (statistics.median(wall), statistics.median(cpu))
        for name, times in taken.items()
        for wall, cpu in [zip(*times, strict=True)]
    }


def read_markers(root: Path) -> None:
    """What any command that knows the store's shards must do."""
    store = Store.open(root)
    for version, absent in store.committed().values():
        store.read_marker(version, absent=absent)


def clean(root: Path, scrub: Scrub) -> None:
    """A check that must find nothing, or the time means nothing."""
    run = fsck(root, "quick", scrub=scrub)
    findings = list(run)
    if findings or not run.summary.complete:
        raise SystemExit(f"the store to measure on is damaged: {findings[:1]}")


def covered(root: Path, state: Path) -> None:
    """What the command status does."""
    store = Store.open(root)
    status(store)
    known = State(state, store.identity.uuid, print).known
    if coverage(store, known, "quick", now=2**36).never:
        raise SystemExit("the verdicts were not kept")


def simulated(root: Path, shards: int) -> Store:
    """A store of so many committed shards, as far as its sample table, markers and sizes go."""
    store = empty_store(root, [CHUNK_ROWS], chunk_rows=CHUNK_ROWS, shard_rows=SHARD_ROWS)
    edges = (np.arange(shards + 1) * SAMPLES_A_SHARD).astype(np.int64)
    counts = edges[1:] - edges[:-1]
    table = SampleTable(_starts(counts), np.full(counts.sum(), CHUNK_ROWS, "<i4"), SHARD_ROWS)
    plan = Plan(
        store=store.identity.uuid,
        generation=0,
        samples=len(table),
        shards=shards,
        tokens=len(table) * CHUNK_ROWS,
        dataset=store.plan.dataset,
        sample_table=table.digest(),
        token_files=TokenFiles(((0, "0" * 32 * shards),)),
    )
    (root / keys.plan(0)).write_bytes(seal(plan.to_document()))
    for key, document in metadata_documents(store.identity, plan).items():
        (root / key).write_bytes(document)
    digests = np.zeros((len(table), 16), np.uint8)
    for chunk in table_chunks(table.start, table.length, digests):
        _hole(root / chunk.key, chunk.size, chunk.data)
    for shard, marker in enumerate(_markers(store.identity.uuid, counts)):
        (root / marker.name).write_bytes(seal(marker.to_document()))
        (root / marker.manifest_name).touch()
        _hole(root / keys.shard_file(shard), DATA_BYTES)
        for array, itemsize in ((keys.INPUT_IDS, 4), (keys.LOSS_MASK, 1)):
            _hole(root / keys.array_chunk(array, shard), SHARD_ROWS * itemsize)
    return Store.open(root)


def _starts(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """First global rows of the samples, int64 [samples]; each fills one chunk."""
    shard = np.repeat(np.arange(len(counts)), counts)
    within = np.arange(len(shard)) - np.repeat(np.cumsum(counts) - counts, counts)
    return shard * SHARD_ROWS + within * CHUNK_ROWS


def _markers(store: str, counts: NDArray[np.int64]) -> Iterator[Marker]:
    for shard, samples in enumerate(map(int, counts)):
        yield Marker(
            store=store,
            version=ShardVersion(shard, 1),
            writer=WRITER,
            manifest_xxh3_128="0" * 32,
            data_bytes=DATA_BYTES,
            index_xxh3_64="0" * 16,
            samples=samples,
            absent=0,
            tokens=samples * CHUNK_ROWS,
            committed="2026-01-31T12:00:00Z",
        )


def _hole(path: Path, size: int, data: bytes = b"") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(size)


if __name__ == "__main__":
    main()
