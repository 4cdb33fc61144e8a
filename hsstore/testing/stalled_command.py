"""Run ``hsstore`` as a shell does, on storage that does not answer one call for a while.

``python -m hsstore.testing.stalled_command CALL SECONDS ARGUMENT...``: the first ``os.CALL`` of the
work that the seam makes takes so many seconds more.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from hsstore.storage.filesystem import Filesystem
from hsstore.storage.in_flight import Operation
from hsstore_cli.supervised import main


def stalling(name: str, seconds: float) -> Callable[..., Any]:
    """The same call of os, the first time that the seam makes it ``seconds`` later."""
    waits, call = iter([seconds]), getattr(os, name)

    def later(*arguments: object, **named: object) -> object:
        if any(operation.name == name for operation in announced()):
            time.sleep(next(waits, 0))
        return call(*arguments, **named)

    return later


def announced() -> list[Operation]:
    """What the seam has under way."""
    return list(Filesystem.in_flight.operations()) if Filesystem.in_flight else []


if __name__ == "__main__":
    name, length, *typed = sys.argv[1:]
    late = stalling(name, float(length))
    # The supervisor's own calls are as fast as ever.
    os.register_at_fork(after_in_child=lambda: setattr(os, name, late))
    sys.argv[1:] = typed
    sys.exit(main())
