"""Standard streams: always there, whatever the caller left open, and let go of when asked."""

import os
import sys

STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def ensure() -> None:
    """Open /dev/null in the place of each of the three that the caller has closed.

    Otherwise the next file that is opened would have its number: a library that writes its warnings
    to file 2 would write them into a store.
    """
    for number, (name, mode) in enumerate(STREAMS):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, and so this one.
            os.open(os.devnull, os.O_RDWR)
            stream = os.fdopen(number, mode, encoding="utf-8", errors="replace", closefd=False)
            setattr(sys, name, stream)


def let_go() -> None:
    """Read and write nothing any more, before a wait that may never end.

    Whoever reads a pipe waits until every process that has it open has closed it, the killed one
    that waits for the storage included. Raises OSError where no file can be opened.
    """
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
