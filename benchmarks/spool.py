"""From a spool in memory into a store, against reading, writing and syncing the same bytes."""

import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from measure import States, interleaved, result
from stores import planned
from write import write_all

from hsstore.capture.spool_format import DTYPES, HEADER, STATES, Segment, encode_header, rid
from hsstore.extraction.extractor import extract
from hsstore.extraction.sglang.spool import Spool
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import Extracted, Request
from hsstore.storage.store import Store
from hsstore.testing.sources import SeededSource

RUN, BOOT = "0" * 16, "0" * 32
MEMORY = Path("/dev/shm")  # noqa: S108 - where people put a spool


class SpoolSource(SeededSource):
    """Reads each sample from its file in a spool; none is deleted, so that it can be read again."""

    def __init__(self, identity: StoreIdentity, spool: Path, states: States) -> None:
        super().__init__(identity)
        self._spool = Spool(spool)
        self._into = np.empty_like(states)

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted]:
        """What the spool holds, in one array that is used again."""
        for request in requests:
            self._spool.states(rid(RUN, request.sample), self._into, "bfloat16")
            yield Extracted(request.sample, self._into)


def measure(folder: Path, states: States, samples: int, *, label: str) -> dict[str, Any]:
    """Both in turn, from memory to the filesystem of ``folder``."""
    root, plain = folder / "store", folder / "plain"
    with tempfile.TemporaryDirectory(prefix="hsstore-bench-", dir=MEMORY) as made:
        spool = Path(made)
        for sample in range(samples):
            write_request(spool, sample, states)
        reused = np.empty(states.nbytes, np.uint8)

        def prepare() -> None:
            shutil.rmtree(root, ignore_errors=True)
            plain.unlink(missing_ok=True)
            planned(root, states, samples)
            os.sync()

        def raw() -> None:
            target = os.open(plain, os.O_WRONLY | os.O_CREAT)
            for sample in range(samples):
                source = os.open(spool / rid(RUN, sample), os.O_RDONLY)
                os.preadv(source, [reused.data], HEADER.size)
                os.close(source)
                write_all(target, reused.data, sample * states.nbytes)
            os.fsync(target)
            os.close(target)

        def ingest() -> None:
            store = Store.open(root)
            extract(store, SpoolSource(store.identity, spool, states))

        seconds = interleaved({"read + pwrite + fsync": raw, "hsstore": ingest}, before=prepare)
    return result(f"spool, {label}", seconds, "read + pwrite + fsync", states.nbytes * samples)


def write_request(spool: Path, sample: int, states: States) -> None:
    """A request's file of one segment, as the plugin writes it."""
    tokens, layers, hidden = states.shape
    name, payload = rid(RUN, sample), states.data.cast("B")
    segment = Segment(
        kind=STATES,
        dtype=DTYPES["bfloat16"],
        layers=layers,
        hidden_size=hidden,
        first_row=0,
        rows=tokens,
        payload_bytes=states.nbytes,
        boot=BOOT,
        payload_xxh3_64=xxhash.xxh3_64_intdigest(payload),
    )
    with (spool / name).open("wb") as file:
        file.write(encode_header(segment, name))
        file.write(payload)
