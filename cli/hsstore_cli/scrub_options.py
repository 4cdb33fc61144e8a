"""The options that make a check one of many, and the signals that end it."""

import contextlib
import functools
import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from hsstore.errors import MalformedInput
from hsstore_cli.options import max_duration_option

if TYPE_CHECKING:
    from hsstore.integrity.scrub.schedule import Scrub, Subset

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


@dataclass(frozen=True, slots=True)
class ScrubOptions:
    """What was typed; ``max_duration`` and ``max_age`` in seconds."""

    subset: tuple[int, int] | None
    max_duration: float | None
    max_age: int | None
    state: Path | None
    report: Path | None

    def to_scrub(self, note: Callable[[str], None]) -> "Scrub":
        """What the library calls it; the verdicts have a place by default."""
        from hsstore.integrity.scrub.schedule import Scrub  # noqa: PLC0415 - numpy, as in fsck

        return Scrub(
            subset=self.subset,
            max_duration_seconds=self.max_duration,
            max_age_seconds=self.max_age,
            state=state_folder(self.state, note),
            report=self.report,
        )


def state_folder(typed: Path | None, note: Callable[[str], None]) -> Path | None:
    """Where verdicts are kept; None, and a note, where nobody said and there is no home."""
    from hsstore.integrity.scrub.state import default_folder  # noqa: PLC0415 - numpy, as in fsck

    if typed is not None:
        return typed
    try:
        return default_folder()
    except RuntimeError:
        note("no home folder to keep verdicts in: none are kept; give --state a folder")
        return None


def _subset(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    typed: str | None,
) -> "Subset | None":
    from hsstore.integrity.scrub.schedule import Subset  # noqa: PLC0415 - numpy, as in fsck

    try:
        return None if typed is None else Subset.parse(typed)
    except MalformedInput as error:
        raise click.BadParameter(str(error)) from None


def _age(
    ctx: click.Context,  # noqa: ARG001 - click's signature
    param: click.Parameter,  # noqa: ARG001 - click's signature
    typed: str | None,
) -> int | None:
    if typed is None:
        return None
    found = re.fullmatch(r"([0-9]{1,9})([smhdw])", typed)
    if not found or not int(found[1]):
        raise click.BadParameter(f"{typed!r} is no age: give a number and s, m, h, d or w, as 30d")
    return int(found[1]) * UNITS[found[2]]


state_option = click.option(
    "--state",
    metavar="DIR",
    type=click.Path(path_type=Path),
    help="Where verdicts are kept, for any number of stores.  "
    "[default: $XDG_STATE_HOME/hsstore, ~/.local/state/hsstore]",
)


OPTIONS = (
    click.option(
        "--subset",
        metavar="N/T",
        callback=_subset,
        help="Only bucket N of T: over N = 1 to T each shard is checked once, and stays in its "
        "bucket while the store grows.",
    ),
    max_duration_option,
    click.option(
        "--max-age",
        metavar="AGE",
        callback=_age,
        help="Leave out shards that were found sound at this level or deeper within 30d, 12h, ..",
    ),
    state_option,
    click.option(
        "--report",
        metavar="FILE",
        type=click.Path(path_type=Path),
        help="Also write the lines of --json to FILE while the run goes on.",
    ),
)


def scrub_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command these options; it gets them as one ``scrub: ScrubOptions``."""

    @functools.wraps(command)
    def with_options(**given: Any) -> Any:  # noqa: ANN401 - a command's options are of any kind
        names = [field.name for field in fields(ScrubOptions)]
        options = ScrubOptions(**{name: given.pop(name) for name in names})
        return command(**given, scrub=options)

    for option in reversed(OPTIONS):
        with_options = option(with_options)
    return with_options


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM is as good as Ctrl-C; after either, another ends the process at once."""
    signals = (signal.SIGINT, signal.SIGTERM)

    def interrupt(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - signal's signature
        for each in signals:
            signal.signal(each, signal.SIG_DFL)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
