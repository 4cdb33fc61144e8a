"""200 prompts through real servers into a store: every row is the model's, and the sample's own."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hsstore.testing.sglang_server import SGLangServer

pytestmark = pytest.mark.sglang

FINAL, AUX, SPOOLED = "final", "1,2,3", "1,2,3,final"
AUX_FLAGS = (
    "--enable-return-aux-hidden-states", "--speculative-algorithm", "DFLASH",
    "--return-aux-hidden-state-layer-ids", "0", "1", "2",
)  # fmt: skip

Run = Callable[..., CompletedProcess[str]]
Make = Callable[..., Path]
Serve = Callable[..., SGLangServer]
Verify = Callable[..., None]


@pytest.mark.parametrize(
    ("layers", "flags"), [(FINAL, ()), (AUX, AUX_FLAGS)], ids=["final", "auxiliary"]
)
def test_by_json(
    layers: str, flags: tuple[str, ...], serve: Serve, make_store: Make, verify: Verify,
    hsstore: Run,
) -> None:  # fmt: skip
    server = serve(
        "0.5.23", "--enable-return-hidden-states", "--chunked-prefill-size", "-1", *flags
    )
    store = make_store(layers)
    ended = hsstore("extract", store, "--server", server.url, "--concurrency", "8")
    assert ended.returncode == 0, ended.stderr
    verify(store)


@pytest.mark.parametrize("release", ["0.5.12", "0.5.23"])
@pytest.mark.parametrize("chunk", ["-1", "256"], ids=["whole", "chunked"])
def test_by_spool(
    release: str, chunk: str, serve: Serve, make_store: Make, spool: Path, verify: Verify,
    hsstore: Run,
) -> None:  # fmt: skip
    """With the radix cache on, as it is by default, and samples that share their beginnings."""
    server = serve(release, "--chunked-prefill-size", chunk, layers=SPOOLED)
    store = make_store(SPOOLED)
    ended = hsstore(
        "extract", store, "--server", server.url, "--spool", spool, "--concurrency", "8"
    )
    assert ended.returncode == 0, ended.stderr
    verify(store)
    assert [path for path in spool.iterdir() if not path.name.startswith("hello.")] == []


def test_json_of_an_old_release_is_refused_by_name(
    serve: Serve, make_store: Make, hsstore: Run
) -> None:
    server = serve("0.5.12", "--enable-return-hidden-states", "--chunked-prefill-size", "-1")
    ended = hsstore("extract", make_store(FINAL), "--server", server.url)
    assert ended.returncode == 8
    assert "0.5.12" in ended.stderr
    assert "--spool" in ended.stderr


@pytest.mark.parametrize("parallel", ["--tp-size", "--dp-size"])
def test_two_ranks(
    parallel: str, serve: Serve, make_store: Make, spool: Path, verify: Verify, hsstore: Run
) -> None:
    server = serve("0.5.23", parallel, "2", layers=SPOOLED)
    store = make_store(SPOOLED)
    ended = hsstore(
        "extract", store, "--server", server.url, "--spool", spool, "--concurrency", "8"
    )
    assert ended.returncode == 0, ended.stderr
    verify(store)
