"""The capture plugin in real servers: every row against transformers, and what it must not do."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hsstore.capture.spool_format import rid
from hsstore.demo.model import build_model
from hsstore.testing.reference import Reference
from hsstore.testing.sglang_server import SGLangServer
from hsstore.testing.spool_probe import (
    GATE,
    CaptureError,
    Probe,
    sharing_prompts,
    worst_error,
)

pytestmark = [pytest.mark.sglang, pytest.mark.xdist_group("plugin")]

LAYERS = (3, 1, "final", 2)
BOUND = 16 << 20
ABANDONED = rid("0" * 16, 1)
DEAD_HELLO = f"hello.{'0' * 32}.0.json"


@pytest.fixture(scope="module", params=["0.5.23", "0.5.12"])
def release(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    build_model(folder)
    return folder


@pytest.fixture(scope="module")
def reference(model: Path) -> Reference:
    return Reference(model)


def serving(
    release: str, model: Path, plugin: Path, folder: Path, *flags: str, **env: str
) -> Iterator[Probe]:
    spool = folder / "spool"
    spool.mkdir(exist_ok=True)
    server = SGLangServer(release, model, folder / "log", flags=flags, env=env, plugin=plugin)
    with server:
        yield Probe(server.url, spool)


@pytest.fixture(scope="module")
def probe(
    release: str, model: Path, plugin: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Probe]:
    folder = tmp_path_factory.mktemp("one")
    spool = folder / "spool"
    spool.mkdir()
    old = spool / ABANDONED
    old.write_bytes(b"of a client that is gone")
    os.utime(old, (old.stat().st_mtime - 7200, old.stat().st_mtime - 7200))
    host = os.uname().nodename
    (spool / DEAD_HELLO).write_text(f'{{"host": "{host}"}}')
    yield from serving(
        release, model, plugin, folder, "--chunked-prefill-size", "256",
        HSSTORE_SPOOL=str(spool), HSSTORE_LAYERS="3,1,final,2", HSSTORE_SPOOL_BYTES=str(BOUND),
    )  # fmt: skip


def assert_equal(probe: Probe, reference: Reference, prompts: list[list[int]]) -> None:
    rows = probe.all_rows(prompts)
    errors = [
        worst_error(got, reference.rows(ids, LAYERS))
        for got, ids in zip(rows, prompts, strict=True)
    ]
    assert max(errors) <= GATE
    assert probe.files() == []


def test_it_says_what_it_is_and_tidies_up(probe: Probe, release: str) -> None:
    [hello] = probe.hellos()
    assert hello["release"] == release
    assert hello["refused"] is None
    assert hello["checked"] is True
    assert hello["layers"] == [3, 1, "final", 2]
    assert hello["engine_layers"] == [0, 1, 2]
    assert hello["dtype"] == "float32"
    assert hello["hidden_size"] == 128
    assert hello["spool_bytes"] == BOUND
    assert hello["architecture"] == "LlamaForCausalLM"
    assert not (probe.spool / ABANDONED).exists()
    assert not (probe.spool / DEAD_HELLO).exists()


def test_every_row_of_100_prompts_is_the_references(probe: Probe, reference: Reference) -> None:
    assert_equal(probe, reference, sharing_prompts(100, seed=1))


def test_a_batch_and_returned_states_change_nothing(probe: Probe, reference: Reference) -> None:
    prompts = [[first] * 20 * first for first in range(1, 9)]
    rids = [probe.rid() for _ in prompts]
    sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
    probe.post("/generate", {"input_ids": prompts, "rid": rids, "sampling_params": sampling})
    for request, ids in zip(rids, prompts, strict=True):
        assert worst_error(probe.take(request, len(ids)), reference.rows(ids, LAYERS)) <= GATE


def test_rows_that_the_radix_cache_kept_are_named(probe: Probe) -> None:
    ids = [200, *range(100)]
    probe.rows(ids)
    with pytest.raises(CaptureError, match=r"^cached-prefix: rows 0 to .* extra_key"):
        probe.rows(ids)


def test_foreign_requests_are_served_and_leave_nothing(probe: Probe) -> None:
    before = set(probe.spool.parent.iterdir())
    for name in ("../../x", "../x", "x", "hsstore-", f"{rid('a' * 16, 1)}/x", "a" * 300):
        reply = probe.generate([1, 2, 3], name, extra_key=name)
        assert reply["meta_info"]["finish_reason"]["type"] == "length"
    assert probe.files() == []
    assert set(probe.spool.parent.iterdir()) == before


def test_decoding_leaves_the_prompts_rows_only(probe: Probe, reference: Reference) -> None:
    ids = [(7 * at) % 256 for at in range(300)]
    request = probe.rid()
    sampling = {"max_new_tokens": 30, "temperature": 0, "ignore_eos": True}
    reply = probe.generate(ids, request, extra_key=request, sampling_params=sampling)
    assert len(reply["output_ids"]) == 30
    assert worst_error(probe.take(request, len(ids)), reference.rows(ids, LAYERS)) <= GATE


def test_a_full_spool_is_an_error_and_passes(probe: Probe, reference: Reference) -> None:
    ids = [at % 251 for at in range(900)]
    each = len(ids) * len(LAYERS) * 128 * 4
    requests = [probe.rid() for _ in range(BOUND // each + 2)]
    for request in requests:
        probe.generate(ids, request, extra_key=request)
    sizes = [(probe.spool / request).stat().st_size for request in requests]
    assert sum(sizes) <= BOUND
    with pytest.raises(CaptureError, match=r"^spool-full: "):
        probe.take(requests[-1], len(ids))
    for request in requests[: BOUND // each]:
        probe.take(request, len(ids))
    for request in requests:
        (probe.spool / request).unlink(missing_ok=True)
    assert_equal(probe, reference, [ids])


def test_without_a_spool_it_is_not_there(model: Path, plugin: Path, tmp_path: Path) -> None:
    for probe in serving("0.5.23", model, plugin, tmp_path):
        request = probe.rid()
        assert len(probe.generate([1, 2, 3], request)["output_ids"]) == 1
        assert list(probe.spool.iterdir()) == []
        assert "hsstore.capture" not in (tmp_path / "log").read_text()


def test_a_refusing_server_says_so_and_serves(model: Path, plugin: Path, tmp_path: Path) -> None:
    env = {"HSSTORE_SPOOL": str(tmp_path / "spool"), "HSSTORE_LAYERS": "1,final:pre"}
    for probe in serving("0.5.12", model, plugin, tmp_path, **env):
        assert len(probe.generate([1, 2, 3], probe.rid())["output_ids"]) == 1
        [hello] = probe.hellos()
        assert "final:pre" in hello["refused"]
        assert probe.files() == []
