"""The view that a dataset's options ask for."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from hsstore.model.capture import FINAL, FINAL_PRE, Layer
from hsstore.views.cast import known_dtype
from hsstore.views.eagle3 import DraftLayers
from hsstore.views.item import Item
from hsstore.views.layers import positions
from hsstore.views.plain import ByLayerView, RawView
from hsstore.views.specforge import SpecForgeView
from hsstore.views.speculators import SpeculatorsView

ViewName = Literal["raw", "by_layer", "specforge", "speculators"]
View = Callable[[Item], Any]


@dataclass(frozen=True, slots=True)
class ChosenView:
    """What makes a served sample of an item, and the layers that are in it, in order."""

    view: View
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class CalledView:
    """A caller's own function, after the choice of layers and dtype."""

    before: RawView
    function: View

    def __call__(self, item: Item) -> Any:  # noqa: ANN401 - whatever the caller's function makes
        """What the function makes of the item."""
        return self.function(self.before(item))


def choose(
    view: ViewName | View,
    stored: tuple[Layer, ...],
    wanted: Sequence[Layer] | None,
    dtype: torch.dtype | None,
    *,
    place: str,
) -> ChosenView:
    """The view by its name or as a function, of ``wanted`` layers (None: all) of a store.

    ``place`` names the store in errors: MalformedInput where it cannot serve what is asked for,
    ValueError for an unknown name or dtype, and for layers that are no sequence of them.
    """
    known_dtype(dtype)
    _sequence(wanted)
    if view in ("specforge", "speculators"):
        last = FINAL if view == "specforge" else FINAL_PRE
        layers = DraftLayers.of(stored, wanted, last, place=place)
        trainer = SpecForgeView if view == "specforge" else SpeculatorsView
        return ChosenView(trainer(layers, dtype), layers.layers)
    names = stored if wanted is None else tuple(wanted)
    chosen = positions(stored, names, place=place)
    if view == "by_layer":
        return ChosenView(ByLayerView(names, chosen, dtype), names)
    raw = RawView(None if wanted is None else chosen, dtype)
    if callable(view):
        return ChosenView(CalledView(raw, view), names)
    if view != "raw":
        known = ", ".join(get_args(ViewName))
        raise ValueError(f"view is {view!r}, not one of {known}, nor a function")
    return ChosenView(raw, names)


def _sequence(wanted: Sequence[Layer] | None) -> None:
    if isinstance(wanted, str) or not (wanted is None or isinstance(wanted, Iterable)):
        raise ValueError(f"layers is {wanted!r}; it must be a sequence of layers: (2, 'final')")
    for layer in () if wanted is None else wanted:
        if isinstance(layer, bool):
            raise ValueError(f"layers names {layer}, which is no layer")  # noqa: TRY004 - like every other option
