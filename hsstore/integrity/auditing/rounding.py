"""Whether values were rounded to fewer digits than their dtype has."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

MANTISSA_BITS = {"float32": 23, "float16": 10, "bfloat16": 7}
KNOWN = {10: "float16 or TF32", 7: "bfloat16", 3: "FP8 E4M3", 2: "FP8 E5M2"}
# Of so many values it is no chance that one bit is zero in all.
LEAST_VALUES = 64


def coarser(stored: NDArray[Any], found: NDArray[Any], dtype: str) -> str | None:
    """A phrase where stored values have fewer digits than those computed again, in ``dtype``.

    Both are [tokens, hidden] in the stored dtype, bfloat16 as its uint16 bits.
    """
    if stored.size < LEAST_VALUES:
        return None
    bits, expected = _used(stored, dtype), _used(found, dtype)
    if bits >= expected:
        return None
    like = f", as in {KNOWN[bits]}" if bits in KNOWN else ""
    return f"values rounded to {bits} of the {expected} bits of a mantissa{like}"


def _used(values: NDArray[Any], dtype: str) -> int:
    """How many leading bits of the mantissa some value makes use of."""
    width = MANTISSA_BITS[dtype]
    unsigned = np.ascontiguousarray(values).view(f"<u{values.dtype.itemsize}")
    seen = int(np.bitwise_or.reduce(unsigned, axis=None)) & ((1 << width) - 1)
    return width - (((seen & -seen).bit_length() - 1) if seen else width)
