"""The formats that hsstore reads, by name. Another one is a module, and a line here."""

from collections.abc import Callable

from hsstore.errors import MalformedInput
from hsstore.interop import modelopt, specforge, speculators
from hsstore.interop.foreign import Format

FORMATS: dict[str, Callable[[], Format]] = {
    specforge.NAME: lambda: specforge.SPECFORGE,
    speculators.NAME: speculators.speculators,
    modelopt.NAME: lambda: modelopt.MODELOPT,
}


def format_named(name: str) -> Format:
    """The format of that name; MalformedInput where there is none."""
    if name not in FORMATS:
        raise MalformedInput(f"unknown format {name!r}; known: {', '.join(FORMATS)}")
    return FORMATS[name]()
