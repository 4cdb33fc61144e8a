"""``hsstore extract``: fill a store with hidden states."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from hsstore.errors import OUT_OF_SPACE, HsstoreError, OutOfSpace
from hsstore.model import commands
from hsstore_cli import exit_codes, render
from hsstore_cli.json_log import JsonLog
from hsstore_cli.options import (
    Command,
    json_option,
    max_duration_option,
    shards_option,
    size_option,
    store_argument,
)
from hsstore_cli.source_option import SourceOptions, open_source, source_options

if TYPE_CHECKING:
    from hsstore.extraction.account import Account, ExtractionSummary
    from hsstore.extraction.room import SpacePolicy
    from hsstore.model.progress import Progress
    from hsstore.model.source import HiddenStateSource
    from hsstore.storage.status import StoreStatus
    from hsstore.storage.store import Store


@click.command(
    cls=Command,
    examples=[
        "hsstore extract states --source transformers:models/SmolLM2-135M",
        "hsstore extract states --source transformers:model.gguf --shards 0-99",
        "hsstore extract states --server http://127.0.0.1:30000 --spool /dev/shm/spool",
    ],
    exits={
        exit_codes.OK: "every shard asked for is committed, and none of their samples is absent",
        exit_codes.PROBLEMS: "samples of them are absent: the source could not compute them; or a "
        "commit marker cannot be read",
        exit_codes.FAILED: "failed, or another writer holds the shards that are left",
        exit_codes.STOPPED: "stopped by a signal or --max-duration; the same command goes on",
    },
)
@store_argument
@source_options
@shards_option
@click.option(
    "--order",
    type=click.Choice(["dataset", "length", "longest-first"]),
    default="dataset",
    show_default=True,
    help="What is asked for first: as in the dataset, or the shortest or the longest samples of "
    "each four shards. A source may answer in another order.",
)
@max_duration_option
@size_option(
    "--min-free",
    "Leave so much of the disk free, 10GB or 10GiB say: before it is less, pause until there "
    "is more, at most for --max-wait.  [default: 1 % of the disk, at most 1 GiB]",
)
@click.option(
    "--log-json",
    metavar="FILE",
    help="Append what happens to FILE, a JSON object a line; - is stderr, in place of progress.",
)
@json_option
@click.pass_context
def command(
    ctx: click.Context,
    store: Path,
    options: SourceOptions,
    shards: range | None,
    order: str,
    max_duration: float | None,
    min_free: int | None,
    log_json: str | None,
    *,
    as_json: bool,
) -> None:
    """Compute the hidden states that STORE lacks, and commit them shard by shard.

    Goes on where an earlier run ended, whatever ended it. Ctrl-C or SIGTERM ends the asking, and
    what is on its way is still stored; a second one stops at once. Several such commands may fill
    one store together. The last lines account for every sample that was asked for.
    """
    # Reading a store costs numpy, which the help does not need.
    from hsstore.storage.store import Store  # noqa: PLC0415

    opened = Store.open(store)
    check_range(shards, opened)
    deadline = time.monotonic() + max_duration if max_duration else float("inf")
    run = _Run(opened, shards, order, space_policy(min_free, options.max_wait), deadline)
    options.require()
    try:
        with watching(log_json) as progress:
            run.extract(lambda: open_source(options, opened, progress.note), progress)
    except (HsstoreError, OSError, KeyboardInterrupt) as error:
        # Told by whoever catches it; this says how far the run came.
        run.show(store, as_json=as_json, error=error)
        raise
    ctx.exit(run.show(store, as_json=as_json))


def space_policy(min_free: int | None, max_wait: float | None) -> "SpacePolicy":
    """How an extraction treats a disk that fills up, as it was typed; sizes in bytes."""
    from hsstore.extraction.room import SpacePolicy  # noqa: PLC0415 - numpy, as above

    waiting = {} if max_wait is None else {"max_wait_seconds": max_wait}
    return SpacePolicy(min_free_bytes=min_free, **waiting)


def check_range(shards: range | None, store: "Store") -> None:
    """click.BadParameter where a store has no such shards."""
    if shards is not None and shards.stop > store.plan.shards:
        raise click.BadParameter(
            f"the store has shards 0 to {store.plan.shards - 1}", param_hint="'--shards'"
        )


@contextlib.contextmanager
def watching(log_json: str | None) -> Iterator["Progress"]:
    """What shows a run: a bar or lines on stderr, and the log if one is wanted."""
    with contextlib.ExitStack() as stack:
        watchers: list[Progress] = []
        if log_json:
            watchers.append(stack.enter_context(JsonLog(log_json)))
        if log_json != "-":
            watchers.append(stack.enter_context(render.progress()))
        yield render.Together(*watchers)


class _Run:
    """One extraction as the command was typed; ``summary`` is there however it ended."""

    def __init__(
        self,
        store: "Store",
        shards: range | None,
        order: str,
        space: "SpacePolicy",
        deadline: float,
    ) -> None:
        self.summary: ExtractionSummary | None = None
        self._store = store
        self._shards = shards
        self._order = order
        self._space = space
        self._deadline = deadline

    def extract(self, opener: Callable[[], "HiddenStateSource"], progress: "Progress") -> None:
        """Fill the store. Raises HsstoreError, OSError, KeyboardInterrupt."""
        from hsstore.extraction.extractor import already_filled  # noqa: PLC0415 - numpy, as above

        try:
            # A model takes long to load, for nothing then.
            self.summary = already_filled(self._store, self._shards, progress)
            if self.summary is None:
                with contextlib.closing(opener()) as source:
                    self._extract(source, progress)
        except (HsstoreError, OSError, KeyboardInterrupt) as error:
            progress.event("error", {"error": _told(error)})
            if isinstance(error, OSError) and error.errno in OUT_OF_SPACE:
                raise OutOfSpace(
                    f"{error.strerror}; the samples in committed shards and journals are safe",
                    place=error.filename,
                    remedy=f"{OutOfSpace.from_os(error).remedy} to go on",
                ) from error
            raise
        finally:
            if self.summary is not None:
                progress.event("summary", summary_json(self.summary))

    def _extract(self, source: "HiddenStateSource", progress: "Progress") -> None:
        from hsstore.extraction.extractor import Extraction  # noqa: PLC0415 - numpy, as above

        with stopping() as stopped:
            extraction = Extraction(
                self._store,
                source,
                shards=self._shards,
                order=self._order,
                space=self._space,
                progress=progress,
                stop=lambda: stopped() or time.monotonic() >= self._deadline,
            )
            try:
                extraction.run()
            except (HsstoreError, OSError, KeyboardInterrupt):
                # A store that cannot be read any more cannot be accounted for either.
                with contextlib.suppress(HsstoreError, OSError):
                    self.summary = extraction.summary()
                raise
            self.summary = extraction.summary()

    def show(self, root: Path, *, as_json: bool, error: BaseException | None = None) -> int:
        """Say what was done and what is there now; the exit code, where no error has its own."""
        from hsstore.storage.status import status  # noqa: PLC0415 - numpy, as above

        if self.summary is None:
            return exit_codes.FAILED
        try:
            found = status(self._store)
            committed = self._store.committed()
        except (HsstoreError, OSError):
            if error is None:
                raise
            return exit_codes.FAILED
        held = [s for s in self.summary.shards_claimed_by_others if s not in committed]
        if as_json:
            render.emit_json(_as_json(self.summary, found, held, error))
        else:
            for line in _lines(root, self.summary, found, held):
                click.echo(line)
        incomplete = {*found.shards_absent, *found.shards_unreadable}
        wanted = incomplete if self._shards is None else incomplete.intersection(self._shards)
        return _exit_code(self.summary, held, problems=bool(wanted))


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__


@contextlib.contextmanager
def stopping(after: str = "the samples in work") -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM came; a second one raises KeyboardInterrupt, a third kills."""
    asked = False

    def ask(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        nonlocal asked
        if asked:
            for each in signals:
                signal.signal(each, signal.SIG_DFL)
            raise KeyboardInterrupt
        asked = True
        render.tell(f"stopping after {after}; once more to stop at once")

    signals = (signal.SIGINT, signal.SIGTERM)
    before = {each: signal.signal(each, ask) for each in signals}
    try:
        yield lambda: asked
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _exit_code(summary: "ExtractionSummary", held: list[int], *, problems: bool) -> int:
    if summary.stopped:
        return exit_codes.STOPPED
    if held:
        return exit_codes.FAILED
    return exit_codes.PROBLEMS if problems else exit_codes.OK


def summary_json(summary: "ExtractionSummary") -> dict[str, Any]:
    """A summary as JSON values; ``account`` says what became of every sample asked for."""
    account = {**dataclasses.asdict(summary.account), "total": summary.account.total}
    return {**dataclasses.asdict(summary), "account": account}


def _as_json(
    summary: "ExtractionSummary",
    found: "StoreStatus",
    held: list[int],
    error: BaseException | None,
) -> dict[str, Any]:
    return {
        "type": "summary",
        **summary_json(summary),
        "shards_claimed_by_others": held,
        "error": None if error is None else _told(error),
        "store": {**dataclasses.asdict(found), "complete": found.complete},
    }


def _lines(
    store: Path, summary: "ExtractionSummary", found: "StoreStatus", held: list[int]
) -> Iterator[str]:
    yield (
        f"this run: {summary.samples_extracted} samples ({summary.tokens_extracted} tokens) "
        f"computed, {summary.samples_resumed} resumed, {summary.samples_failed} failed, "
        f"{summary.shards_committed} shards committed"
    )
    if summary.seconds:
        yield (
            f"time: {render.duration(summary.seconds)}, of which waiting for the source "
            f"{render.duration(summary.seconds_source)}, for the disk "
            f"{render.duration(summary.seconds_disk)}"
        )
    yield _account_line(summary.account)
    yield (
        f"the store: {found.samples_committed} of {found.samples} samples committed, "
        f"{found.samples_absent} absent, {found.samples_staged} staged, "
        f"{found.samples_missing} missing"
    )
    if found.shards_absent:
        command = commands.hsstore("inspect", store, "--shard", found.shards_absent[0])
        yield f"why absent: {command}"
    if found.shards_unreadable:
        command = commands.hsstore("fsck", store)
        yield f"commit markers of {len(found.shards_unreadable)} shards cannot be read: {command}"
    if held:
        are = "shard is" if len(held) == 1 else "shards are"
        yield (
            f"{len(held)} {are} held by another writer, first {held[0]}; run the same "
            "command again when it is done"
        )
    if summary.stopped:
        yield "stopped; run the same command again to go on"


ACCOUNT = {
    "committed_before": "committed before",
    "absent_before": "absent before",
    "extracted": "computed and committed",
    "resumed": "resumed and committed",
    "failed": "failed",
    "staged": "staged but not committed",
    "held_by_others": "held by other writers",
    "unreadable": "in shards whose marker cannot be read",
    "not_reached": "not reached",
}
"""The words for each place of an account."""


def _account_line(account: "Account") -> str:
    counts = ((getattr(account, name), words) for name, words in ACCOUNT.items())
    listed = ", ".join(f"{count} {words}" for count, words in counts if count)
    return f"asked for: {account.total} samples: {listed}"
