"""The commands that messages tell people to run: quoted, so that pasting them works."""

import shlex

SOURCE = "transformers:PATH"
"""How a source is typed; PATH stands for the model, which a store does not know the place of."""


def hsstore(command: str, *arguments: object) -> str:
    """``hsstore COMMAND ..`` as a shell takes it."""
    return shlex.join(["hsstore", command, *map(str, arguments)])


def extract(store: object, *, source: str = SOURCE, shard: int | None = None) -> str:
    """The command that fills a store, or one of its shards."""
    only = () if shard is None else ("--shards", shard)
    return hsstore("extract", store, "--source", source, *only)


def repair(store: object, *, source: str = SOURCE) -> str:
    """The command that computes again what a store is committed without."""
    return hsstore("repair", store, "--source", source, "--apply")
