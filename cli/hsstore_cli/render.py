"""How results look: sizes and times for people, JSON for scripts, progress on stderr."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import click

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from tqdm import tqdm

    from hsstore.model.progress import Progress

LINE_EVERY_SECONDS = 60.0
DECIMAL = ("kB", "MB", "GB", "TB", "PB", "EB")


def size(count: int) -> str:
    """A number of bytes both ways: ``5.03 TB (4.58 TiB)``; plain below 1000."""
    if abs(count) < 1000:  # noqa: PLR2004 - where decimal units begin
        return f"{count} bytes"
    decimal = _scaled(count, 1000, DECIMAL)
    return f"{decimal} ({_scaled(count, 1024, ('KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'))})"


def _scaled(count: int, step: int, units: tuple[str, ...]) -> str:
    value, exponent = count / step, 0
    while abs(round(value, 2)) >= step and exponent < len(units) - 1:
        value, exponent = value / step, exponent + 1
    return f"{value:.2f} {units[exponent]}"


def counted(number: int, noun: str) -> str:
    """A number and what it counts: ``1 item``, ``2 items``."""
    return f"{number} {noun if number == 1 else noun + 's'}"


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


def printable(line: str) -> str:
    """What a terminal would obey, and what it cannot show, is escaped.

    Names in stores and in reports may hold anything.
    """
    shown = (c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    return "".join(shown)


def show(*lines: str) -> None:
    """Write lines for people on stdout, each made printable."""
    for line in lines:
        click.echo(printable(line))


def tell(text: str) -> None:
    """Write a line for people on stderr.

    Where that is on a full disk, or its reader is gone, nobody is told; no reason to end a run.
    """
    with contextlib.suppress(OSError):
        click.echo("\n".join(map(printable, text.split("\n"))), err=True)


def short_size(count: float) -> str:
    """A number of bytes where there is little room: ``45.1 MB``."""
    return f"{count:.0f} B" if count < 1000 else _scaled(round(count), 1000, DECIMAL)  # noqa: PLR2004


def rate(per_second: float) -> str:
    """Three digits, and never an exponent."""
    return f"{per_second:,.0f}" if per_second >= 100 else f"{per_second:.3g}"  # noqa: PLR2004 - three digits


class Looks:
    """Figures of an extraction as text; shares are of the time since the last look."""

    def __init__(self) -> None:
        self._before = (0.0, 0.0, 0.0)

    def text(self, figures: Mapping[str, Any]) -> str:
        """Speed, time left, what is waited for, failures and free space; most wanted first."""
        speed, left = figures["tokens_per_second"], figures["seconds_left"]
        free = figures["free_bytes"]
        parts = [
            "speed unknown yet" if speed is None else f"{rate(speed)} tok/s",
            "unknown time left" if left is None else f"{duration(left)} left",
            figures["waiting"],
            self._shares(figures),
            f"{figures['samples_failed']} failed" if figures["samples_failed"] else None,
            None if speed is None else f"{short_size(figures['bytes_per_second'])}/s",
            None if free is None else f"{short_size(free)} free",
        ]
        return ", ".join(part for part in parts if part)

    def _shares(self, figures: Mapping[str, Any]) -> str | None:
        now = figures["seconds"], figures["seconds_source"], figures["seconds_disk"]
        passed, source, disk = (b - a for a, b in zip(self._before, now, strict=True))
        if passed <= 0:
            return None
        self._before = now
        return f"source {source / passed:.0%} disk {disk / passed:.0%}".replace("%", " %")


def progress() -> "AbstractContextManager[Progress]":
    """A Progress on stderr, for a with block: a bar on a terminal, otherwise a line a minute."""
    return Bar() if sys.stderr.isatty() else Lines()


class Bar:
    """A tqdm bar."""

    def __init__(self) -> None:
        self._bar: tqdm[Any] | None = None
        self._looks = Looks()

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
            total=total,
            initial=done,
            unit="B" if unit == "bytes" else f" {unit}",
            unit_scale=True,
            dynamic_ncols=True,
        )

    def advance(self, units: int) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.update(units)

    def note(self, text: str) -> None:
        """Write a line above the bar."""
        from tqdm import tqdm  # noqa: PLC0415 - only a terminal needs it

        with contextlib.suppress(OSError):  # as in ``tell``
            tqdm.write(printable(text), file=sys.stderr)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        """Show figures beside the bar, instead of tqdm's own guesses."""
        if name == "figures" and self._bar is not None:
            # tqdm's speed would count what was found done.
            self._bar.bar_format = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt}{unit}{postfix}"
            self._bar.set_postfix_str(self._looks.text(members))


class Lines:
    """A line a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._total = self._done = self._before = 0
        self._unit = ""
        self._started = self._said = clock()
        self._looks = Looks()
        self._figures: Mapping[str, Any] | None = None

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
        self._figures = None

    def advance(self, units: int) -> None:
        """Count, and say how far it is once a minute."""
        self._done += units
        self._say()

    def note(self, text: str) -> None:
        """Write a line."""
        tell(text)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        """Keep figures for the next line."""
        if name == "figures":
            self._figures = members
            self._say()

    def _say(self) -> None:
        now = self._clock()
        if now - self._said >= LINE_EVERY_SECONDS:
            self._said = now
            self.note(self._line(now - self._started))

    def _line(self, elapsed: float) -> str:
        share = self._done / self._total if self._total else 1.0
        done = f"{self._done} of {self._total} {self._unit} ({share:.1%})"
        if self._figures is not None:
            return f"{done}, {self._looks.text(self._figures)}"
        # Of what this run did itself: what was done before says nothing of what is left.
        speed = (self._done - self._before) / elapsed
        left = duration((self._total - self._done) / speed) if speed else "unknown time"
        if self._unit == "bytes":
            of = f"{short_size(self._done)} of {short_size(self._total)}"
            return f"{of} ({share:.1%}), {short_size(speed)}/s, {left} left"
        return f"{done}, {rate(speed)} {self._unit}/s, {left} left"


class Together:
    """Passes what it is told on to several."""

    def __init__(self, *watching: "Progress") -> None:
        self._watching = watching

    def start(self, total: int, done: int, unit: str) -> None:
        """Pass on."""
        for each in self._watching:
            each.start(total, done, unit)

    def advance(self, units: int) -> None:
        """Pass on."""
        for each in self._watching:
            each.advance(units)

    def note(self, text: str) -> None:
        """Pass on."""
        for each in self._watching:
            each.note(text)

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        """Pass on."""
        for each in self._watching:
            each.event(name, members)
