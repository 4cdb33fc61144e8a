"""Whether last states are what a model's final norm gives, told by the norm's weight.

An RMSNorm gives ``w * x / rms(x)``, so its output divided by ``w`` has a root mean square of 1 in
every row (Zhang and Sennrich, 2019, eq. 4). States before the norm do not.
"""

import re
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.foreign import Broken, ForeignFile
from hsstore.interop.safetensors_file import open_safetensors
from hsstore.interop.torch_file import open_torch
from hsstore.model.capture import ModelIdentity
from hsstore.storage.digest import as_float32
from hsstore.storage.model_files import weight_files

FINAL_NORM = re.compile(r"(?:[a-z_]+\.)*(?:norm|final_layernorm|ln_f)\.(?P<kind>weight|bias)")
TOLERANCE = 0.02
SMALLEST_WEIGHT = 1e-6


def after_norm(states: NDArray[Any], weight: NDArray[np.float32]) -> bool | None:
    """Whether every row of states [n, hidden] is what an RMSNorm with this weight [hidden] gives.

    bfloat16 comes as its uint16 bits. Norms of some models (Gemma, Qwen3-Next) multiply by one
    more than their weight, so either may have been done; None where nothing fits, and one of them
    cannot be tried because it is zero somewhere.
    """
    rows = as_float32(states).astype(np.float64)
    scales = [s for s in (weight, 1 + weight) if np.abs(s).min() > SMALLEST_WEIGHT]
    if any(_are_even(rows / scale) for scale in scales):
        return True
    return False if len(scales) == 2 else None  # noqa: PLR2004 - both were tried


def _are_even(rows: NDArray[np.float64]) -> bool:
    rms = np.sqrt(np.mean(rows * rows, axis=1))
    return bool((np.abs(rms - 1) <= TOLERANCE).all())


def norm_weight(path: Path, model: ModelIdentity) -> NDArray[np.float32] | None:
    """The weight of a model's final norm [hidden]; None where that cannot be told.

    Nothing is told of a bare config.json, a GGUF file, several modules that could be it, or a norm
    with a bias (no RMSNorm). Raises OSError.
    """
    if not path.is_dir():
        return None
    found = [tensor for file in weight_files(path) for tensor in _norms(file)]
    if [kind for kind, _ in found] != ["weight"] or found[0][1].shape != (model.hidden_size,):
        return None
    return as_float32(found[0][1])


def _norms(weights: Path) -> list[tuple[str, NDArray[Any]]]:
    """The tensors of a file that could belong to a final norm, each with its kind."""
    # A hub cache keeps its files behind links.
    real = weights.resolve()
    file = ForeignFile(real.parent, real.name, None)
    opened = open_torch if weights.suffix == ".bin" else open_safetensors
    try:
        with opened(file) as container:
            matches = {name: FINAL_NORM.fullmatch(name) for name in container.tensors}
            return [(m["kind"], container.array(name)) for name, m in matches.items() if m]
    except Broken:
        return []
