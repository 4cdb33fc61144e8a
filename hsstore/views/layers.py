"""Some of a store's layers in any order: the memory that was read, wherever strides can say it."""

from collections.abc import Sequence

import torch

from hsstore.errors import MalformedInput
from hsstore.model.capture import Layer

Positions = tuple[int, ...]


def positions(stored: Sequence[Layer], wanted: Sequence[Layer], *, place: str) -> Positions:
    """Where each of the ``wanted`` layers lies among the ``stored`` ones of the store at ``place``.

    MalformedInput where none is wanted, one is wanted twice, or the store does not have it.
    """
    remedy = f"choose among its layers: {', '.join(map(str, stored))}"
    if not wanted:
        raise MalformedInput("layers= names no layer", place=place, remedy=remedy)
    for number, layer in enumerate(wanted):
        if layer not in stored:
            raise MalformedInput(
                f"the store does not have layer {layer!r}", place=place, remedy=remedy
            )
        if layer in wanted[:number]:
            raise MalformedInput(f"layers= names {layer!r} twice", place=place)
    return tuple(stored.index(layer) for layer in wanted)


def take(states: torch.Tensor, chosen: Positions) -> torch.Tensor:
    """Some layers of ``states`` [tokens, layers, hidden], in this order: [tokens, chosen, hidden].

    A view where the positions ascend in equal steps, as any one or two ascending ones do. No
    strides describe another order, so that costs one copy of the chosen layers; ``apart`` never
    copies.
    """
    step = chosen[1] - chosen[0] if len(chosen) > 1 else 1
    if step > 0 and chosen == tuple(range(chosen[0], chosen[-1] + 1, step)):
        return states[:, chosen[0] : chosen[-1] + 1 : step]
    return states[:, list(chosen)]


def apart(states: torch.Tensor, chosen: Positions) -> tuple[torch.Tensor, ...]:
    """Each of these layers as a view [tokens, hidden] of ``states``: any choice, any order."""
    return tuple(states[:, position] for position in chosen)


def side_by_side(states: torch.Tensor, chosen: Positions) -> torch.Tensor:
    """These layers concatenated along the last dimension: [tokens, chosen * hidden].

    A view where they lie next to each other in ``states``, in this order; else one copy.
    """
    return take(states, chosen).flatten(1)
