"""The form of a store's rows: shape, bits, and which layers can be judged by their values."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.model.identity import StoreIdentity
from hsstore.storage import codec

Bits = NDArray[np.uint16] | NDArray[np.uint32]

# Values without their sign, doubled, from which on they are infinities or no numbers.
_NOT_FINITE = {"bfloat16": 0xFF00, "float16": 0xF800, "float32": 0xFF000000}


@dataclass(frozen=True)
class Form:
    """How the rows of a store are made."""

    identity: StoreIdentity

    @cached_property
    def shape(self) -> tuple[int, int]:
        """[layers, hidden] of a row."""
        geometry = self.identity.geometry
        return geometry.layers, geometry.hidden_size

    @cached_property
    def stored(self) -> np.dtype[Any]:
        """The dtype of stored values; uint16 for bfloat16."""
        return codec.stored_dtype(self.identity.capture.dtype)

    @cached_property
    def bits(self) -> np.dtype[Any]:
        """The unsigned integers of the same size."""
        return np.dtype(f"<u{self.stored.itemsize}")

    @property
    def not_finite(self) -> int:
        """The smallest doubled bits (sign shifted out) of a value that is not finite."""
        return _NOT_FINITE[self.identity.capture.dtype]

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The layers in words, in stored order."""
        return tuple(f"layer {layer}" for layer in self.identity.capture.layers)

    @cached_property
    def telling(self) -> NDArray[np.intp]:
        """The layers (positions) whose rows depend on more than one token.

        Layer 0 is a table: tokens that were never trained may have equal rows in it, or zeros.
        """
        layers = self.identity.capture.layers
        return np.array([n for n, layer in enumerate(layers) if layer != 0], np.intp)
