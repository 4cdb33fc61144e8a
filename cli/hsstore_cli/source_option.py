"""What computes hidden states: ``--source``, ``--server`` and all that belongs to them."""

import contextlib
import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hsstore.model.source import HiddenStateSource
from hsstore_cli.options import finite

if TYPE_CHECKING:
    from hsstore.extraction.sglang.source import SGLangSource
    from hsstore.storage.store import Store

ACCEPTED = "transformers:PATH, where PATH is a model folder or a GGUF file"
SERVERS_ONLY = ("spool", "concurrency", "max_attempts", "reference")


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What computes, as it was typed: ``source``, or ``servers`` with what belongs to them.

    ``max_wait`` is in seconds. None is whatever the source takes by default.
    """

    source: str | None = None
    servers: tuple[str, ...] = ()
    spool: Path | None = None
    concurrency: int | None = None
    batch_tokens: int | None = None
    max_attempts: int | None = None
    max_wait: float | None = None
    reference: str | None = None

    @property
    def given(self) -> bool:
        """Whether there is something to compute with."""
        return self.source is not None or bool(self.servers)

    def require(self) -> None:
        """click.UsageError where there is nothing to compute with."""
        if not self.given:
            raise click.UsageError(
                f"Nothing to compute with: give --source {ACCEPTED}, or --server URL."
            )

    def refuse_contradiction(self) -> None:
        """click.UsageError where what was typed makes no sense together."""
        if self.source is not None:
            source_place(self.source)
            if self.servers:
                raise click.UsageError("--source and --server exclude each other.")
        self.refuse_without_servers(*SERVERS_ONLY)

    def refuse_without_servers(self, *names: str) -> None:
        """click.UsageError where one of these options was typed and no server was."""
        for name in names:
            if getattr(self, name) is not None and not self.servers:
                raise click.UsageError(f"{_typed(name)} is for a --server.")

    def words(self) -> list[tuple[str, str]]:
        """What was typed, as pairs of an option and its value."""
        single = [field.name for field in fields(self) if field.name != "servers"]
        told = [("--server", url) for url in self.servers]
        told += [(_typed(name), f"{getattr(self, name)}") for name in single if self._has(name)]
        return told

    def _has(self, name: str) -> bool:
        return getattr(self, name) is not None


def source_options(
    command: Callable[..., Any], *, without: Collection[str] = ()
) -> Callable[..., Any]:
    """Give a command the options of a source; it gets them as one ``options: SourceOptions``.

    Those named in ``without`` it does not have.
    """

    @functools.wraps(command)
    def with_options(**given: Any) -> Any:  # noqa: ANN401 - a command's options are of any kind
        names = [field.name for field in fields(SourceOptions) if field.name not in without]
        options = SourceOptions(**{name: given.pop(name) for name in names})
        options.refuse_contradiction()
        return command(**given, options=options)

    for name, option in reversed(OPTIONS.items()):
        with_options = with_options if name in without else option(with_options)
    return with_options


def open_source(
    options: SourceOptions,
    store: "Store",
    note: Callable[[str], None],
    *,
    auditing: bool = False,
) -> HiddenStateSource:
    """The source that was asked for, opened for a store; ``note`` is told what it finds.

    One for ``auditing`` computes a sample at a time and writes nothing into the store.
    click.UsageError where none was; SourceError, or MalformedInput, when it cannot serve the store.
    """
    options.require()
    if options.servers:
        return _open_servers(options, store, note, auditing=auditing)
    place = source_place(options.source)
    # Many seconds of silence otherwise, before progress has anything to count.
    note(f"loading {place}")
    # Costs seconds to import, and is wanted only here.
    from hsstore.extraction.transformers_source import TransformersSource  # noqa: PLC0415

    return TransformersSource(place, store.identity, batch_tokens=options.batch_tokens)


def refuse_unfit(options: SourceOptions, store: "Store") -> None:
    """MalformedInput where servers cannot give the store's layers in the way that was asked for."""
    if options.servers:
        # As above.
        from hsstore.extraction.sglang.transport import choose_transport  # noqa: PLC0415

        choose_transport(store.identity.capture, spool=options.spool is not None)


def _open_servers(
    options: SourceOptions, store: "Store", note: Callable[[str], None], *, auditing: bool
) -> HiddenStateSource:
    # As above.
    from hsstore.extraction.sglang.calibration import make_calibrator  # noqa: PLC0415
    from hsstore.extraction.sglang.source import ClientOptions, SGLangSource  # noqa: PLC0415

    told = {
        "concurrency": 1 if auditing else options.concurrency,
        "batch_tokens": options.batch_tokens,
        "max_attempts": options.max_attempts,
        "max_wait_seconds": options.max_wait,
    }
    given: dict[str, Any] = {name: value for name, value in told.items() if value is not None}
    by_spool = options.spool is not None
    source = SGLangSource(
        options.servers,
        store.identity,
        spool=options.spool,
        options=ClientOptions(**given),
        calibrate=make_calibrator(
            store, options.reference, note, spool=by_spool, recording=not auditing
        ),
    )
    if auditing:
        return source
    with contextlib.ExitStack() as unless_ready:
        unless_ready.callback(source.close)
        _foresee(source, store, note)
        unless_ready.pop_all()
    return source


def _foresee(source: "SGLangSource", store: "Store", note: Callable[[str], None]) -> None:
    """Hours before a sample's turn, say that it will not be taken, or refuse."""
    table, committed = store.samples, store.committed()
    shards = [shard for shard in range(store.plan.shards) if shard not in committed]
    lengths = [int(n) for shard in shards for n in table.length[table.shard_samples(shard)]]
    if (told := source.foresee(lengths)) is not None:
        note(told)


def source_place(text: str | None) -> str:
    """The path in ``transformers:PATH``; click.UsageError for any other text, or none."""
    scheme, colon, place = (text or "").partition(":")
    if scheme != "transformers" or not colon or not place:
        raise click.UsageError(f"{text!r} is no source. Accepted: {ACCEPTED}.")
    return place


def _typed(name: str) -> str:
    return f"--{name.replace('_', '-')}"


OPTIONS = {
    "source": click.option(
        "--source",
        metavar="transformers:PATH",
        help="What computes the states: a model folder or GGUF file, run in this process.",
    ),
    "servers": click.option(
        "--server",
        "servers",
        metavar="URL",
        multiple=True,
        help="An SGLang server that computes them, launched as `hsstore server-flags` says; may be "
        "given several times. Its API key is taken from the environment variable HSSTORE_API_KEY.",
    ),
    "spool": click.option(
        "--spool",
        metavar="DIR",
        type=click.Path(path_type=Path),
        help="Where the servers' capture plugin writes states, as this machine sees it. Without: "
        "states by JSON.",
    ),
    "concurrency": click.option(
        "--concurrency",
        type=click.IntRange(min=1),
        metavar="N",
        help="The most requests that a server is given at once.  [default: by its limits]",
    ),
    "batch_tokens": click.option(
        "--batch-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="How many tokens are computed at once: in one forward pass, padding included, or on "
        "their way to servers and back.",
    ),
    "max_attempts": click.option(
        "--max-attempts",
        type=click.IntRange(min=1),
        metavar="N",
        help="How often a server may fail a sample before it is set aside.  [default: 3]",
    ),
    "max_wait": click.option(
        "--max-wait",
        type=click.FloatRange(min=0, min_open=True),
        callback=finite,
        metavar="SECONDS",
        help="How long to wait while nothing can go on: while no server can be reached, say.  "
        "[default: 600]",
    ),
    "reference": click.option(
        "--reference",
        metavar="MODEL",
        help="The model's folder or GGUF file, to prove on a short prompt which layers a server "
        "returns.",
    ),
}
