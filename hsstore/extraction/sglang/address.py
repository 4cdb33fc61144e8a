"""Where a server is, and the key to it."""

import os
from dataclasses import dataclass, field
from urllib.parse import urlsplit

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

    Raises MalformedInput where it is no http(s) URL of a host alone; its text is not repeated
    where it holds a password.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise MalformedInput(f"no URL of a server: {error}") from None
    if "@" in parts.netloc:
        raise MalformedInput(
            "a server's URL may hold no user name and no password",
            remedy=f"leave them out and put the API key into the environment variable {API_KEY}",
        )
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise MalformedInput(f"{url[:200]!r} is no URL of a server", remedy=EXAMPLE)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port is None else f"{host}:{port}"
    key = os.environ.get(API_KEY, "").strip() or None
    if key is not None and not (key.isascii() and key.isprintable()):
        raise MalformedInput(f"the environment variable {API_KEY} holds no API key")
    return Address(f"{parts.scheme}://{place}{parts.path.rstrip('/')}", key)


EXAMPLE = "give it as http://HOST:PORT"
