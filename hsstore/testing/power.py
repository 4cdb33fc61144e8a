"""Power cuts on real filesystems: a disk in a file, whose plug can be pulled. For root only.

The shutdown ioctl of ext4 and xfs stops a mounted filesystem at once: nothing that it had not
written reaches the disk any more. Mounting it again replays the journal, as after a reboot.
"""

import contextlib
import fcntl
import gc
import os
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from enum import IntEnum
from pathlib import Path

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN, one number
MEMORY = Path("/dev/shm")  # noqa: S108 - the disk is of memory, so that a cut takes 0.1 s
MEBIBYTES = {"ext4": 64, "xfs": 300}
MKFS = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q", "-f")}

# Somebody's mount namespace may still hold the filesystem as it was before a cut.
MOUNT: dict[str, tuple[str, ...]] = {"ext4": (), "xfs": ("-o", "nouuid")}


class Cut(IntEnum):
    """What still reaches the disk when the power goes."""

    ALL = 0
    LOG = 1
    NOTHING = 2


class Disk:
    """A filesystem of a kind in ``MKFS``, in the file ``image``, mounted at ``mountpoint``.

    Raises OSError and subprocess.CalledProcessError as the system's commands fail.
    """

    def __init__(self, image: Path, mountpoint: Path, *options: str) -> None:
        self.image = image
        self.mountpoint = mountpoint
        self._options = options
        self.mount()

    def mount(self) -> None:
        """Mount, replaying the journal if need be.

        Through a device of its own each time: a mount namespace of somebody else may keep the one
        before alive, and its filesystem shut down.
        """
        device = _run("losetup", "--find", "--show", str(self.image)).strip()
        try:
            _run("/bin/mount", *self._options, device, str(self.mountpoint))
        finally:
            # It goes once it is unmounted.
            _run("losetup", "--detach", device)

    def unmount(self) -> None:
        """Unmount; descriptors that nobody can reach any more are closed first."""
        gc.collect()
        _run("/bin/umount", str(self.mountpoint))

    def remount(self) -> None:
        """What is there is on the disk then, and not in a cache."""
        self.unmount()
        self.mount()

    def sync(self) -> None:
        """Let all that was written reach the disk."""
        _run("/bin/sync", "--file-system", str(self.mountpoint))

    def close(self) -> None:
        """Unmount, even where a failed test left a file open."""
        gc.collect()
        _run("/bin/umount", "--lazy", str(self.mountpoint))

    def cut(self, cut: Cut) -> None:
        """Pull the plug: from here on every operation fails, until ``remount``."""
        fd = os.open(self.mountpoint, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", cut))
        finally:
            os.close(fd)


def why_not(kind: str) -> str | None:
    """Why this process cannot have such a disk; None where it can."""
    if os.geteuid():
        return "mounting a filesystem takes root"
    if shutil.which(MKFS[kind][0], path=_search_path()) is None:
        return f"{MKFS[kind][0]} is not installed"
    return None


@contextlib.contextmanager
def disk(kind: str) -> Iterator[Disk]:
    """A new disk of memory, for the length of a with block."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        image, mountpoint = Path(folder, "image"), Path(folder, "mounted")
        mountpoint.mkdir()
        make_filesystem(image, kind, MEBIBYTES[kind] << 20)
        with contextlib.closing(Disk(image, mountpoint, *MOUNT[kind])) as made:
            yield made


@contextlib.contextmanager
def thin_disk(size_bytes: int, pool_bytes: int) -> Iterator[tuple[Disk, Callable[[int], None]]]:
    """An ext4 disk that promises ``size_bytes`` and has ``pool_bytes`` to put them in.

    Like a thin LUN or an image on a full cluster: writes beyond the pool are accepted, and fail or
    are lost later. With it comes what enlarges the pool to a number of bytes.
    """
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, contextlib.ExitStack() as stack:
        pool, mountpoint = Path(folder, "pool"), Path(folder, "mounted")
        pool.mkdir()
        mountpoint.mkdir()
        _run("/bin/mount", "-t", "tmpfs", "-o", f"size={pool_bytes}", "pool", str(pool))
        stack.callback(_run, "/bin/umount", "--lazy", str(pool))
        make_filesystem(pool / "image", "ext4", size_bytes, "-m", "0")
        disk = stack.enter_context(contextlib.closing(Disk(pool / "image", mountpoint)))

        def enlarge(to_bytes: int) -> None:
            _run("/bin/mount", "-o", f"remount,size={to_bytes}", str(pool))

        yield disk, enlarge


def make_filesystem(image: Path, kind: str, size_bytes: int, *options: str) -> None:
    """Make a sparse file of that size with an empty filesystem in it."""
    with image.open("xb") as file:
        file.truncate(size_bytes)
    _run(*MKFS[kind], *options, str(image))


def _search_path() -> str:
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


def _run(*command: str) -> str:
    environment = {**os.environ, "PATH": _search_path()}
    ran = subprocess.run(  # noqa: S603 - spelled out above
        command, check=True, env=environment, stdout=subprocess.PIPE, text=True
    )
    return ran.stdout
