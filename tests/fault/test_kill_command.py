"""``hsstore extract --source transformers:`` killed again and again, and run again."""

import json
import multiprocessing
import random
import time
from collections import Counter
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest

from hsstore.storage.store import Store
from hsstore.testing import logged_command
from hsstore.testing.stores import contents
from hsstore.testing.verdicts import journalled, leftovers
from hsstore_cli.main import main

SAMPLES = 60


@pytest.fixture(scope="module")
def context() -> ForkServerContext:
    """Starts processes that have torch and transformers imported already."""
    forking = multiprocessing.get_context("forkserver")
    forking.set_forkserver_preload(
        ["hsstore.testing.logged_command", "transformers.models.llama.modeling_llama"]
    )
    return forking


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    numbers = random.Random(11)  # noqa: S311 - no secret
    path = tmp_path / "dataset.jsonl"
    samples = [numbers.choices(range(256), k=numbers.randrange(1, 65)) for _ in range(SAMPLES)]
    path.write_text("".join(json.dumps({"input_ids": ids}) + "\n" for ids in samples))
    return path


def created(root: Path, dataset: Path, model: Path, codec: str) -> Path:
    options = ["--chunk-rows", "16", "--shard-rows", "256", "--codec", codec]
    capture = ["--dataset", str(dataset), "--model", str(model), "--layers", "1,3,final"]
    assert main(["create", str(root), *capture, *options]) == 0
    return root


def typed(root: Path, model: Path) -> list[str]:
    return ["extract", str(root), "--source", f"transformers:{model}"]


def times_computed(log: Path) -> Counter[int]:
    return Counter(map(int, log.read_text().split())) if log.exists() else Counter()


def wait_for_forwards(process: ForkServerProcess, log: Path, forwards: int) -> None:
    """Return once the process has started that many more forward passes, or has ended."""
    end = times_computed(log).total() + forwards
    while process.is_alive() and times_computed(log).total() < end:
        time.sleep(0.002)


def safe_samples(root: Path) -> set[int]:
    """What committed shards and journals hold."""
    store = Store.open(root)
    committed = {s for shard in store.committed() for s in store.samples.shard_samples(shard)}
    return committed | journalled(root)


@pytest.mark.parametrize(
    ("kills", "codec"),
    [
        (3, "none"),
        pytest.param(20, "none", marks=pytest.mark.sweep),
        pytest.param(20, "blosc-zstd", marks=pytest.mark.sweep),
    ],
)
def test_it_ends_as_if_it_had_never_been_killed(
    context: ForkServerContext, demo_model: Path, dataset: Path, tmp_path: Path,
    kills: int, codec: str,
) -> None:  # fmt: skip
    whole = created(tmp_path / "whole", dataset, demo_model, codec)
    assert main(typed(whole, demo_model)) == 0
    root, log = created(tmp_path / "killed", dataset, demo_model, codec), tmp_path / "computed"
    chance, safe = random.Random(kills), dict[int, int]()  # noqa: S311
    for _ in range(kills):
        process = context.Process(
            target=logged_command.run, args=(typed(root, demo_model), log, 0.01)
        )
        process.start()
        # Moments of its own work, and not of a machine that may be busy: 0 is while it starts.
        wait_for_forwards(process, log, chance.randrange(10))
        time.sleep(chance.uniform(0, 0.03))
        process.kill()
        process.join()
        computed = times_computed(log)
        safe |= {s: computed[s] for s in safe_samples(root) if s not in safe}
    assert safe
    process = context.Process(target=logged_command.run, args=(typed(root, demo_model), log, 0))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert contents(Store.open(root)) == contents(Store.open(whole))
    assert len(contents(Store.open(root))) == SAMPLES
    assert leftovers(root) == []
    computed = times_computed(log)
    assert {s: computed[s] for s in safe} == safe
    assert main(["fsck", str(root)]) == 0
