"""Real servers, what they are asked, and what transformers says to the same."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from hsstore.demo.corpus import VOCABULARY
from hsstore.testing.reference import Reference, compare
from hsstore.testing.sglang_server import ROOT, SGLangServer, install_plugin

PROMPTS, SHORTEST, LONGEST = 200, 5, 900
GATE = 1e-3  # per-token relative error in float32; noise of batching is a tenth of it

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def reference(demo_model: Path) -> Reference:
    return Reference(demo_model)


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """hsstore as an operator installs it beside SGLang; pure Python, so for every release."""
    return install_plugin("0.5.23", tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def spool() -> Iterator[Path]:
    """A folder in memory, where people put it."""
    with tempfile.TemporaryDirectory(prefix="hsstore-spool-", dir="/dev/shm") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """200 prompts of 5 to 900 tokens; every fourth begins like the one before it."""
    random = np.random.default_rng(7)
    lengths = np.linspace(SHORTEST, LONGEST, PROMPTS).astype(int)
    random.shuffle(lengths)
    before: list[int] = []
    path = tmp_path_factory.mktemp("dataset") / "prompts.jsonl"
    with path.open("w") as file:
        for number, length in enumerate(lengths):
            ids = random.integers(0, VOCABULARY, length).tolist()
            if number % 4 == 3:
                shared = min(len(before), length - 1) // 2
                ids[:shared] = before[:shared]
            before = ids
            file.write(json.dumps({"id": f"prompt-{number}", "input_ids": ids}) + "\n")
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@pytest.fixture
def servers() -> Iterator[list[SGLangServer]]:
    """Those that a test started; all are stopped in the end."""
    started: list[SGLangServer] = []
    yield started
    for server in started:
        server.stop()


@pytest.fixture
def serve(
    demo_model: Path, plugin: Path, spool: Path, log: Path, servers: list[SGLangServer]
) -> Callable[..., SGLangServer]:
    """Starts servers, with the plugin if there are ``layers`` to capture."""

    def start(
        release: str, *flags: str, layers: str | None = None, model: Path = demo_model,
        port: int | None = None, env: Mapping[str, str] | None = None,
    ) -> SGLangServer:  # fmt: skip
        capture = {"HSSTORE_SPOOL": str(spool), "HSSTORE_LAYERS": layers} if layers else {}
        server = SGLangServer(
            release, model, log, flags=flags, env={**capture, **(env or {})}, plugin=plugin,
            port=port,
        )  # fmt: skip
        servers.append(server)
        server.start()
        return server

    return start


@pytest.fixture
def verify(reference: Reference, servers: list[SGLangServer]) -> Callable[..., None]:
    """Proves that a store is complete, and every row of it the reference's."""

    def verify(store: Path, samples: int = PROMPTS) -> None:
        for server in servers:  # nothing is asked of them any more
            server.stop()
        errors = compare(store, reference)
        assert len(errors) == samples
        assert max(float(each.max()) for each in errors.values()) <= GATE
        checked = run("fsck", store, "--json")
        assert checked.returncode == 0, checked.stdout

    return verify


@pytest.fixture
def begin() -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Begins a command; one that still runs in the end is killed."""
    begun: list[subprocess.Popen[str]] = []

    def start(*arguments: object) -> "subprocess.Popen[str]":
        process = subprocess.Popen(
            command(*arguments), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        begun.append(process)
        return process

    yield start
    for process in begun:
        process.kill()
        process.communicate()


@pytest.fixture
def make_store(tmp_path: Path, demo_model: Path, dataset: Path) -> Callable[..., Path]:
    """Creates an empty store of the small model's states."""

    def make(
        layers: str, *, prompts: Path = dataset, model: Path = demo_model, shard_rows: int = 4096
    ) -> Path:
        store = tmp_path / f"store-{len(list(tmp_path.glob('store-*')))}"
        made = run("create", store, "--dataset", prompts, "--model", model, "--layers", layers,
                   "--dtype", "float32", "--shard-rows", shard_rows)  # fmt: skip
        assert made.returncode == 0, made.stderr
        return store

    return make


@pytest.fixture(scope="session")
def hsstore() -> Run:
    """Runs a command as a user would, and returns its end."""
    return run


def run(
    *arguments: object, env: dict[str, str] | None = None
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command(*arguments), env=environment() | (env or {}), capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip


def command(*arguments: object) -> Sequence[str]:
    return [sys.executable, "-m", "hsstore_cli", *map(str, arguments)]


def environment() -> dict[str, str]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "cli")))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
