"""How results look: sizes and times for people, JSON for scripts, progress on stderr."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from tqdm import tqdm

LINE_EVERY_SECONDS = 60.0


def size(count: int) -> str:
    """A number of bytes both ways: ``5.03 TB (4.58 TiB)``; plain below 1000."""
    if abs(count) < 1000:  # noqa: PLR2004 - where decimal units begin
        return f"{count} bytes"
    decimal = _scaled(count, 1000, ("kB", "MB", "GB", "TB", "PB", "EB"))
    return f"{decimal} ({_scaled(count, 1024, ('KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'))})"


def _scaled(count: int, step: int, units: tuple[str, ...]) -> str:
    value, exponent = count / step, 0
    while abs(round(value, 2)) >= step and exponent < len(units) - 1:
        value, exponent = value / step, exponent + 1
    return f"{value:.2f} {units[exponent]}"


def duration(seconds: float) -> str:
    """A time span in its two largest units: ``42 s``, ``3 min 5 s``, ``9 d 4 h``."""
    whole = round(seconds)
    for unit, length, part, part_length in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "min", 60),
        ("min", 60, "s", 1),
    ):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // part_length} {part}"
    return f"{whole} s"


def emit_json(value: Any) -> None:  # noqa: ANN401 - anything that JSON can say
    """Write one value as one line of JSON on stdout; ValueError for NaN and infinities."""
    click.echo(json.dumps(value, allow_nan=False))


def progress() -> "Bar | Lines":
    """A Progress on stderr, for a with block: a bar on a terminal, otherwise a line a minute."""
    return Bar() if sys.stderr.isatty() else Lines()


class Bar:
    """A tqdm bar."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._bar is not None:
            self._bar.close()

    def start(self, total: int, done: int, unit: str) -> None:
        """Show a new bar; the one before it stays as it ended."""
        from tqdm import tqdm  # noqa: PLC0415 - only a terminal needs it

        self.__exit__(None, None, None)
        self._bar = tqdm(
            total=total, initial=done, unit=f" {unit}", unit_scale=True, dynamic_ncols=True
        )

    def advance(self, units: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(units)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        """Todo."""

    def note(self, text: str) -> None:
        """Write a line above the bar."""
        from tqdm import tqdm  # noqa: PLC0415 - only a terminal needs it

        tqdm.write(text, file=sys.stderr)


class Lines:
    """A line a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._total = self._done = self._before = 0
        self._unit = ""
        self._started = self._said = clock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        pass

    def start(self, total: int, done: int, unit: str) -> None:
        """Begin to count a new piece of work."""
        self._total, self._done, self._before, self._unit = total, done, done, unit
        self._started = self._said = self._clock()

    def advance(self, units: int) -> None:
        """Count, and say how far it is once a minute."""
        self._done += units
        now = self._clock()
        if now - self._said >= LINE_EVERY_SECONDS:
            self._said = now
            self.note(self._line(now - self._started))

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        """Todo."""

    def note(self, text: str) -> None:
        """Write a line."""
        click.echo(text, err=True)

    def _line(self, elapsed: float) -> str:
        share = self._done / self._total if self._total else 1.0
        rate = (self._done - self._before) / elapsed
        left = duration((self._total - self._done) / rate) if rate else "unknown time"
        return (
            f"{self._done} of {self._total} {self._unit} ({share:.1%}), "
            f"{rate:.3g} {self._unit}/s, {left} left"
        )
