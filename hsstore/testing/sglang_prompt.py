"""One prompt to a real server and its states back, by JSON or the spool; servers as pasted lines.

The client does more: it believes nothing, waits and retries. This is for looking past it.
"""

import json
import os
import shlex
import subprocess
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.capture import spool_format
from hsstore.model.capture import Capture
from hsstore.testing.sglang_server import ROOT, SGLangServer, environment

RUN = "0123456789abcdef"
# What a test's machine needs and no store does.
HERE = (
    "--host", "127.0.0.1", "--skip-tokenizer-init", "--max-total-tokens", "16384",
    "--max-running-requests", "8", "--mem-fraction-static", "0.3",
)  # fmt: skip

Ask = Callable[[NDArray[np.int32]], NDArray[Any]]


@dataclass(frozen=True)
class Served:
    """What a calibration is told of a server."""

    release: str
    model_path: str = "/nowhere/model"
    aux_layer_ids: tuple[int, ...] | None = None
    architectures: tuple[str, ...] = ("LlamaForCausalLM",)


class PastedServer(SGLangServer):
    """A server that the shell starts from a launch line, as an operator would paste it."""

    def __init__(self, line: str, release: str, model: Path, log: Path,
                 plugin: Path | None = None) -> None:  # fmt: skip
        super().__init__(release, model, log, plugin=plugin)
        self.line = line

    def start(self) -> None:
        """Run the line with this machine's options behind it, and wait until it is healthy."""
        words = shlex.join([*HERE, "--port", str(self.port)])
        programs = environment(self.release).absolute() / "bin"
        env = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HSSTORE_"))},
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(self.plugin) if self.plugin else "",
        }
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(  # noqa: S603 - the line under test
                ["/bin/bash", "-c", f"{self.line} {words}"],
                env=env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait()
        except BaseException:
            self.kill()
            raise


def ask_by_json(url: str, capture: Capture) -> Ask:
    """Ask for the final state or for numbered layers, whatever the server returns."""

    def ask(ids: NDArray[np.int32]) -> NDArray[Any]:
        reply = _generate(
            url, ids, {"return_hidden_states": True, "extra_key": os.urandom(8).hex()}
        )
        rows = np.array(reply["meta_info"]["hidden_states"][0], np.float32)
        states = rows.reshape(len(ids), len(capture.layers), -1)
        # SGLang returns layers in ascending order.
        place = [sorted(capture.layers, key=str).index(layer) for layer in capture.layers]
        return stored(np.ascontiguousarray(states[:, place]), capture.dtype)

    return ask


def ask_by_spool(url: str, spool: Path, capture: Capture) -> Ask:
    """Ask for what the capture plugin writes into ``spool``."""
    numbers = iter(range(1000))

    def ask(ids: NDArray[np.int32]) -> NDArray[Any]:
        rid = spool_format.rid(RUN, next(numbers))
        _generate(url, ids, {"rid": rid, "extra_key": rid})
        raw, dtype = (spool / rid).read_bytes(), capture.dtype
        shape = (len(ids), len(capture.layers), -1)
        states = np.frombuffer(_payload(raw, rid), "<u2" if dtype == "bfloat16" else dtype)
        return states.reshape(shape).copy()

    return ask


def stored(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """Values that came from a dtype, in it again (bfloat16 as bits)."""
    if dtype == "bfloat16":
        return (values.view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(dtype)


def _payload(raw: bytes, rid: str) -> bytes:
    pieces, offset, size = [], 0, spool_format.HEADER.size
    while offset < len(raw):
        segment = spool_format.decode_header(raw[offset : offset + size], rid)
        pieces.append(raw[offset + size : offset + size + segment.payload_bytes])
        offset += size + segment.payload_bytes
    return b"".join(pieces)


def _generate(url: str, ids: NDArray[np.int32], more: dict[str, Any]) -> dict[str, Any]:
    sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
    body = json.dumps({"input_ids": ids.tolist(), "sampling_params": sampling, **more})
    request = urllib.request.Request(  # noqa: S310 - http
        f"{url}/generate", body.encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - http
        found: dict[str, Any] = json.load(answer)
        return found
