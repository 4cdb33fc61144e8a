"""What /proc tells of the threads of another process, without asking that process.

Everything here is None or empty where /proc is not mounted, hides other processes or does not know.
"""

import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DISK_SLEEP = "D"
SLEEPING = frozenset({DISK_SLEEP, "S"})

# Where storage makes a thread wait; the others show as numbers.
_X86_64 = {
    0: "read", 1: "write", 2: "open", 3: "close", 4: "stat", 5: "fstat", 6: "lstat", 17: "pread64",
    18: "pwrite64", 19: "readv", 20: "writev", 40: "sendfile", 73: "flock", 74: "fsync",
    75: "fdatasync", 76: "truncate", 77: "ftruncate", 78: "getdents", 80: "chdir", 82: "rename",
    83: "mkdir", 84: "rmdir", 86: "link", 87: "unlink", 89: "readlink", 137: "statfs",
    138: "fstatfs", 162: "sync", 217: "getdents64", 221: "fadvise64", 257: "openat",
    258: "mkdirat", 262: "newfstatat", 263: "unlinkat", 264: "renameat", 265: "linkat",
    280: "utimensat", 285: "fallocate", 295: "preadv", 296: "pwritev", 306: "syncfs",
    316: "renameat2", 326: "copy_file_range", 327: "preadv2", 328: "pwritev2", 332: "statx",
}  # fmt: skip
_OF_A_DESCRIPTOR = frozenset(
    {
        *("read", "write", "fstat", "pread64", "pwrite64", "readv", "writev", "flock", "fsync"),
        *("fdatasync", "ftruncate", "getdents64", "fadvise64", "fallocate", "preadv", "pwritev"),
        *("preadv2", "pwritev2", "fstatfs", "syncfs"),
    }
)


@dataclass(frozen=True, slots=True)
class Thread:
    """``state`` as in proc(5); ``switches`` says how often it has given up its processor."""

    number: int
    state: str
    switches: int


@dataclass(frozen=True, slots=True)
class Call:
    """The system call that a thread is in, and the file that it is about, where it says so."""

    name: str
    path: str | None


def threads(process: int) -> Iterator[Thread]:
    """The threads of a process."""
    try:
        numbers = os.listdir(f"/proc/{process}/task")  # noqa: PTH208 - strings
    except OSError:
        return
    for number in map(int, numbers):
        if (found := thread(process, number)) is not None:
            yield found


def thread(process: int, number: int) -> Thread | None:
    """One thread of a process."""
    text = _read(process, number, "status")
    if text is None:
        return None
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    kinds = ("voluntary_ctxt_switches", "nonvoluntary_ctxt_switches")
    return Thread(number, fields["State"][0], sum(int(fields.get(kind, 0)) for kind in kinds))


def wait_channel(process: int, number: int) -> str | None:
    """The function of the kernel in which a thread sleeps."""
    text = _read(process, number, "wchan")
    return None if text in {None, "", "0"} else text


def call(process: int, number: int) -> Call | None:
    """The system call that a thread is in."""
    words = (_read(process, number, "syscall") or "running").split()
    if words[0] == "running":
        return None
    if int(words[0]) < 0:
        return Call("access to mapped memory", None)
    known = _X86_64 if platform.machine() == "x86_64" else {}
    name = known.get(int(words[0]), f"system call {words[0]}")
    descriptor = int(words[1], 16) if name in _OF_A_DESCRIPTOR else None
    return Call(name, None if descriptor is None else open_file(process, descriptor))


def open_file(process: int, descriptor: int) -> str | None:
    """The path of a file that a process has open."""
    return _link(f"/proc/{process}/fd/{descriptor}")


def folder(process: int) -> str | None:
    """The folder that a process is in."""
    return _link(f"/proc/{process}/cwd")


def _read(process: int, number: int, name: str) -> str | None:
    try:
        return Path(f"/proc/{process}/task/{number}/{name}").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None


def _link(path: str) -> str | None:
    """Where a link of /proc leads; this does not touch what it leads to."""
    try:
        return os.readlink(path)  # noqa: PTH115 - a Path would drop what is no path in it
    except OSError:
        return None
