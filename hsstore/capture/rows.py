"""The captured rows of one forward pass: from the model's tensors to bytes on the host."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hsstore.capture.plan import Part
from hsstore.capture.settings import FINAL, Layer


class WrongStates(ValueError):
    """The engine's states are not what was asked for."""


@dataclass(frozen=True, slots=True)
class HostRows:
    """Rows [rows, layers, hidden] on the host, once ``event`` has happened (None: at once).

    The copy from CUDA was never run here: hsstore's tests have no GPU.
    """

    rows: Tensor
    event: Any

    def wait(self) -> None:
        """Return when the rows are there."""
        if self.event is not None:
            self.event.synchronize()

    def payload(self, start: int, stop: int) -> memoryview:
        """The bytes of rows ``start`` to ``stop`` - 1."""
        return self.rows[start:stop].view(torch.uint8).numpy().data.cast("B")


def ordered_states(
    aux: Any,  # noqa: ANN401 - a list or one packed tensor, by release and model class
    final: Tensor,
    layers: Sequence[Layer],
) -> list[Tensor]:
    """One [tokens, hidden] tensor for each of ``layers``, from what the model handed over.

    ``aux`` holds the numbered layers in ascending order. Raises WrongStates where there are not
    as many as were asked for, or of another shape than ``final``: SGLang drops some silently.
    """
    numbers = sorted(layer for layer in layers if isinstance(layer, int))
    states = _unpacked(aux, len(numbers), final)
    if len(states) != len(numbers):
        raise WrongStates(f"{len(states)} states of numbered layers, not {len(numbers)}")
    by_layer: dict[Layer, Tensor] = dict(zip(numbers, states, strict=True))
    for layer, state in by_layer.items():
        if state.shape != final.shape:
            raise WrongStates(f"layer {layer} is {_shape(state)}, the final state {_shape(final)}")
    return [final if layer == FINAL else by_layer[layer] for layer in layers]


def check_states(states: Iterable[Tensor], tokens: int, hidden_size: int, dtype: str) -> None:
    """Raise WrongStates unless each is [tokens, hidden_size] and of ``dtype``."""
    for state in states:
        if tuple(state.shape) != (tokens, hidden_size):
            raise WrongStates(f"a state of {_shape(state)}, not [{tokens}, {hidden_size}]")
        if state.dtype != getattr(torch, dtype):
            raise WrongStates(f"a state of {state.dtype}, not {dtype}")


def to_host(states: Sequence[Tensor], parts: Sequence[Part]) -> HostRows:
    """The rows of ``parts``, one behind the other, as one array on the host.

    Assembled on the device, so that one copy moves them; on a GPU that copy is only started.
    """
    rows = sum(part.stop - part.start for part in parts)
    shape = (rows, len(states), states[0].shape[1])
    device = torch.empty(shape, dtype=states[0].dtype, device=states[0].device)
    at = 0
    for start, stop in _runs(parts):
        for index, state in enumerate(states):
            device[at : at + stop - start, index].copy_(state[start:stop])
        at += stop - start
    if device.device.type == "cpu":
        return HostRows(device, None)
    host = torch.empty(shape, dtype=device.dtype, pin_memory=True)
    host.copy_(device, non_blocking=True)
    event = torch.Event(device.device)
    event.record()
    return HostRows(host, event)


def _runs(parts: Sequence[Part]) -> list[tuple[int, int]]:
    """The parts' rows, neighbours joined: a batch of ours alone is copied in one go."""
    runs: list[tuple[int, int]] = []
    for part in parts:
        if runs and runs[-1][1] == part.start:
            runs[-1] = (runs[-1][0], part.stop)
        else:
            runs.append((part.start, part.stop))
    return runs


def _unpacked(aux: Any, count: int, final: Tensor) -> list[Tensor]:  # noqa: ANN401 - see above
    if aux is None:
        return []
    if not isinstance(aux, Tensor):
        return list(aux)
    hidden = final.shape[-1]
    if count == 0 or aux.shape[-1] != count * hidden:
        raise WrongStates(f"packed states of {_shape(aux)}, not {count} times {hidden} wide")
    return [aux[..., at * hidden : (at + 1) * hidden] for at in range(count)]


def _shape(tensor: Tensor) -> str:
    return str(list(tensor.shape))
