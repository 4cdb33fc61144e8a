"""What happens to servers in a week: each time the store ends complete and right, or refuses."""

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess, Popen

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hsstore.demo.corpus import VOCABULARY
from hsstore.demo.model import build_model
from hsstore.storage.status import status
from hsstore.storage.store import Store
from hsstore.testing.reference import Reference, relative_errors
from hsstore.testing.sglang_server import SGLangServer
from hsstore.training.dataset import HiddenStateDataset

pytestmark = pytest.mark.sglang

RELEASE, LAYERS = "0.5.23", "1,2,3,final"
JSON_FLAGS = ("--enable-return-hidden-states", "--chunked-prefill-size", "-1")
SOON_SECONDS = 120.0

Run = Callable[..., CompletedProcess[str]]
Begin = Callable[..., Popen[str]]
Make = Callable[..., Path]
Serve = Callable[..., SGLangServer]
Verify = Callable[..., None]


def until(true: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + SOON_SECONDS
    while not true():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def journalled(store: Path) -> int:
    """How many samples are safe, committed or staged."""
    found = status(Store.open(store))
    return found.samples_committed + found.samples_staged


def under_way(process: Popen[str], store: Path) -> None:
    """Wait until some samples are there, and not all of them."""
    until(lambda: process.poll() is not None or journalled(store) >= 10, "the first samples")
    assert process.poll() is None, process.communicate()[1]


@pytest.fixture
def other_model(tmp_path: Path) -> Path:
    """The same architecture, with other weights."""
    folder = tmp_path / "other"
    build_model(folder, seed=1)
    return folder


def test_a_killed_server_comes_back(
    serve: Serve, make_store: Make, spool: Path, begin: Begin, verify: Verify
) -> None:
    store = make_store(LAYERS)
    server = serve(RELEASE, layers=LAYERS)
    process = begin("extract", store, "--server", server.url, "--spool", spool,
                    "--concurrency", "8")  # fmt: skip
    under_way(process, store)
    server.kill()
    time.sleep(3)
    assert process.poll() is None, "did not wait for the server"
    server.start()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    verify(store)


def test_a_server_with_other_weights_in_its_place_is_refused(
    serve: Serve, make_store: Make, spool: Path, hsstore: Run, begin: Begin, other_model: Path,
    reference: Reference,
) -> None:  # fmt: skip
    store = make_store(LAYERS)
    server = serve(RELEASE, layers=LAYERS)
    command = ("extract", store, "--server", server.url, "--spool", spool, "--concurrency", "8")
    process = begin(*command)
    under_way(process, store)
    server.kill()
    serve(RELEASE, layers=LAYERS, model=other_model, port=server.port)
    _, said = process.communicate(timeout=300)
    assert process.returncode == 8, said
    assert "Traceback" not in said
    nothing_wrong(store, reference, hsstore)
    # And whoever begins with the other one is refused before the first sample.
    before = journalled(store)
    assert hsstore(*command).returncode == 8
    assert journalled(store) == before


def test_something_else_on_the_port_is_refused(
    serve: Serve, make_store: Make, hsstore: Run, begin: Begin, tmp_path: Path,
    reference: Reference,
) -> None:  # fmt: skip
    """As when another service takes the machine by itself, in mid-run or before."""
    store = make_store("final")
    server = serve(RELEASE, *JSON_FLAGS)
    command = ("extract", store, "--server", server.url, "--concurrency", "8")
    process = begin(*command)
    under_way(process, store)
    server.kill()
    with WebServer(server.port, tmp_path):
        said = process.communicate(timeout=120)[1]
        at_the_start = hsstore(*command)
    for code, line in ((process.returncode, said), (at_the_start.returncode, at_the_start.stderr)):
        assert code == 8, line
        assert "Traceback" not in line
        assert "SGLang" in line
    nothing_wrong(store, reference, hsstore)


class WebServer:
    """Python's own, which knows none of SGLang's paths."""

    def __init__(self, port: int, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1"],
            cwd=folder, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def __enter__(self) -> None:
        time.sleep(1)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()


def nothing_wrong(store: Path, reference: Reference, hsstore: Run) -> None:
    """What is committed is the reference's; fsck finds nothing but what is missing."""
    opened = Store.open(store)
    dataset = HiddenStateDataset(store, verify="always", absent="exclude")
    for number in range(len(dataset)):
        sample = dataset[number]
        expected = reference.states(sample["input_ids"].tolist(), opened.identity.capture.layers)
        assert relative_errors(sample["hidden_states"].numpy(), expected).max() <= 1e-3
    lines = map(json.loads, hsstore("fsck", store, "--json").stdout.splitlines())
    kinds = {line["kind"] for line in lines if line["type"] == "finding"}
    assert kinds <= {"shard-missing"}, kinds


def test_a_full_queue_and_aborted_requests(
    serve: Serve, make_store: Make, spool: Path, begin: Begin, verify: Verify
) -> None:
    """Both cost time, and no sample."""
    server = serve(RELEASE, "--max-queued-requests", "2", layers=LAYERS)
    store = make_store(LAYERS)
    process = begin("extract", store, "--server", server.url, "--spool", spool,
                    "--concurrency", "32", "--max-attempts", "9")  # fmt: skip
    under_way(process, store)
    for _ in range(3):
        abort_all(server)
        time.sleep(0.5)
    said = process.communicate(timeout=300)[1]
    assert process.returncode == 0, said
    verify(store)
    assert [path for path in spool.iterdir() if not path.name.startswith("hello.")] == []


def abort_all(server: SGLangServer) -> None:
    request = urllib.request.Request(  # noqa: S310 - http on this machine
        f"{server.url}/abort_request",
        data=json.dumps({"rid": "", "abort_all": True}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30):  # noqa: S310 - as above
        pass


@pytest.mark.parametrize("transport", ["spool", "json"])
def test_weights_that_are_not_finite_are_refused(
    transport: str, serve: Serve, make_store: Make, spool: Path, hsstore: Run, demo_model: Path,
    tmp_path: Path,
) -> None:  # fmt: skip
    """SGLang answers with status 200, and in JSON with null for each number."""
    broken = nan_model(demo_model, tmp_path / "nan")
    if transport == "spool":
        server, layers = serve(RELEASE, layers=LAYERS, model=broken), LAYERS
        options: tuple[object, ...] = ("--spool", spool)
    else:
        server, layers, options = serve(RELEASE, *JSON_FLAGS, model=broken), "final", ()
    store = make_store(layers, model=broken)
    ended = hsstore("extract", store, "--server", server.url, *options)
    assert ended.returncode == 8, ended.stderr
    assert "finite" in ended.stderr
    assert journalled(store) == 0


def nan_model(model: Path, folder: Path) -> Path:
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.3.mlp.down_proj.weight"][:] = torch.nan
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def test_the_longest_prompt_and_one_beyond(
    serve: Serve, make_store: Make, spool: Path, hsstore: Run, tmp_path: Path
) -> None:
    """SGLang takes a prompt of at most its max_req_input_len - 1 tokens."""
    server = serve(RELEASE, "--context-length", "512", layers=LAYERS)
    with urllib.request.urlopen(f"{server.url}/server_info") as answer:  # noqa: S310 - http
        longest = int(json.load(answer)["max_req_input_len"]) - 1
    prompts = tmp_path / "prompts.jsonl"
    random = np.random.default_rng(0)
    with prompts.open("w") as file:
        for name, length in (("longest", longest), ("beyond", longest + 1), ("short", 3)):
            ids = random.integers(0, VOCABULARY, length).tolist()
            file.write(json.dumps({"id": name, "input_ids": ids}) + "\n")
    store = make_store(LAYERS, prompts=prompts)
    ended = hsstore("extract", store, "--server", server.url, "--spool", spool)
    assert ended.returncode == 4, ended.stderr
    dataset = HiddenStateDataset(store, absent="exclude")
    assert sorted(dataset[n]["id"] for n in range(len(dataset))) == ["longest", "short"]
    shown = hsstore("inspect", store, "--sample", "beyond").stdout
    assert "too-long" in shown


def test_two_servers_and_then_one(
    serve: Serve, make_store: Make, spool: Path, begin: Begin, verify: Verify
) -> None:
    first, second = serve(RELEASE, layers=LAYERS), serve(RELEASE, layers=LAYERS)
    store = make_store(LAYERS)
    process = begin("extract", store, "--server", first.url, "--server", second.url,
                    "--spool", spool, "--concurrency", "8")  # fmt: skip
    under_way(process, store)
    first.kill()
    _, said = process.communicate(timeout=300)
    assert process.returncode == 0, said
    verify(store)
