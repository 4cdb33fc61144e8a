"""Every call of the seam that may wait for the storage is announced while it is on its way."""

import ast
import errno
import inspect
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hsstore.storage import filesystem
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.in_flight import SLOTS, InFlight

# What os does without asking the storage.
SILENT = {"strerror", "fspath", "fsencode", "fsdecode"}


@pytest.fixture
def in_flight(monkeypatch: pytest.MonkeyPatch) -> InFlight:
    table = InFlight()
    monkeypatch.setattr(Filesystem, "in_flight", table)
    return table


class Recorded(InFlight):
    """Remembers what was announced."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def begin(self, name: str, path: Path | str) -> int | None:
        self.names.append(name)
        return super().begin(name, path)


def with_descriptor(use: Callable[[int, Path], object]) -> Callable[[Path], object]:
    def call(folder: Path) -> None:
        path = folder / "file"
        fd = os.open(path, os.O_RDWR)
        use(fd, path)
        if use is not CLOSING:
            os.close(fd)

    return call


def CLOSING(fd: int, path: Path) -> None:  # noqa: ARG001, N802 - told from the others by identity
    LOCAL.close(fd)


def opening(folder: Path) -> None:
    os.close(LOCAL.open(folder / "file"))


def opened(folder: Path) -> None:
    with LOCAL.opened(folder / "file"):
        pass


# A call of each public method, and what it must have announced.
METHODS: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "read": (lambda f: LOCAL.read(f / "file"), {"open", "read", "close"}),
    "publish": (lambda f: LOCAL.publish(f / "new", b"x"), {"pwrite", "fsync", "link", "unlink"}),
    "replace": (lambda f: LOCAL.replace(f / "file", b"x"), {"pwrite", "fsync", "rename"}),
    "write_new": (lambda f: LOCAL.write_new(f / "new", b"x"), {"open", "pwrite", "fsync"}),
    "open": (opening, {"open"}),
    "close": (with_descriptor(CLOSING), {"close"}),
    "opened": (opened, {"open", "close"}),
    "write_at": (with_descriptor(lambda fd, p: LOCAL.write_at(fd, b"x", 0, p)), {"pwrite"}),
    "read_at": (with_descriptor(lambda fd, p: LOCAL.read_at(fd, bytearray(1), 0, p)), {"preadv"}),
    "truncate": (with_descriptor(lambda fd, p: LOCAL.truncate(fd, 0, p)), {"ftruncate"}),
    "reserve": (with_descriptor(lambda fd, p: LOCAL.reserve(fd, 0, 1, p)), {"fallocate"}),
    "make_hole": (with_descriptor(lambda fd, p: LOCAL.make_hole(fd, 0, 1, p)), {"fallocate"}),
    "size": (with_descriptor(lambda fd, _: LOCAL.size(fd)), {"fstat"}),
    "sync_data": (with_descriptor(LOCAL.sync_data), {"fdatasync"}),
    "sync": (with_descriptor(LOCAL.sync), {"fsync"}),
    "forget_cached": (with_descriptor(lambda fd, _: LOCAL.forget_cached(fd)), {"fadvise"}),
    "start_writing": (with_descriptor(lambda fd, _: LOCAL.start_writing(fd, 0, 1)), {"fadvise"}),
    "sync_folder": (LOCAL.sync_folder, {"open", "fsync", "close"}),
    "make_folder": (lambda f: LOCAL.make_folder(f / "new"), {"mkdir", "fsync"}),
    "make_folders": (lambda f: LOCAL.make_folders(f / "a/b", below=f), {"mkdir", "fsync"}),
    "link": (lambda f: LOCAL.link(f / "file", f / "new"), {"link"}),
    "rename": (lambda f: LOCAL.rename(f / "file", f / "new"), {"rename"}),
    "unlink": (lambda f: LOCAL.unlink(f / "file"), {"unlink"}),
    "remove_folder": (lambda f: LOCAL.remove_folder(f / "folder"), {"listdir", "rmdir"}),
    "names": (LOCAL.names, {"listdir"}),
    "status": (lambda f: LOCAL.status(f / "file"), {"lstat"}),
    "touch": (lambda f: LOCAL.touch(f / "file"), {"utime"}),
    "exists": (lambda f: LOCAL.exists(f / "file"), {"lstat"}),
}


def public_methods() -> set[str]:
    return {name for name in vars(Filesystem) if name[0] != "_" and callable(getattr(LOCAL, name))}


def test_no_method_is_forgotten_here() -> None:
    assert METHODS.keys() == public_methods()


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_waits_for_is_announced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    (tmp_path / "file").write_bytes(b"data")
    (tmp_path / "folder").mkdir()
    table = Recorded()
    monkeypatch.setattr(Filesystem, "in_flight", table)
    call, expected = METHODS[method]
    call(tmp_path)
    assert expected <= set(table.names)
    assert list(table.operations()) == []


def calls_outside(tree: ast.AST, *, announced: bool = False) -> Iterator[str]:
    """The calls of os, or of a path, that no ``with _Call`` is around."""
    if isinstance(tree, ast.With):
        announced = announced or "_Call(" in ast.unparse(tree.items[0].context_expr)
    if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Attribute) and not announced:
        owner, name = ast.unparse(tree.func.value), tree.func.attr
        asks = owner in {"os", "os.path"} or (hasattr(Path, name) and owner == "path")
        if asks and name not in SILENT | {"is_relative_to"}:
            yield f"line {tree.lineno}: {owner}.{name}"
    for child in ast.iter_child_nodes(tree):
        yield from calls_outside(child, announced=announced)


def test_no_call_of_the_seam_is_made_in_silence() -> None:
    assert list(calls_outside(ast.parse(inspect.getsource(filesystem)))) == []


def test_a_silent_call_would_be_seen() -> None:
    source = inspect.getsource(filesystem).replace('with _Call("fsync", path):', "if path:")
    assert [found.split()[-1] for found in calls_outside(ast.parse(source))] == ["os.fsync"]


def test_a_call_is_seen_until_it_returns(tmp_path: Path, in_flight: InFlight) -> None:
    pipe = tmp_path / "pipe é"
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDWR)  # so that reading waits
    thread = threading.Thread(target=LOCAL._read_piece, args=(fd, pipe), daemon=True)
    thread.start()
    while not (seen := list(in_flight.operations())):
        time.sleep(0.01)
    assert [(o.name, o.path, o.thread) for o in seen] == [("read", str(pipe), thread.native_id)]
    os.write(fd, b"x")
    thread.join(60)
    assert list(in_flight.operations()) == []
    os.close(fd)


def test_another_process_sees_it(in_flight: InFlight) -> None:
    ready, say = os.pipe()
    wait, go = os.pipe()
    child = os.fork()
    if not child:
        in_flight.begin("fsync", Path("/a b\nc"))
        os.write(say, b"x")
        os.read(wait, 1)
        os._exit(0)
    os.read(ready, 1)
    assert [(o.name, o.path) for o in in_flight.operations()] == [("fsync", "/a b\nc")]
    os.write(go, b"x")
    assert os.waitpid(child, 0)[1] == 0
    for fd in (ready, say, wait, go):
        os.close(fd)


def test_more_calls_than_slots_do_no_harm() -> None:
    table = InFlight()
    slots = [table.begin("read", f"/{n}") for n in range(SLOTS + 2)]
    assert slots[SLOTS:] == [None, None]
    assert len(set(slots[:SLOTS])) == SLOTS == len(list(table.operations()))
    for slot in slots:
        table.end(slot)
    assert list(table.operations()) == []
    assert table.begin("read", "/") is not None


def test_a_path_of_any_length_and_bytes_has_room() -> None:
    table = InFlight()
    path = Path(os.fsdecode(b"/\xff" * 2048))
    table.begin("open", path)
    [operation] = table.operations()
    assert operation.path == str(path)
    table.begin("open", "x" * 100_000)
    assert len(list(table.operations())) == 2


def test_a_call_that_fails_is_over(tmp_path: Path, in_flight: InFlight) -> None:
    with pytest.raises(FileNotFoundError) as refused:
        LOCAL.status(tmp_path / "none")
    assert refused.value.errno == errno.ENOENT
    assert list(in_flight.operations()) == []
