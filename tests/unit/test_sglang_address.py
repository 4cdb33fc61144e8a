import pytest

from hsstore.errors import MalformedInput
from hsstore.extraction.sglang.address import parse_address


@pytest.mark.parametrize(
    ("typed", "url"),
    [
        ("http://host:30000", "http://host:30000"),
        ("https://host/", "https://host"),
        (" http://[::1]:80/pre/ ", "http://[::1]:80/pre"),
    ],
)
def test_urls_of_servers(typed: str, url: str) -> None:
    assert parse_address(typed).url == url


@pytest.mark.parametrize(
    "typed",
    [
        "",
        "host:30000",
        "ftp://host",
        "http://",
        "http://host:x",
        "http://h?a=b",
        "http://[::",
        "http://xn--:1",
        "http://a..b",
    ],
)
def test_anything_else_is_refused(typed: str) -> None:
    with pytest.raises(MalformedInput, match="URL"):
        parse_address(typed)


@pytest.mark.parametrize(
    "typed",
    [
        "http://me:hunter2@host",
        "me:hunter2@host:30000",
        "http:/me:hunter2@host",
        "http://me:hunter2/word@host",
        "http://host:30000?api_key=hunter2",
        "http://me:hunter2",
    ],
)
def test_a_password_in_a_url_is_refused_and_not_repeated(typed: str) -> None:
    with pytest.raises(MalformedInput) as caught:
        parse_address(typed)
    assert "hunter2" not in f"{caught.value!r} {caught.value}"
    assert ("HSSTORE_API_KEY" in str(caught.value)) == ("@" in typed)


def test_the_key_is_in_headers_and_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HSSTORE_API_KEY", "hunter2\n")
    address = parse_address("http://host")
    assert address.headers() == {"Authorization": "Bearer hunter2"}
    assert "hunter2" not in f"{address!r}"
    monkeypatch.setenv("HSSTORE_API_KEY", "hunter2\nX-Other: 1")
    with pytest.raises(MalformedInput) as caught:
        parse_address("http://host")
    assert "hunter2" not in repr(caught.value)
    monkeypatch.delenv("HSSTORE_API_KEY")
    assert parse_address("http://host").headers() == {}
