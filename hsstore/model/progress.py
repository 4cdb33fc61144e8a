"""How long work reports itself, without knowing who looks."""

from collections.abc import Mapping
from typing import Any, Protocol


class Progress(Protocol):
    """Receives the advance of one piece of long work."""

    def start(self, total: int, done: int, unit: str) -> None:
        """Work of ``total`` units begins, of which ``done`` were done before."""
        ...

    def advance(self, units: int) -> None:
        """That many more units are done."""
        ...

    def note(self, text: str) -> None:
        """One line that a person would want to see now."""
        ...

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        """Something happened, for machines: what, and JSON values about it.

        ``figures`` comes about once a second while work goes on, and is for people too.
        """
        ...


class Silent:
    """Reports to nobody."""

    def start(self, total: int, done: int, unit: str) -> None:
        """Ignore."""

    def advance(self, units: int) -> None:
        """Ignore."""

    def note(self, text: str) -> None:
        """Ignore."""

    def event(self, name: str, members: Mapping[str, Any]) -> None:
        """Ignore."""
