"""States in another dtype than the stored one, and never silently infinite."""

import torch

from hsstore.errors import MalformedInput

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def known_dtype(dtype: torch.dtype | None) -> torch.dtype | None:
    """The dtype, if states can be cast to it; ValueError otherwise."""
    if dtype is not None and dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype}, not one of {', '.join(map(str, DTYPES))}")
    return dtype


def cast(states: torch.Tensor, dtype: torch.dtype | None, sample: str) -> torch.Tensor:
    """``states`` in ``dtype``, rounded to nearest; themselves where they have it (or for None).

    MalformedInput, naming the ``sample``, where a finite value is too large for the dtype: the
    large activations of some models are beyond float16.
    """
    if dtype is None or states.dtype == dtype:
        return states
    result = states.to(dtype)
    if _is_narrower(dtype, states.dtype) and (result.isinf() & states.isfinite()).any():
        raise MalformedInput(
            f"sample {sample!r} has values beyond {torch.finfo(dtype).max:.6g}, the largest "
            f"{dtype}",
            remedy="choose dtype=torch.bfloat16 or torch.float32",
        )
    return result


def _is_narrower(dtype: torch.dtype, than: torch.dtype) -> bool:
    return torch.finfo(dtype).max < torch.finfo(than).max
