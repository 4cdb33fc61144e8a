"""Run ``hsstore`` as a shell does, on storage that does not answer one call for a while.

``python -m hsstore.testing.stalled_command CALL SECONDS ARGUMENT...``: the first ``os.CALL`` of the
work takes so many seconds more.
"""

import os
import sys
import time
from collections.abc import Callable
from typing import Any

from hsstore_cli.supervised import main


def stalling(call: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    """The same call, the first time ``seconds`` later."""
    waits = iter([seconds])

    def later(*arguments: object, **named: object) -> object:
        time.sleep(next(waits, 0))
        return call(*arguments, **named)

    return later


if __name__ == "__main__":
    name, length, *typed = sys.argv[1:]
    setattr(os, name, stalling(getattr(os, name), float(length)))
    sys.argv[1:] = typed
    sys.exit(main())
