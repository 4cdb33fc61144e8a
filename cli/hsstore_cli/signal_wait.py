"""Waiting for a signal, for so long at most, and for nothing else."""

import ctypes
import errno
import os
from collections.abc import Iterable

_LIBC = ctypes.CDLL(None, use_errno=True)
# What glibc and musl give a sigset_t.
_SET_BYTES = 128


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class SignalWait:
    """Takes the signals of one set, which are to be blocked."""

    def __init__(self, signals: Iterable[int]) -> None:
        self._set = ctypes.create_string_buffer(_SET_BYTES)
        for number in signals:
            _LIBC.sigaddset(self._set, number)

    def received(self, seconds: float) -> int | None:
        """The number of the next signal; None where none came for so long. Raises OSError.

        signal.sigtimedwait is no way to ask: where this process was stopped (SIGSTOP) past the time
        to wait, Python 3.11 makes up a signal that nobody sent.
        """
        whole = int(seconds)
        limit = _Timespec(whole, int((seconds - whole) * 1e9))
        while (number := _LIBC.sigtimedwait(self._set, None, ctypes.byref(limit))) < 0:
            code = ctypes.get_errno()
            if code == errno.EAGAIN:
                return None
            if code != errno.EINTR:
                raise OSError(code, os.strerror(code))
        return int(number)
