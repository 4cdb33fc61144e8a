"""States in float8, made whole again by their scales."""

import numpy as np
from numpy.typing import NDArray

FLOAT8 = "float8_e4m3fn"
DEQUANTISED = "float8_e4m3fn as bfloat16, times its row's scale as bfloat16"


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
