"""Whether rows come from behind a final norm, told from the norm's weights alone.

An RMS norm makes the mean square of a row 1 and then scales each value by a weight. So rows that
are divided by the weights have a mean square of 1 if, and only if, they were normalised. The
weights are read out of the model's safetensors files; no model is loaded.
"""

import json
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.integrity.auditing.likeness import Rows, values_of
from hsstore.storage.model_files import weight_files

HEADER_BYTES = 256 << 20
DTYPES = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}
# A vector that stands once in the model, not once a block, and is called a norm.
NORM_NAME = re.compile(r"(?!.*\.\d+\.)(?!.*embed)(?!.*visual)(?!.*vision).*(norm|ln_f).*\.weight")

# Rounding to 16 bits moves a mean square by less than one part in a hundred.
TOLERANCE = {"float32": 1e-3, "bfloat16": 2e-2, "float16": 2e-2}
LEAST_WEIGHT = 1e-3


def norm_weights(folder: Path, hidden_size: int) -> list[NDArray[np.float64]]:
    """What could be the final norm's weights, float64 [hidden]: one vector as a rule, maybe none.

    Files that are no safetensors are passed over.
    """
    found = []
    for file in weight_files(folder):
        if file.suffix == ".safetensors":
            found += list(_vectors(file, hidden_size))
    return found


def is_normalised(rows: Rows, weights: NDArray[np.float64], dtype: str) -> bool:
    """Whether every row (float32 [tokens, hidden]) went through an RMS norm of these weights."""
    scales = (weights, 1.0 + weights)
    return any(bool(np.all(abs(mean - 1.0) <= TOLERANCE[dtype])) for mean in _means(rows, scales))


def looks_unnormalised(rows: Rows, weights: NDArray[np.float64], dtype: str) -> bool:
    """Whether no RMS norm of these weights, however scaled, can have made these rows."""
    spreads = [np.ptp(mean) / np.median(mean) for mean in _means(rows, (weights, 1.0 + weights))]
    return bool(min(spreads) > 4 * TOLERANCE[dtype])


def spread(rows: Rows) -> float:
    """How much the lengths of rows vary: their standard deviation over their mean."""
    lengths = np.linalg.norm(rows.astype(np.float64), axis=-1)
    return float(lengths.std() / lengths.mean())


def _means(rows: Rows, scales: tuple[NDArray[np.float64], ...]) -> Iterator[NDArray[np.float64]]:
    """The mean square of every row, float64 [tokens], divided by each of the scales."""
    for scale in scales:
        # Gemma's weights lie around 0, to be added to 1.
        usable = abs(scale) >= LEAST_WEIGHT * np.median(abs(scale))
        if usable.any() and np.median(abs(scale)) > 0:
            yield np.mean((rows[:, usable] / scale[usable]) ** 2, axis=-1)


def _vectors(file: Path, hidden_size: int) -> Iterator[NDArray[np.float64]]:
    with file.open("rb") as opened:
        (size,) = struct.unpack("<Q", opened.read(8).ljust(8, b"\0"))
        header: dict[str, Any] = json.loads(opened.read(size)) if size <= HEADER_BYTES else {}
        for name, tensor in header.items():
            is_norm = NORM_NAME.fullmatch(name) and tensor.get("shape") == [hidden_size]
            if is_norm and tensor["dtype"] in DTYPES:
                first, end = tensor["data_offsets"]
                opened.seek(8 + size + first)
                raw = np.frombuffer(opened.read(end - first), DTYPES[tensor["dtype"]])
                yield values_of(raw).astype(np.float64)
