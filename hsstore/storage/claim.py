"""Who is working on a shard: claims with a heartbeat, and when they may be taken over.

A claim is a published document ``claim/<shard>-<turn>.json``; the highest turn owns the shard. Only
one writer can publish a given turn, so a takeover has exactly one winner. The claim's mtime is its
heartbeat and is compared with that of a file just touched in the same folder, never with a clock.
"""

import contextlib
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from hsstore.errors import ClaimedByAnother, InvalidDocument, StoreError, UnsupportedFormat
from hsstore.model import keys
from hsstore.model.document import FORMAT, hexadecimal, integer, seal, text, unseal, validate
from hsstore.storage.filesystem import NO_PLAIN_FILE, Filesystem

KIND = "claim"
HEARTBEAT_SECONDS = 10.0
STALE_SECONDS = 60.0

# Writers of this process that hold a claim; one that could not remove its claim is not among them.
_HELD: set[str] = set()


@dataclass(frozen=True, slots=True)
class Holder:
    """The process behind a claim: enough to prove that it is gone, nothing that names a machine.

    A pid means something only in one boot and one pid namespace; ``started`` (clock ticks since
    boot) tells a pid from its later reuse.
    """

    writer: str
    boot: str
    pid_namespace: str
    pid: int
    started: int

    @classmethod
    def this_process(cls, writer: str) -> Self:
        """The holder that this process would be."""
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
        started = _started(os.getpid())
        return cls(writer, boot, namespace, os.getpid(), started or 0)

    def provably_dead(self) -> bool:
        """Whether the process is certainly gone; False wherever that cannot be seen from here."""
        here = Holder.this_process(self.writer)
        if self == here:
            return self.writer not in _HELD
        if (self.boot, self.pid_namespace) != (here.boot, here.pid_namespace):
            return False
        started = _started(self.pid)
        if started is None:
            return not _exists(self.pid)
        return started != self.started or _finished(self.pid)


class Claim:
    """The right to write one shard, kept alive by a heartbeat until released.

    ``document`` is the claim's sealed document; a staging folder keeps a copy while its file is
    open, so that its holder can be judged without the claim.
    """

    def __init__(
        self, filesystem: Filesystem, path: Path, shard: int, writer: str, document: bytes
    ) -> None:
        self.shard = shard
        self.writer = writer
        self.document = document
        self._filesystem = filesystem
        self._path = path
        self._inode = filesystem.status(path).st_ino
        self._released = threading.Event()
        self._heart = threading.Thread(target=self._beat, name=f"claim-{shard}", daemon=True)
        self._heart.start()

    def verify(self) -> None:
        """ClaimedByAnother unless this is still the highest turn, and ours."""
        turns = _turns(self._filesystem, self._path.parent, self.shard)
        if turns and turns[-1] == self._path.name:
            holder = read_holder(self._filesystem, self._path)
            if holder is not None and holder.writer == self.writer:
                return
        raise ClaimedByAnother(
            f"shard {self.shard} was taken over by another writer",
            remedy="run the same command again once that one is done",
        )

    def release(self) -> None:
        """Give the shard up; what is staged stays for whoever claims it next."""
        _HELD.discard(self.writer)
        self._released.set()
        self._heart.join()
        with contextlib.suppress(ClaimedByAnother, OSError):
            self.verify()
            self._filesystem.unlink(self._path)

    def _beat(self) -> None:
        while not self._released.wait(HEARTBEAT_SECONDS):
            # A lost claim is found by verify() before anything is committed; its name may be
            # another's by now, whose heartbeat is not ours to give.
            with contextlib.suppress(OSError):
                if self._filesystem.status(self._path).st_ino == self._inode:
                    self._filesystem.touch(self._path)


def acquire(filesystem: Filesystem, root: Path, store: str, shard: int, writer: str) -> Claim:
    """Claim a shard for ``writer``; ClaimedByAnother while a live or possibly live one holds it.

    StoreError where a folder bears the name of a claim: it may hold what nobody is to remove.
    """
    folder, holder = root / keys.CLAIM, Holder.this_process(writer)
    turns = _turns(filesystem, folder, shard)
    _refuse_folders(filesystem, folder, turns)
    turn = 0
    if turns:
        turn = _turn(turns[-1]) + 1
        _may_take_over(filesystem, folder / turns[-1], shard)
    path = root / keys.claim(shard, turn)
    own = {name: getattr(holder, name) for name in Holder.__slots__}
    document = seal({"format": FORMAT, "kind": KIND, "store": store, "shard": shard, **own})
    # Before the claim can be seen: rivals on other threads of this process must find it alive.
    _HELD.add(writer)
    try:
        filesystem.publish(path, document)
        _clear(filesystem, folder, shard, turns)
        highest = _turns(filesystem, folder, shard)[-1:]
    except OSError as error:
        _withdraw(filesystem, path, writer)
        if isinstance(error, FileExistsError | FileNotFoundError):
            raise _held(shard, "by a writer that came first") from None
        raise
    except BaseException:
        _HELD.discard(writer)
        raise
    # Since the first listing, a rival may have taken this turn and given it up, and another have
    # taken the next.
    if highest != [path.name]:
        _withdraw(filesystem, path, writer)
        raise _held(shard, "by a writer that came first")
    try:
        return Claim(filesystem, path, shard, writer, document)
    except FileNotFoundError:
        _HELD.discard(writer)
        raise _held(shard, "by a writer that took it over at once") from None
    except OSError:
        # Else this process would believe itself at work on the shard.
        _withdraw(filesystem, path, writer)
        raise


@contextlib.contextmanager
def claimed(filesystem: Filesystem, root: Path, store: str, shard: int) -> Iterator[Claim]:
    """A claim for the length of a with block, under a new writer id.

    ClaimedByAnother also where a file is gone in the block because a rival has taken over.
    """
    claim = acquire(filesystem, root, store, shard, secrets.token_hex(8))
    try:
        with naming_a_rival(claim):
            yield claim
    finally:
        claim.release()


@contextlib.contextmanager
def naming_a_rival(claim: Claim) -> Iterator[None]:
    """ClaimedByAnother for a file that is gone because a rival has renamed our staging folder."""
    try:
        yield
    except FileNotFoundError:
        claim.verify()
        raise


def _clear(filesystem: Filesystem, folder: Path, shard: int, turns: list[str]) -> None:
    """Remove lower turns, and what writers that lost a turn or died trying left of it."""
    temporary = [name for name in filesystem.names(folder) if name.startswith(_temporary(shard))]
    for name in (*turns, *temporary):
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(folder / name)


def _withdraw(filesystem: Filesystem, path: Path, writer: str) -> None:
    _HELD.discard(writer)
    with contextlib.suppress(OSError):
        holder = read_holder(filesystem, path)
        if holder is not None and holder.writer == writer:
            filesystem.unlink(path)


def _temporary(shard: int) -> str:
    """How the names of a shard's temporary files in claim/ begin."""
    return f".{shard:08d}-"


def _refuse_folders(filesystem: Filesystem, folder: Path, turns: list[str]) -> None:
    for name in turns:
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(filesystem.status(folder / name).st_mode):
                raise StoreError(
                    "a folder is in place of this claim",
                    place=str(folder / name),
                    remedy="move it away, then run the same command again",
                )


def _may_take_over(filesystem: Filesystem, current: Path, shard: int) -> None:
    """ClaimedByAnother unless a claim's holder is provably dead, or its heartbeat stale."""
    holder = read_holder(filesystem, current)
    if holder is not None and holder.provably_dead():
        return
    age = _age_seconds(filesystem, current, shard)
    if age <= STALE_SECONDS:
        raise _held(shard, f"by a writer whose heartbeat is {age:.0f} s old")


def _age_seconds(filesystem: Filesystem, path: Path, shard: int) -> float:
    probe = path.parent / f"{_temporary(shard)}now.{secrets.token_hex(4)}"
    filesystem.write_new(probe, b"")
    try:
        filesystem.touch(probe)
        now = filesystem.status(probe).st_mtime
        return now - filesystem.status(path).st_mtime
    except FileNotFoundError:
        return 0.0
    finally:
        with contextlib.suppress(FileNotFoundError):
            filesystem.unlink(probe)


def is_abandoned(filesystem: Filesystem, path: Path) -> bool:
    """Whether the holder of a claim is provably dead; True for one that is gone by now."""
    holder = read_holder(filesystem, path)
    return not filesystem.exists(path) if holder is None else holder.provably_dead()


def _held(shard: int, how: str) -> ClaimedByAnother:
    return ClaimedByAnother(
        f"shard {shard} is held {how}",
        remedy="wait for it to finish; a dead writer's shard is taken over by itself",
    )


def _turns(filesystem: Filesystem, folder: Path, shard: int) -> list[str]:
    named = ((name, keys.read_claim(name)) for name in filesystem.names(folder))
    return [name for name, claim in named if claim is not None and claim[0] == shard]


def _turn(name: str) -> int:
    claim = keys.read_claim(name)
    return claim[1] if claim else 0


def read_holder(filesystem: Filesystem, path: Path) -> Holder | None:
    """The holder in a claim document; None where there is no whole one, or no file. OSError."""
    try:
        document = unseal(filesystem.read(path), KIND, place=str(path))
        validate(document, FIELDS, place=str(path))
    except (InvalidDocument, UnsupportedFormat, FileNotFoundError):
        return None
    except OSError as error:
        # No writer makes links or folders: what there is of a claim is only its name.
        if error.errno in NO_PLAIN_FILE:
            return None
        raise
    return Holder(**{name: document[name] for name in Holder.__slots__})


def _started(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (field 22 of proc(5)'s stat)."""
    try:
        told = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(told.rpartition(")")[2].split()[19])


def _finished(pid: int) -> bool:
    """Whether a process only waits to be reaped; a thread stuck in a write keeps it unfinished."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        threads = list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state in "ZX" and len(threads) <= 1


def _exists(pid: int) -> bool:
    """Whether a process exists that /proc does not show: it may hide those of other users."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


FIELDS: dict[str, Any] = {
    "store": hexadecimal(32),
    "shard": integer(),
    "writer": hexadecimal(16),
    "boot": text(),
    "pid_namespace": text(),
    "pid": integer(1),
    "started": integer(),
}
