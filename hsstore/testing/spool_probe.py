"""Asking a server with the capture plugin, reading its spool, and comparing with transformers."""

import json
import random
import secrets
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch import Tensor

from hsstore.capture.spool_format import (
    ERROR,
    HEADER,
    HELLO,
    Segment,
    decode_header,
    rid,
)

TIMEOUT_SECONDS = 120.0
GATE = 1e-3  # float32: relative error of a row against transformers


class CaptureError(RuntimeError):
    """An error marker of the plugin, or rows that are not exactly a prompt's."""


class Probe:
    """Plain requests to one server, each with a rid of hsstore."""

    def __init__(self, url: str, spool: Path) -> None:
        self.url = url
        self.spool = spool
        self._run = secrets.token_hex(8)
        self._number = 0

    def rid(self) -> str:
        """The next request id."""
        self._number += 1
        return rid(self._run, self._number)

    def post(self, path: str, body: dict[str, Any]) -> Any:  # noqa: ANN401 - JSON
        """The JSON that a POST returns."""
        request = urllib.request.Request(  # noqa: S310 - http
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as reply:  # noqa: S310 - http
            return json.loads(reply.read() or b"null")

    def generate(self, ids: Sequence[int], request: str, **more: Any) -> Any:  # noqa: ANN401 - JSON
        """Ask for one token behind ``ids``; ``more`` are further members of the request."""
        sampling = {"max_new_tokens": 1, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": list(ids), "rid": request, "sampling_params": sampling, **more}
        return self.post("/generate", body)

    def rows(self, ids: Sequence[int], **more: Any) -> Tensor:  # noqa: ANN401 - JSON
        """The rows [tokens, layers, hidden] of one request; its file is removed."""
        request = self.rid()
        self.generate(ids, request, **more)
        return self.take(request, len(ids))

    def all_rows(
        self, prompts: Sequence[Sequence[int]], concurrency: int = 8, *, extra_key: bool = True
    ) -> list[Tensor]:
        """The rows of each prompt, asked for ``concurrency`` at a time."""

        def one(ids: Sequence[int]) -> Tensor:
            request = self.rid()
            self.generate(ids, request, **({"extra_key": request} if extra_key else {}))
            return self.take(request, len(ids))

        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(one, prompts))

    def take(self, request: str, tokens: int) -> Tensor:
        """The rows of a finished request; its file is removed. CaptureError if they are not N."""
        path = self.spool / request
        if not path.exists():
            raise CaptureError(f"{request}: no file")
        segments = read_segments(path.read_bytes(), request)
        path.unlink()
        return joined(segments, tokens)

    def hellos(self) -> list[dict[str, Any]]:
        """The hello documents in the spool, by rank."""
        names = [path for path in self.spool.iterdir() if HELLO.fullmatch(path.name)]
        found: list[dict[str, Any]] = [json.loads(path.read_bytes()) for path in names]
        return sorted(found, key=lambda hello: int(hello["rank"]))

    def files(self) -> list[str]:
        """The names in the spool other than hello files."""
        return sorted(path.name for path in self.spool.iterdir() if not HELLO.fullmatch(path.name))


def sharing_prompts(
    count: int, seed: int, shortest: int = 5, longest: int = 900
) -> list[list[int]]:
    """Prompts of bytes, ``shortest`` to ``longest`` tokens, every third of which begins alike."""
    draw = random.Random(seed)  # noqa: S311 - prompts, no secrets
    common = [draw.randrange(256) for _ in range(longest)]
    prompts = []
    for number in range(count):
        length = draw.randint(shortest, longest)
        shared = draw.randint(1, length) if number % 3 == 0 else 0
        rest = [draw.randrange(256) for _ in range(length - shared)]
        prompts.append(common[:shared] + rest)
    return prompts


def read_segments(raw: bytes, request: str) -> list[tuple[Segment, bytes]]:
    """The segments in a request's file; TornSegment or CaptureError where they are not whole."""
    segments = []
    at = 0
    while at < len(raw):
        segment = decode_header(raw[at : at + HEADER.size], request)
        at += HEADER.size
        payload = raw[at : at + segment.payload_bytes]
        at += segment.payload_bytes
        if xxhash.xxh3_64_intdigest(payload) != segment.payload_xxh3_64:
            raise CaptureError(f"{request}: a torn payload")
        segments.append((segment, payload))
    return segments


def joined(segments: Sequence[tuple[Segment, bytes]], tokens: int) -> Tensor:
    """The rows [tokens, layers, hidden] of a request; CaptureError unless each is there once."""
    dtypes = {1: torch.bfloat16, 2: torch.float16, 3: torch.float32}
    at = 0
    parts = []
    for segment, payload in segments:
        if segment.kind == ERROR:
            raise CaptureError(payload.decode())
        if segment.first_row != at:
            raise CaptureError(f"a segment from row {segment.first_row}, not {at}")
        at += segment.rows
        flat = torch.frombuffer(bytearray(payload), dtype=dtypes[segment.dtype])
        parts.append(flat.reshape(segment.rows, segment.layers, segment.hidden_size))
    if at != tokens:
        raise CaptureError(f"{at} rows of {tokens}")
    return torch.cat(parts)


def worst_error(rows: Tensor, expected: Tensor) -> float:
    """The greatest relative error of a row in a layer: |rows - expected| / |expected|."""
    if rows.shape != expected.shape:
        raise CaptureError(f"rows of {list(rows.shape)}, not {list(expected.shape)}")
    difference = (rows.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    # A NaN would lose every comparison.
    return float(torch.nan_to_num(difference, nan=float("inf")).max())
