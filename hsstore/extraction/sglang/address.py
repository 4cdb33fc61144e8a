"""Where a server is, and the key to it."""

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx

from hsstore.errors import MalformedInput

API_KEY = "HSSTORE_API_KEY"


@dataclass(frozen=True, slots=True)
class Address:
    """A server's base URL, which names it everywhere; the key is in no text of this object."""

    url: str
    api_key: str | None = field(default=None, repr=False)

    def headers(self) -> dict[str, str]:
        """What every request to it carries."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}


def parse_address(url: str) -> Address:
    """The address that a URL means, with the key of the environment variable HSSTORE_API_KEY.

    Raises MalformedInput where it is no http(s) URL of a host alone; its text is not repeated,
    since it may hold a password.
    """
    if "@" in url:
        raise MalformedInput(
            "a server's URL may hold no user name and no password",
            remedy=f"leave them out and put the API key into the environment variable {API_KEY}",
        )
    try:
        parts = urlsplit(url.strip())
        port = parts.port
        host = parts.hostname or ""
        is_host = _is_host(host)
    except (ValueError, httpx.InvalidURL):
        raise MalformedInput(NO_URL, remedy=EXAMPLE) from None
    if parts.scheme not in ("http", "https") or not is_host or parts.query or parts.fragment:
        raise MalformedInput(NO_URL, remedy=EXAMPLE)
    named = f"[{host}]" if ":" in host else host
    place = named if port is None else f"{named}:{port}"
    key = os.environ.get(API_KEY, "").strip() or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise MalformedInput(f"the environment variable {API_KEY} holds no API key")
    return Address(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", key)


def _is_host(host: str) -> bool:
    """Whether a request can name it; ValueError for a name that IDNA does not know."""
    host.encode("idna")
    return bool(httpx.URL(scheme="http", host=host).host)


NO_URL = "what was given is no URL of a server"
EXAMPLE = "give it as http://HOST:PORT"
