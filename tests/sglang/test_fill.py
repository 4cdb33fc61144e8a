"""200 prompts through real servers into a store: every row is the model's, and the sample's own."""

from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from hsstore.testing.sglang_server import SGLangServer, several_ranks

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
def test_by_spool(
    release: str, serve: Serve, make_store: Make, spool: Path, verify: Verify, hsstore: Run
) -> None:
    """Prefill in chunks, the radix cache on, and samples that share their beginnings."""
    server = serve(
        release, "--chunked-prefill-size", "256", "--enable-return-hidden-states", layers=SPOOLED
    )
    # JSON would lose rows of a prompt that is computed in chunks; of old releases, more than that.
    refused = hsstore("extract", make_store(FINAL), "--server", server.url)
    assert refused.returncode == 8
    assert (release if release == "0.5.12" else "chunked") in refused.stderr
    store = make_store(SPOOLED)
    ended = hsstore("extract", store, "--server", server.url, "--spool", spool,
                    "--concurrency", "8")  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    verify(store)
    assert [path for path in spool.iterdir() if not path.name.startswith("hello.")] == []


@pytest.mark.parametrize("parallel", ["tp", "dp"])
def test_two_ranks(
    parallel: str, serve: Serve, make_store: Make, spool: Path, verify: Verify, hsstore: Run
) -> None:
    flags, env = several_ranks("0.5.23", **{parallel: 2})
    server = serve("0.5.23", *flags, layers=SPOOLED, env=env)
    store = make_store(SPOOLED)
    ended = hsstore("extract", store, "--server", server.url, "--spool", spool,
                    "--concurrency", "8")  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    verify(store)
