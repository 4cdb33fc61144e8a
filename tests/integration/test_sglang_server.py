"""Starting servers for tests, with a program in the place of SGLang that lost its port."""

import sys
from pathlib import Path

import pytest

from hsstore.testing.sglang_server import LAUNCHES, SGLangServer

PROGRAM = """#!{python}
import http.server, pathlib, sys
launches = pathlib.Path({launches!r})
with launches.open("a") as listed:
    listed.write(sys.argv[sys.argv.index("--port") + 1] + "\\n")
if len(launches.read_text().split()) <= {losing}:
    sys.exit({words!r})
class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
port = int(launches.read_text().split()[-1])
http.server.HTTPServer(("127.0.0.1", port), Healthy).serve_forever()
"""
TAKEN = "[Errno 98] error while attempting to bind on address: Address already in use"


class Launcher:
    """Makes servers that end at once in their first ``losing`` launches."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def server(self, losing: int, words: str = TAKEN, port: int | None = None) -> SGLangServer:
        python = self.folder / "fake" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(
            PROGRAM.format(
                python=sys.executable,
                launches=str(self.folder / "launches"),
                losing=losing,
                words=words,
            )
        )
        python.chmod(0o755)
        return SGLangServer("fake", self.folder / "model", self.folder / "log", port=port)

    def ports(self) -> list[int]:
        return [int(port) for port in (self.folder / "launches").read_text().split()]


@pytest.fixture
def launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Launcher:
    monkeypatch.setenv("HSSTORE_SGLANG", str(tmp_path))
    return Launcher(tmp_path)


def test_a_port_that_was_lost_is_replaced_by_another(launcher: Launcher) -> None:
    with launcher.server(losing=1) as server:
        lost, bound = launcher.ports()
        assert server.url == f"http://127.0.0.1:{bound}"
        assert lost != bound


def test_a_port_is_lost_only_so_often(launcher: Launcher) -> None:
    with pytest.raises(RuntimeError, match="Address already in use"):
        launcher.server(losing=100).start()
    assert len(launcher.ports()) == LAUNCHES


@pytest.mark.parametrize(("words", "port"), [("no such model", None), (TAKEN, 40001)])
def test_nothing_else_is_tried_again(launcher: Launcher, words: str, port: int | None) -> None:
    with pytest.raises(RuntimeError, match="did not come up"):
        launcher.server(100, words, port).start()
    assert len(launcher.ports()) == 1


def test_a_restart_keeps_the_port_that_clients_know(launcher: Launcher) -> None:
    with launcher.server(losing=0) as server:
        server.kill()
        (launcher.folder / "launches").write_text("")
        python = launcher.folder / "fake" / "bin" / "python"
        python.write_text(python.read_text().replace("<= 0", "<= 1"))
        with pytest.raises(RuntimeError, match="Address already in use"):
            server.start()
        assert launcher.ports() == [server.port]
