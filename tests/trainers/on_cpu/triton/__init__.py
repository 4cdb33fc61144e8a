"""Stands in for triton where there is no GPU: SpecForge's two loss kernels, computed by torch.

SpecForge 0.2.0 imports triton with its loss and launches ``kernel[grid](*arguments)``. A row whose
mask is 0 gets no loss and no gradient; the others keep their maximum and the sum of
exp(x - maximum) for the way back.
"""

import sys
from collections.abc import Callable
from typing import Any

if "specforge.core.loss" not in sys.modules:
    # torch looks for triton too, and would take this one for a compiler.
    raise ImportError("this triton is for the loss of SpecForge only")

import torch

from triton import language as language

Launch = Callable[..., None]


class Kernel:
    """What ``jit`` makes of a function: launching it runs the torch code of the same name."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def __getitem__(self, grid: tuple[int, ...]) -> Launch:
        return self._launch


def jit(function: Callable[..., Any]) -> Kernel:
    return Kernel(LAUNCHES[function.__name__])


def next_power_of_2(number: int) -> int:
    return 1 << (number - 1).bit_length()


def _forward(*arguments: torch.Tensor, **_: int) -> None:
    logits, _s, target, _s, mask, _s, loss, _s, largest, exponentials, _n = arguments
    values, weights, rows = logits.float(), target.float(), mask.view(-1)
    top = values.max(1).values
    total = (values - top[:, None]).exp().sum(1)
    of_rows = -(weights * (values - top[:, None] - total.log()[:, None])).sum(1)
    for place, found in ((loss.view(-1), of_rows), (largest, top), (exponentials, total)):
        place.copy_(torch.where(rows, found, 0))


def _backward(*arguments: torch.Tensor, **_: int) -> None:
    logits, _s, target, _s, mask, gradient, scale, largest, exponentials, _n = arguments
    weights, rows = target.float() * (gradient.float() * scale), mask.view(-1, 1)
    weights = weights.view_as(logits)
    chances = (logits.float() - largest[:, None]).exp() / exponentials[:, None]
    found = chances * weights.sum(1, keepdim=True) - weights
    logits.copy_(torch.where(rows, found, 0))


LAUNCHES = {"log_softmax_forward_kernel": _forward, "log_softmax_backward_kernel": _backward}
