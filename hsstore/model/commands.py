"""The commands that messages tell people to run: quoted, so that pasting them works."""

import shlex
from collections.abc import Sequence

TRANSFORMERS = ("--source", "transformers:PATH")
SERVER = ("--server", "URL")
SPOOL = ("--spool", "DIR")
REPLICA = ("--from", "REPLICA")
"""How a source is typed; PATH, URL, DIR and REPLICA stand for what a store does not know."""


def hsstore(command: str, *arguments: object) -> str:
    """``hsstore COMMAND ..`` as a shell takes it."""
    return shlex.join(["hsstore", command, *map(str, arguments)])


def extract(
    store: object, *, source: Sequence[str] = TRANSFORMERS, shard: int | None = None
) -> str:
    """The command that fills a store, or one of its shards."""
    only = () if shard is None else ("--shards", shard)
    return hsstore("extract", store, *source, *only)


def repair(store: object, *options: object, source: Sequence[str] = TRANSFORMERS) -> str:
    """The command that mends a store, and computes with ``source`` what it is committed without."""
    return hsstore("repair", store, *options, *source, "--apply")
