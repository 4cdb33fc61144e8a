"""What capture costs a server and its client: ``python benchmarks/capture.py [--release 0.5.23]``.

A tiny model of hidden size 7168 is served by a real SGLang server on this machine's CPU. Plain
requests, requests that the plugin captures and requests for JSON states go to the same server in
turn, so that ratios are of one run; the client's own work is timed on what came back.
"""

import argparse
import json
import secrets
import statistics
import tempfile
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch
import transformers
from measure import machine

from hsstore.capture.spool_format import rid
from hsstore.extraction.sglang.reply import Expected, Rows, json_states
from hsstore.extraction.sglang.spool import Spool, rows_like
from hsstore.testing.sglang_server import SGLangServer, install_plugin

HERE = Path(__file__).resolve().parent
HIDDEN, BLOCKS, VOCABULARY = 7168, 4, 256
LAYERS, STATES = "1,2,3,final", 4
TOKENS, ROUNDS, WARM = 256, 7, 2
FLAGS = ("--enable-return-hidden-states", "--chunked-prefill-size", "-1")


def main() -> None:
    """Serve, measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--release", default="0.5.23")
    release = parser.parse_args().release
    with (
        tempfile.TemporaryDirectory(prefix="hsstore-bench-") as made,
        tempfile.TemporaryDirectory(prefix="hsstore-bench-", dir="/dev/shm") as spool,
    ):
        folder = Path(made)
        build(folder / "model")
        plugin = install_plugin(release, folder / "plugin")
        env = {"HSSTORE_SPOOL": spool, "HSSTORE_LAYERS": LAYERS}
        server = SGLangServer(
            release, folder / "model", folder / "log", flags=FLAGS, env=env, plugin=plugin,
            dtype="bfloat16",
        )  # fmt: skip
        with server:
            figures = measured(server.url, Path(spool))
        report = {"machine": machine(folder), "release": release, "results": figures}
    for name, figure in figures.items():
        print(f"{name:44} {figure:10.4g}")
    kept = HERE / "results" / f"capture-{release}.json"
    kept.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def build(folder: Path) -> None:
    """A Llama of that width with almost no work in its blocks."""
    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=BLOCKS,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(folder)


def measured(url: str, spool: Path) -> dict[str, float]:
    """Request times as ratios to a plain request, and the client's milliseconds per token."""
    ids = np.random.default_rng(0).integers(0, VOCABULARY, TOKENS).tolist()
    run = secrets.token_hex(8)
    folder = Spool(spool)
    into = rows_like(TOKENS, STATES, HIDDEN, "bfloat16")
    rows = Rows(3, HIDDEN, "bfloat16", (0, 1, 2))
    seconds: dict[str, list[float]] = {}

    def timed(name: str, clock: Callable[[], float], work: Callable[..., Any], *given: Any) -> Any:  # noqa: ANN401 - of whatever it is given
        began = clock()
        done = work(*given)
        seconds.setdefault(name, []).append(clock() - began)
        return done

    wall, own = time.perf_counter, time.process_time
    for number in range(ROUNDS + WARM):
        if number == WARM:
            seconds.clear()
        captured, plain, asked = rid(run, number), secrets.token_hex(8), secrets.token_hex(8)
        timed("plain", wall, generate, url, ids, plain)
        timed("captured", wall, generate, url, ids, captured)
        timed("spool", own, folder.states, captured, into, "bfloat16")
        folder.remove(captured)
        body = timed("by JSON", wall, partial(generate, states=True), url, ids, asked)
        timed("json", own, json_states, body, Expected(asked, TOKENS, "default"), rows)
        timed("orjson", own, orjson.loads, body)
    median = {name: statistics.median(each) for name, each in seconds.items()}
    return {
        "request with capture / plain request": median["captured"] / median["plain"],
        "request for JSON layers / plain request": median["by JSON"] / median["plain"],
        "client, spool, ms per token (4 states)": 1e3 * median["spool"] / TOKENS,
        "client, JSON, ms per token (3 states)": 1e3 * median["json"] / TOKENS,
        "client, JSON / orjson.loads of the body": median["json"] / median["orjson"],
        "spool GB/s read and verified": into.nbytes / median["spool"] / 1e9,
    }


def generate(url: str, ids: list[int], request: str, *, states: bool = False) -> bytes:
    """The body of one reply."""
    body = {
        "input_ids": ids,
        "rid": request,
        "extra_key": request,
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True},
        **({"return_hidden_states": True} if states else {}),
    }
    sent = urllib.request.Request(  # noqa: S310 - http on this machine
        f"{url}/generate", orjson.dumps(body), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(sent, timeout=600) as reply:  # noqa: S310 - as above
        answer: bytes = reply.read()
    return answer


if __name__ == "__main__":
    main()
