"""A server that speaks as SGLang does, over real HTTP on 127.0.0.1, and fails when told to."""

import asyncio
import contextlib
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from hsstore.capture.spool_format import DTYPES, ERROR, STATES, Segment, encode_header
from hsstore.model.identity import StoreIdentity
from hsstore.testing.sources import seeded_states

Kind = Literal["sglang", "vllm", "web", "loading"]
LONGEST = 1000

# What may go wrong with a request, by name.
Fault = Literal[
    "busy", "disconnect", "die", "abort", "other rid", "rows missing", "cached", "null",
    "other weights version", "too wide", "no json", "error", "rejected", "hang", "torn spool",
    "damaged spool", "no spool", "rows twice", "spool full", "other boot",
    "not found",
]  # fmt: skip
FaultOf = Callable[[Sequence[int], int], Fault | None]


@dataclass(eq=False)
class Launch:
    """One launch of a fake server; ``info`` overrides what it says of itself.

    ``weights`` is added to all token ids before their states are drawn: so they are others.
    """

    kind: Kind = "sglang"
    weights: int = 0
    info: Mapping[str, Any] = field(default_factory=dict)
    seed: int = field(default_factory=lambda: secrets.randbits(40))
    boot: str = field(default_factory=lambda: secrets.token_hex(16))


class FakeSGLang:
    """A fake server for a store; its states are those of ``seeded_states``.

    ``fault`` tells what is to go wrong with a prompt that was asked for n times before. ``most``
    bounds the requests at work at once: 503 above. With ``spool`` it writes states there as the
    plugin does. ``asked`` has every request's body in order, ``aborted`` the rids of abort
    requests, ``peak`` the most requests that were at work at once.
    """

    def __init__(
        self,
        identity: StoreIdentity,
        *,
        launch: Launch | None = None,
        fault: FaultOf = lambda _ids, _times: None,
        most: int | None = None,
        seconds: float = 0.0,
        spool: Path | None = None,
        key: str | None = None,
    ) -> None:
        self.identity = identity
        self.launch = launch or Launch()
        self.fault = fault
        self.most = most
        self.seconds = seconds
        self.spool = spool
        self.key = key
        self.asked: list[dict[str, Any]] = []
        self.aborted: list[str] = []
        self.peak = 0
        self.port = 0
        self._at_work = 0
        self._times: Counter[tuple[int, ...]] = Counter()
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self._over = asyncio.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """Where it is, before and after a restart."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def listening(self) -> bool:
        """Whether its port is open."""
        return self._server is not None and self._server.is_serving()

    def start(self, launch: Launch | None = None) -> None:
        """Listen again, as another launch."""
        self.launch = launch or self.launch
        self._do(self._listen())

    def stop(self) -> None:
        """Close the port and all connections, as the end of the process would."""
        self._do(self._stop())

    def restart(self, launch: Launch | None = None) -> None:
        """Another launch at the same place, of the same kind unless told."""
        self.stop()
        self.start(launch or Launch())

    def prompts(self) -> list[list[int]]:
        """The token ids of every request, in order."""
        return [body["input_ids"] for body in self.asked]

    # -- in the event loop's thread ------------------------------------------------------------

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _listen(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        self._hello()

    async def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def _end(self) -> None:
        self._over.set()
        await self._stop()
        # A connection that was being accepted meanwhile is served from here on.
        while rest := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(rest, timeout=0.05)
            await self._stop()
        await asyncio.sleep(0)  # for the sockets of what was aborted last to close

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while await self._request(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (x.partition(": ") for x in lines)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        _, path, _ = first.split(" ")
        if self.key is not None and headers.get("authorization") != f"Bearer {self.key}":
            status, answer = 401, b'{"error":"Unauthorized"}'
        elif self.launch.kind != "sglang":
            status, answer = self._other_kind(path)
        else:
            found = await self._answer(path, body)
            if found is None:
                return False
            status, answer = found
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(answer)}\r\n\r\n"
        writer.write(head.encode() + answer)
        await writer.drain()
        return headers.get("connection") != "close"

    def _other_kind(self, path: str) -> tuple[int, bytes]:
        if self.launch.kind == "web":
            return 200, b"<html><body>It works!</body></html>"
        if self.launch.kind == "loading":
            return 503, b""
        if path == "/generate":
            return 404, b'{"detail":"Not Found"}'
        return 404, b'{"object":"error","message":"The model does not exist.","code":404}'

    async def _answer(self, path: str, body: bytes) -> tuple[int, bytes] | None:
        if path == "/model_info":
            return 200, orjson.dumps(self._model_info())
        if path == "/server_info":
            return 200, orjson.dumps(self._server_info())
        asked = orjson.loads(body)
        if path == "/abort_request":
            self.aborted.append(asked["rid"])
            return 200, b""
        return await self._generate(asked)

    def _model_info(self) -> dict[str, Any]:
        model = self.identity.model
        said = {
            "model_path": model.id,
            "tokenizer_path": model.id,
            "model_type": model.model_type,
            "architectures": ["LlamaForCausalLM"],
            "weight_version": "default",
            "load_format": "auto",
        }
        return said | {name: v for name, v in self.launch.info.items() if name in said}

    def _server_info(self) -> dict[str, Any]:
        layers = self.identity.capture.layers
        numbers = [layer - 1 for layer in layers if isinstance(layer, int)]
        aux = sorted(numbers) if "final" not in layers else None
        said = {
            "version": "0.5.23",
            "api_key": "secret-of-the-server",
            "launch_command": "python -m sglang.launch_server --api-key secret-of-the-server",
            "dtype": self.identity.capture.dtype,
            "quantization": None,
            "kv_cache_dtype": "auto",
            "tp_size": 1,
            "pp_size": 1,
            "dp_size": 1,
            "enable_dp_attention": False,
            "attention_backend": "torch_native",
            "device": "cpu",
            "chunked_prefill_size": -1,
            "disable_radix_cache": False,
            "allow_auto_truncate": False,
            "max_req_input_len": LONGEST + 1,
            "max_total_num_tokens": 16384,
            "max_running_requests": 8,
            "max_queued_requests": None,
            "enable_return_hidden_states": True,
            "enable_return_aux_hidden_states": aux is not None,
            "return_aux_hidden_state_layer_ids": aux,
            "random_seed": self.launch.seed,
            "internal_states": [{"random_seed": self.launch.seed, "startup_time": {"x": 1.5}}],
        }
        return said | dict(self.launch.info)

    async def _generate(self, asked: dict[str, Any]) -> tuple[int, bytes] | None:
        ids = asked["input_ids"]
        if self.most is not None and self._at_work >= self.most:
            return 503, b'{"error":{"message":"The request queue is full."}}'
        self.asked.append(asked)
        if len(ids) >= self._server_info()["max_req_input_len"]:
            return 400, b'{"error":"The input is too long."}'
        times = self._times[tuple(ids)]
        self._times[tuple(ids)] += 1
        self._at_work += 1
        self.peak = max(self.peak, self._at_work)
        try:
            await asyncio.sleep(self.seconds)
            return await self._outcome(asked, self.fault(ids, times))
        finally:
            self._at_work -= 1

    async def _outcome(
        self, asked: dict[str, Any], fault: Fault | None
    ) -> tuple[int, bytes] | None:
        if fault == "hang":
            await self._over.wait()
            return None
        if fault == "die":
            await self._stop()
        if fault in ("disconnect", "die"):
            return None
        refusals = {
            "busy": (503, b'{"error":{"message":"The request queue is full."}}'),
            "error": (500, b'{"object":"error","message":"boom","code":500}'),
            "not found": (404, b'{"detail":"Not Found"}'),
            "rejected": (400, b'{"error":"The input is too long."}'),
            "no json": (200, b"<html></html>"),
        }
        if fault in refusals:
            return refusals[fault]
        states = self._states(asked["input_ids"])
        if self.spool is not None:
            self._write(self.spool / asked["rid"], asked["rid"], states, fault)
        return 200, orjson.dumps(self._reply(asked, states, fault))

    def _states(self, ids: Sequence[int]) -> NDArray[Any]:
        shifted = (np.array(ids) + self.launch.weights) % self.identity.model.vocab_size
        return seeded_states(self.identity, shifted.astype(np.int32))

    def _reply(
        self, asked: dict[str, Any], states: NDArray[Any], fault: Fault | None
    ) -> dict[str, Any]:
        tokens = len(asked["input_ids"])
        version = "other" if fault == "other weights version" else "default"
        meta: dict[str, Any] = {
            "id": "somebody else's" if fault == "other rid" else asked["rid"],
            "finish_reason": {"type": "length", "length": 1},
            "prompt_tokens": tokens,
            "cached_tokens": 1 if fault == "cached" else 0,
            "num_retractions": 0,
            "weight_version": version,
            "weight_versions": [{"version": version, "start": 0, "end": 1}],
        }
        if fault == "abort":
            meta["finish_reason"] = {"type": "abort", "message": "Abort from client."}
        if asked.get("return_hidden_states"):
            rows = self._as_json(states)
            if fault == "null":
                rows[-1][0] = None
            meta["hidden_states"] = [rows[fault == "rows missing" :]]
            if fault == "too wide":
                meta["hidden_states"] = [[[*row, 0.0] for row in rows]]
        return {"output_ids": [1], "meta_info": meta}

    def _as_json(self, states: NDArray[Any]) -> list[list[Any]]:
        layers = self.identity.capture.layers
        order = sorted(range(len(layers)), key=lambda n: (isinstance(layers[n], str), layers[n]))
        ordered = states[:, order].reshape(len(states), -1)
        if self.identity.capture.dtype == "bfloat16":
            ordered = (ordered.astype(np.uint32) << 16).view(np.float32)
        rows: list[list[Any]] = ordered.tolist()
        return rows

    # -- what the plugin does ------------------------------------------------------------------

    def _hello(self) -> None:
        if self.spool is None or self.launch.kind != "sglang":
            return
        identity, boot = self.identity, self.launch.boot
        hello = {
            "format": 1,
            "kind": "hsstore-spool",
            "boot": boot,
            "rank": 0,
            "ranks": 1,
            "release": self._server_info()["version"],
            "plugin": "0",
            "model_path": self._model_info()["model_path"],
            "layers": list(identity.capture.layers),
            "engine_layers": sorted(k - 1 for k in identity.capture.layers if isinstance(k, int)),
            "dtype": identity.capture.dtype,
            "hidden_size": identity.model.hidden_size,
            "norm": "post",
            "spool_bytes": 1 << 20,
            "checked": True,
            "refused": None,
        } | dict(self.launch.info.get("hello", {}))
        (self.spool / f"hello.{boot}.0.json").write_bytes(orjson.dumps(hello))

    def _write(self, path: Path, rid: str, states: NDArray[Any], fault: Fault | None) -> None:
        if fault == "no spool":
            return
        half = len(states) // 2
        parts = [(0, states[:half]), (half, states[half:])] if half else [(0, states)]
        if fault == "spool full":
            parts = []
            path.write_bytes(self._segment(ERROR, rid, 0, 0, b"spool-full: no room"))
        if fault == "rows twice":
            parts.append((0, states[: half or 1]))
        with path.open("ab") as file:
            for first, rows in parts:
                boot = secrets.token_hex(16) if fault == "other boot" else None
                file.write(self._segment(STATES, rid, first, len(rows), rows.tobytes(), boot))
        size = path.stat().st_size
        if fault == "torn spool":
            with path.open("r+b") as file:
                file.truncate(size - 1)
        if fault == "damaged spool":
            with path.open("r+b") as file:
                file.seek(size - 1)
                file.write(b"\x55")

    def _segment(
        self, kind: int, rid: str, first: int, rows: int, payload: bytes, boot: str | None = None
    ) -> bytes:
        identity = self.identity
        segment = Segment(
            kind,
            DTYPES[identity.capture.dtype],
            identity.geometry.layers,
            identity.model.hidden_size,
            first,
            rows,
            len(payload),
            boot or self.launch.boot,
            xxhash.xxh3_64_intdigest(payload),
        )
        return encode_header(segment, rid) + payload
