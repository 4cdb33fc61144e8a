"""Options of datasets, orders and batches: checked when they are given, and told in one line."""

import operator


def whole_number(name: str, value: int, least: int) -> int:
    """``value`` as Python's own integer; ValueError where it is none, or is below ``least``.

    A fraction or a NaN would compare like a number, and silently mean something else.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ValueError(f"{name} is {value!r}; it must be a whole number, at least {least}")
    return number


def one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    """ValueError for a value that is not ``known``."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}, not one of {', '.join(known)}")
