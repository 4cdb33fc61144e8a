"""The HTTP of one server: three calls, and what each status and each broken connection means."""

import contextlib
import ssl
from collections.abc import Mapping
from typing import Any

import httpx
import orjson

from hsstore.errors import SourceUnavailable
from hsstore.extraction.sglang.address import API_KEY, Address
from hsstore.extraction.sglang.facts import Facts, not_sglang, read_facts
from hsstore.extraction.sglang.outcome import AttemptEnded, AttemptFailed, Busy, Lost, Rejected

CONNECT_SECONDS = 10.0
FACTS_SECONDS = 60.0
ABORT_SECONDS = 2.0
# Below the 5 s after which a server's uvicorn closes an idle connection: no request meets that.
IDLE_SECONDS = 2.0
SHOWN = 200
TOO_MANY, UNAVAILABLE = 429, 503
UNAUTHORISED = (401, 403)
GATEWAY = (502, 504)
REFUSING = (400, 413, 422)
SERVER_ERRORS = 500


class Connection:
    """One pool of connections to a server.

    ``opened`` counts the connections made for requests: a reply that came before ``facts`` were
    asked for, over one of those counted by then, is of the launch that the facts name or of one
    before it. Must be used in one event loop.
    """

    def __init__(self, address: Address, request_seconds: float) -> None:
        self.address = address
        self.opened = 0
        secure = address.url.startswith("https:")
        # Reading the system's certificates takes long, and plain HTTP needs none.
        self._tls = (
            ssl.create_default_context() if secure else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        )
        self._pool = self._client(request_seconds, keep=None)

    async def facts(self) -> Facts:
        """What the server says of itself, over a connection of its own.

        Raises IdentityMismatch for anything but an SGLang server, SourceUnavailable where it wants
        another key, Lost where it is not there, or not ready.
        """
        place = self.address.url
        # One that was kept could belong to a server that no longer listens.
        async with self._client(FACTS_SECONDS, keep=0) as fresh:
            model_info = await self._told(fresh, "/model_info")
            server_info = await self._told(fresh, "/server_info")
        return read_facts(model_info, server_info, place)

    async def generate(self, body: Mapping[str, Any]) -> bytes:
        """The body of the reply to ``/generate``, of status 200; AttemptEnded for any other."""
        content = orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)
        trace = {"trace": self._count}
        try:
            reply = await self._pool.post(self._url("/generate"), content=content, extensions=trace)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            raise Lost(f"cannot be reached: {_words(error)}", sent=False) from None
        except httpx.TimeoutException:
            raise AttemptFailed("timeout", "no reply in time") from None
        except httpx.HTTPError as error:
            raise Lost(f"the connection broke: {_words(error)}", sent=True) from None
        if reply.status_code != httpx.codes.OK:
            raise meaning(reply.status_code, reply.content)
        return reply.content

    async def abort(self, rid: str) -> None:
        """Tell the server to compute a request no further; its answer does not matter."""
        with contextlib.suppress(httpx.HTTPError):
            await self._pool.post(
                self._url("/abort_request"), json={"rid": rid}, timeout=ABORT_SECONDS
            )

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()

    def _client(self, seconds: float, keep: int | None) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            headers={
                **self.address.headers(),
                "Content-Type": "application/json",
                "Accept-Encoding": "identity",
            },
            timeout=httpx.Timeout(seconds, connect=CONNECT_SECONDS, pool=None),
            limits=httpx.Limits(max_keepalive_connections=keep, keepalive_expiry=IDLE_SECONDS),
            verify=self._tls,
            # No proxy and no .netrc: the server is the one that was named.
            trust_env=False,
        )

    def _url(self, path: str) -> str:
        return self.address.url + path

    async def _count(self, event: str, _: Mapping[str, Any]) -> None:
        self.opened += event == "connection.connect_tcp.complete"

    async def _told(self, client: httpx.AsyncClient, path: str) -> object:
        place = self.address.url
        try:
            reply = await client.get(self._url(path))
        except httpx.HTTPError as error:
            raise Lost(f"cannot be reached: {_words(error)}", sent=False) from None
        if reply.status_code in UNAUTHORISED:
            raise SourceUnavailable(
                "the server wants an API key" if not self.address.api_key else "not its API key",
                place=place,
                remedy=f"put its key into the environment variable {API_KEY}",
            )
        if reply.status_code >= SERVER_ERRORS or reply.status_code == TOO_MANY:
            raise Lost(f"is not ready: status {reply.status_code} for {path}", sent=False)
        if reply.status_code != httpx.codes.OK:
            raise not_sglang(place, f"status {reply.status_code} for {path}")
        try:
            return orjson.loads(reply.content)
        except ValueError:
            raise not_sglang(place, f"no JSON at {path}") from None


def meaning(status: int, body: bytes) -> AttemptEnded:
    """What a reply to ``/generate`` with a status other than 200 means for the request."""
    said = f"status {status}: {error_text(body)}"
    if status in (UNAVAILABLE, TOO_MANY):
        return Busy(said)
    if status in REFUSING:
        return Rejected("rejected", said)
    if status >= SERVER_ERRORS and status not in GATEWAY:
        return AttemptFailed("server-error", said)
    # A gateway's word that the server is gone, or something else that answers in its place. Where
    # the server is there each time, it is the sample that ends so.
    return Lost(said, sent=True)


def error_text(body: bytes) -> str:
    """The words in an error body, in any of a server's three shapes, on one line."""
    try:
        answer = orjson.loads(body)
    except ValueError:
        answer = body.decode(errors="replace")
    if isinstance(answer, dict):
        inner = answer.get("error", answer)
        answer = inner.get("message", "no reason given") if isinstance(inner, dict) else inner
    return " ".join("".join(c if c.isprintable() else " " for c in str(answer)).split())[:SHOWN]


def _words(error: Exception) -> str:
    return str(error) or type(error).__name__
