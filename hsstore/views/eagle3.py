"""Which of a store's layers an EAGLE-3 trainer is fed: auxiliary ones and the last state.

Source: EAGLE-3, arXiv:2503.01840, section 3.1: the drafter sees a low, a middle and a high layer
side by side; its target comes from the last state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from hsstore.errors import MalformedInput
from hsstore.model.capture import FINAL, FINAL_PRE, Layer
from hsstore.views.layers import Positions, positions

_NORM = {FINAL: "after the final norm", FINAL_PRE: "before the final norm"}
_OTHER = {FINAL: FINAL_PRE, FINAL_PRE: FINAL}
_TRAINER = {FINAL: "specforge", FINAL_PRE: "speculators"}


@dataclass(frozen=True, slots=True)
class DraftLayers:
    """``layers`` in the trainer's order, and where they lie in a store's items.

    The ``auxiliary`` ones ascend by number; ``last`` is the last state.
    """

    layers: tuple[Layer, ...]
    auxiliary: Positions
    last: int

    @classmethod
    def of(
        cls, stored: Sequence[Layer], wanted: Sequence[Layer] | None, last: str, *, place: str
    ) -> Self:
        """The layers for a trainer that wants ``last``, which names the side of the norm.

        All numbered layers of the store at ``place``, or those that are ``wanted``, which must be
        in the trainer's order: numbers ascending, then ``last``. MalformedInput where the store has
        the last state on the other side of the norm only, or no numbered layer.
        """
        _demand(stored, last, place)
        numbers = sorted(layer for layer in wanted or stored if isinstance(layer, int))
        layers: tuple[Layer, ...] = (*numbers, last)
        if wanted is not None and tuple(wanted) != layers:
            raise MalformedInput(
                f"the view's layers are {_listed(layers)}, in this order, not {_listed(wanted)}",
                place=place,
                remedy="name them so, or leave layers= out",
            )
        if not numbers:
            raise MalformedInput(
                "the view needs auxiliary layers, and the store has none with a number",
                place=place,
            )
        *auxiliary, at = positions(stored, layers, place=place)
        return cls(layers, tuple(auxiliary), at)


def _demand(stored: Sequence[Layer], last: str, place: str) -> None:
    """MalformedInput where ``last`` is not stored; the other side of the norm does not do."""
    if last in stored:
        return
    other = _OTHER[last]
    have = f"has it {_NORM[other]} only ({other!r})" if other in stored else "has no last state"
    remedy = f"extract a store with the layer {last}; states are never converted"
    if other in stored:
        trainer = _TRAINER[other]
        remedy = (
            f"take it as {trainer} does (view={trainer!r}, hsstore export {trainer}), or {remedy}"
        )
    raise MalformedInput(
        f"the view takes the last state {_NORM[last]} ({last!r}), and the store {have}",
        place=place,
        remedy=remedy,
    )


def _listed(layers: Sequence[Layer]) -> str:
    return ",".join(map(str, layers))
