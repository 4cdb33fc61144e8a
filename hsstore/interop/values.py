"""The values of foreign states: what is plainly wrong with them, and float8 made whole again."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.foreign import Fault
from hsstore.storage.fill import is_finite

FLOAT8 = "float8_e4m3fn"
DEQUANTISED = "float8_e4m3fn as bfloat16, times its row's scale as bfloat16"
PIECE_ROWS = 256


def value_faults(states: NDArray[Any]) -> Iterator[Fault]:
    """``non-finite`` and ``all-zero`` faults of states [n, layers, hidden], at most one each.

    bfloat16 comes as its uint16 bits.
    """
    if not is_finite(states):
        row, layer = next(
            (row, layer)
            for row in range(states.shape[0])
            for layer in range(states.shape[1])
            if not is_finite(states[row, layer])
        )
        yield Fault("non-finite", f"row {row}, layer {layer} of the file, both counted from 0")
    silent = [n for n, any_value in enumerate(_any_value(states)) if not any_value]
    if silent:
        which = ", ".join(map(str, silent))
        yield Fault("all-zero", f"layers {which} of {states.shape[1]} in the file, counted from 0")


def dequantised(states: NDArray[np.uint8], scales: NDArray[np.float32]) -> NDArray[np.uint16]:
    """States [n, layers, hidden] in float8_e4m3fn as bfloat16 bits, by their scales [n, 1, 1].

    The formula is hs-connectors' own (``fp8_utils.dequantize_fp8_tensor`` of 0.9.0, at its default
    dtype): both become bfloat16, then they are multiplied, which rounds once more.
    """
    # Costs seconds to import, and is wanted for float8 only.
    import torch  # noqa: PLC0415

    narrow = torch.from_numpy(states).view(torch.float8_e4m3fn)
    scale = torch.from_numpy(scales.reshape(-1, 1, 1)).to(torch.bfloat16)
    wide = narrow.to(torch.bfloat16) * scale
    bits: NDArray[np.uint16] = wide.view(torch.int16).numpy().view(np.uint16)
    return bits


def _any_value(states: NDArray[Any]) -> list[bool]:
    """Whether a layer has a value that is not zero, of either sign; by layer."""
    found = np.zeros(states.shape[1], bool)
    for begin in range(0, len(states), PIECE_ROWS):
        # Almost always the first piece decides.
        open_layers = np.flatnonzero(~found)
        if not len(open_layers):
            break
        piece = states[begin : begin + PIECE_ROWS, open_layers]
        if piece.dtype == np.uint16:
            piece = piece & 0x7FFF
        found[open_layers] = piece.any(axis=(0, 2))
    return found.tolist()
