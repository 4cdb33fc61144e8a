"""States that were saved beside a checkpoint: whatever was loaded must be one."""

from collections.abc import Mapping
from typing import Any

from hsstore.errors import MalformedInput


def checked(state: Mapping[str, Any], members: Mapping[str, type], what: str) -> Mapping[str, Any]:
    """The state; MalformedInput where it is not one of ``what``, with these ``members``.

    Numbers in a state count something: they are not negative.
    """
    if not isinstance(state, Mapping):
        raise _refused(what, f"it is a {type(state).__name__}")
    for name, kind in members.items():
        value = state.get(name)
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise _refused(what, f"{name} is {value!r}")
    return state


def _refused(what: str, why: str) -> MalformedInput:
    return MalformedInput(f"not the state of {what}: {why}", remedy="load what state_dict returned")
