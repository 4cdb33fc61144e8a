"""Many writers on one store, some killed, some stalled for long: nothing twice, nothing lost."""

import contextlib
import multiprocessing
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest

from hsstore.errors import ClaimedByAnother
from hsstore.extraction import extractor
from hsstore.model import keys
from hsstore.model.keys import ShardVersion
from hsstore.storage import writer
from hsstore.storage.claim import Claim
from hsstore.storage.commit import commit_new, commit_replacement
from hsstore.storage.store import Store
from hsstore.storage.writer import ShardWriter, StagedShard
from hsstore.testing import rival
from hsstore.testing.elsewhere import make_stale
from hsstore.testing.sources import SeededSource, seeded_states
from hsstore.testing.stores import contents, empty_store, fill
from hsstore.testing.verdicts import assert_complete, assert_exact

RIVALS = 8
LENGTHS = random.Random(9).choices(range(1, 17), k=60)  # noqa: S311 - no secret
SECONDS = 0.02


class Company:
    """Processes that fill one store; ``disturbed`` are the pids of those killed or stalled."""

    def __init__(self, context: ForkServerContext, root: Path, log: Path) -> None:
        self.root = root
        self.disturbed: set[int] = set()
        self.kills = self.stalls = 0
        self._context = context
        self._log = log
        self._running: list[ForkServerProcess] = []
        self._stalled: list[ForkServerProcess] = []
        for _ in range(RIVALS):
            self.hire()

    def hire(self) -> None:
        process = self._context.Process(target=rival.run, args=(self.root, self._log, SECONDS))
        process.start()
        self._running.append(process)

    def disturb(self, chance: random.Random) -> None:
        """Kill one and replace it, or stall one past the limit, or wake one."""
        self._running = [process for process in self._running if process.is_alive()]
        if self._stalled and chance.random() < 0.5:
            self.wake(self._stalled.pop(0))
        elif self._running:
            chosen = self._running.pop(chance.randrange(len(self._running)))
            assert chosen.pid is not None
            self.disturbed.add(chosen.pid)
            if chance.random() < 0.5:
                self.kills += 1
                chosen.kill()
                chosen.join()
                self.hire()
            else:
                self.stalls += 1
                signal_if_there(chosen, signal.SIGSTOP)
                make_stale(self.root, pid=chosen.pid)
                self._stalled.append(chosen)

    def wake(self, process: ForkServerProcess) -> None:
        signal_if_there(process, signal.SIGCONT)
        self._running.append(process)

    def finish(self) -> None:
        """Every process that was not killed ends well."""
        for process in self._stalled:
            self.wake(process)
        for process in self._running:
            process.join()
            assert process.exitcode == 0


def signal_if_there(process: ForkServerProcess, signum: int) -> None:
    """One that ended its work meanwhile is gone at once: the fork server waits for its children."""
    assert process.pid is not None
    with contextlib.suppress(ProcessLookupError):
        os.kill(process.pid, signum)


def logged(log: Path) -> tuple[Counter[str], dict[int, list[int]]]:
    """How often each marker was published, and the pids that computed each sample."""
    published, computed = Counter[str](), defaultdict[int, list[int]](list)
    for line in log.read_text().splitlines():
        what, name, pid = line.split()
        if what == "published":
            published[name] += 1
        else:
            computed[int(name)].append(int(pid))
    return published, computed


@pytest.mark.parametrize(
    ("disturbances", "codec"),
    [
        (8, "none"),
        pytest.param(60, "none", marks=pytest.mark.sweep),
        pytest.param(60, "blosc-zstd", marks=pytest.mark.sweep),
    ],
)
def test_rivals_fill_a_store_whatever_becomes_of_some(
    tmp_path: Path,
    disturbances: int,
    codec: str,
    record_property: Callable[[str, object], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hsstore.testing.rival"])
    lengths = LENGTHS * max(disturbances // 20, 1)
    whole = fill(empty_store(tmp_path / "whole", lengths, codec=codec))
    root, log = empty_store(tmp_path / "store", lengths, codec=codec).root, tmp_path / "log"
    chance = random.Random(disturbances)  # noqa: S311
    company = Company(context, root, log)
    for _ in range(disturbances):
        time.sleep(chance.uniform(0, 0.15))
        company.disturb(chance)
        assert_exact(root)
    company.finish()
    # It is made for a process of its own, and changes these.
    monkeypatch.setattr(writer, "SYNC_SECONDS", writer.SYNC_SECONDS)
    monkeypatch.setattr(extractor, "VERIFY_SECONDS", extractor.VERIFY_SECONDS)
    rival.run(root, log, 0)
    assert_complete(root)
    assert contents(Store.open(root)) == contents(whole)
    published, computed = logged(log)
    assert set(published.values()) == {1}
    assert published.keys() <= {path.name for path in (root / keys.COMMIT).iterdir()}
    for sample, pids in computed.items():
        undisturbed = [pid for pid in pids if pid not in company.disturbed]
        assert len(undisturbed) <= 1, sample
        assert len(pids) == len(set(pids)), sample
    counts = {"kills": company.kills, "stalls": company.stalls,
              "computed": sum(map(len, computed.values())), "samples": len(lengths)}  # fmt: skip
    record_property("rivals", counts)
    print(f"{RIVALS} rivals, {counts}: 0 shards committed twice, 0 samples lost")  # noqa: T201


# -- writers that all believe that the shard is theirs -----------------------------------------


def believing_claim(writer: str) -> Claim:
    """A claim that nobody granted."""
    claim = Claim.__new__(Claim)
    claim.shard, claim.writer = 0, writer
    return claim


def staged(store: Store, generation: int, writer: str) -> StagedShard:
    folder = store.root / keys.stage(0, writer)
    folder.mkdir()
    made = ShardWriter(
        store.filesystem, folder, store.identity, ShardVersion(0, generation), writer
    )
    tokens, source = store.tokens(0), SeededSource(store.identity)
    for sample in store.samples.shard_samples(0):
        key, ids, _ = tokens.sample(sample - tokens.first_sample)
        made.add(store.samples.extent(sample), key, seeded_states(store.identity, ids),
                 source.origin())  # fmt: skip
    finished = made.finish(store.samples.shard_samples(0))
    made.close()
    return finished


@pytest.mark.parametrize("rounds", [4, pytest.param(60, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("generation", [1, 2])
def test_of_writers_that_all_believe_in_their_claim_one_commits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rounds: int,
    generation: int,
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setattr(Claim, "verify", lambda _: None)
    for number in range(rounds):
        store = empty_store(tmp_path / str(number), (3, 4))
        if generation == 2:
            fill(store)
        assert sorted(race(store, generation)) == [False] * (RIVALS - 1) + [True]
        assert store.marker(0).version.generation == generation
        assert len(list((store.root / keys.COMMIT).glob("[0-9]*.json"))) == 1
        assert assert_exact(store.root) == 2
        fill(store)
        assert_complete(store.root)
    record_property("races", rounds)
    print(f"{rounds} races of {RIVALS}: 0 shards committed twice")  # noqa: T201


def race(store: Store, generation: int) -> list[bool]:
    """Which of the rivals committed; the others were told that they had not."""
    replaces = ShardVersion(0, 1) if generation == 2 else None
    ready = [staged(store, generation, f"{n:016x}") for n in range(RIVALS)]
    together = threading.Barrier(RIVALS)

    def commits(own: StagedShard) -> bool:
        claim = believing_claim(own.marker.writer)
        together.wait()
        try:
            if replaces is None:
                commit_new(store.filesystem, store.root, own, claim)
            else:
                commit_replacement(store.filesystem, store.root, own, claim, store.identity,
                                   replaces=replaces)  # fmt: skip
        except ClaimedByAnother:
            return False
        return True

    with ThreadPoolExecutor(RIVALS) as pool:
        return list(pool.map(commits, ready))
