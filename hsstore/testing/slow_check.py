"""``hsstore`` with checks that take their time; to be interrupted and killed.

``python -m hsstore.testing.slow_check LOG SECONDS ARGUMENTS..`` appends the number of every shard
that was examined to LOG, ``SECONDS`` after it began with it, and saves verdicts as often.
"""

import os
import sys
import time
from unittest.mock import patch

from hsstore.integrity import examine, fsck
from hsstore.integrity.scrub import state
from hsstore.integrity.subject import ShardCase, Subject
from hsstore_cli.supervised import main as hsstore


def main(log: str, seconds: str, *arguments: str) -> int:
    """Run the command that the arguments are."""
    told = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def slowly(subject: Subject, shard: int, listing: examine.Listing) -> ShardCase:
        time.sleep(float(seconds))
        case = examine.examine(subject, shard, listing)
        os.write(told, f"{shard}\n".encode())
        return case

    state.SAVE_SECONDS = fsck.TICK_SECONDS = float(seconds)
    sys.argv[1:] = arguments
    with patch.object(fsck, "examine", slowly):
        return hsstore()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
