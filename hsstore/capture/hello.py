"""The hello file: what a scheduler process says about itself before a client trusts it."""

import contextlib
import fcntl
import json
import os
import socket
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hsstore.capture.settings import Layer
from hsstore.capture.spool_format import FORMAT, HELLO


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The members of a hello file; what a refusing server does not know is None.

    ``layers`` are in our naming and in stored order, ``engine_layers`` the ids given to SGLang;
    ``norm`` is "post", since the final state is after the final norm. ``checked`` turns true once
    a forward pass gave the right number of states of the right shape. ``refused`` is one line.
    """

    boot: str
    rank: int
    ranks: int
    release: str
    plugin: str
    pid: int
    host: str
    model_path: str | None = None
    model_type: str | None = None
    architecture: str | None = None
    layers: tuple[Layer, ...] | None = None
    engine_layers: tuple[int, ...] | None = None
    dtype: str | None = None
    hidden_size: int | None = None
    norm: str | None = None
    spool_bytes: int | None = None
    checked: bool = False
    refused: str | None = None

    @property
    def name(self) -> str:
        """The name of its file."""
        return f"hello.{self.boot}.{self.rank}.json"

    def refusing(self, reason: str) -> "Hello":
        """The same hello, saying why the server captures nothing."""
        return replace(self, refused=" ".join(reason.split()))

    def encode(self) -> bytes:
        """The document: one JSON object with sorted keys."""
        document = {"format": FORMAT, "kind": "hsstore-spool", **asdict(self)}
        return json.dumps(document, sort_keys=True, indent=1).encode() + b"\n"


class HelloFile:
    """The hello file of this process in a spool folder, locked for as long as the process lives."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path: Path | None = None
        self._descriptor = -1

    def publish(self, hello: Hello) -> None:
        """Put a hello in place of the one before; OSError where the folder does not take it."""
        path = self.folder / hello.name
        new = self.folder / f".{hello.name}.{os.getpid()}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        # A filesystem without locks only keeps the hellos of dead servers for longer.
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            os.write(descriptor, hello.encode())
            new.rename(path)
        except OSError:
            os.close(descriptor)
            new.unlink(missing_ok=True)
            raise
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = descriptor
        self.path = path


def remove_dead_hellos(folder: Path) -> list[str]:
    """Remove hello files of this host whose process is gone, and return their names."""
    names = [path.name for path in folder.iterdir() if HELLO.fullmatch(path.name)]
    return [name for name in names if _remove(folder, name)]


def _remove(folder: Path, name: str) -> bool:
    try:
        descriptor = os.open(folder / name, os.O_RDWR | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        hello = json.loads(os.read(descriptor, 1 << 20))
        if not isinstance(hello, dict) or hello.get("host") != socket.gethostname():
            return False
        # Locks say more than process ids, which are used again and differ between containers.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A process that publishes anew renames over its file, and only then lets go of the old one.
        if not os.path.samestat(os.fstat(descriptor), (folder / name).lstat()):
            return False
        (folder / name).unlink()
    except (OSError, ValueError):
        return False
    finally:
        os.close(descriptor)
    return True
