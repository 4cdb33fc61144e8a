"""Taps on a decoder's residual stream: found by the values they carry, proved before use.

No table of model families says where a model's blocks and its final norm are. One short prompt
does: the blocks are the one list of modules whose inputs and outputs are transformers' own
``hidden_states``, and the final norm is the one module that turns the last block's output into
``last_hidden_state``, bit for bit. A model for which that does not hold is refused.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from hsstore.errors import SourceUnavailable
from hsstore.model.capture import FINAL, FINAL_PRE, Capture, Layer

# What models raise for input that they, or the device, cannot take.
MODEL_ERRORS = (RuntimeError, ValueError, LookupError)

Copy = Callable[[Tensor], None]


class LayerTaps:
    """Copies the captured layers out of every forward pass of a decoder.

    Making one runs the decoder on ``prompt`` (int64 [1, tokens]) and raises SourceUnavailable
    unless every layer of ``capture`` can be told with certainty.
    """

    def __init__(self, decoder: nn.Module, capture: Capture, prompt: Tensor) -> None:
        self._decoder = decoder
        self._layers = capture.layers
        self._dtype: torch.dtype = getattr(torch, capture.dtype)
        self._prompt = prompt
        self._destination: Sequence[Tensor] = ()
        self._filled: list[int] = []
        with torch.inference_mode():
            stream = _observe(decoder, prompt)
            self.num_layers = len(stream.hidden_states) - 1
            self.hidden_size = int(stream.hidden_states[0].shape[-1])
            self._hooks = self._install(stream)
            self._prove(stream)

    def run(self, input_ids: Tensor, mask: Tensor | None, destination: Sequence[Tensor]) -> None:
        """One forward pass over int64 ``input_ids`` [samples, padded tokens].

        ``mask`` (int64, the same shape) is None where nothing is padded. Sample ``n``'s states go
        to ``destination[n]`` [its tokens, layers, hidden]. What the model raises passes through.
        """
        self._destination, self._filled = destination, []
        padding = {} if mask is None else {"attention_mask": mask}
        try:
            with torch.inference_mode():
                self._decoder(input_ids=input_ids, use_cache=False, **padding)
        finally:
            self._destination = ()
        if sorted(self._filled) != list(range(len(self._layers))):
            raise SourceUnavailable("a forward pass did not go once through every captured layer")

    def run_prompt(self) -> Tensor:
        """The prompt's states [tokens, layers, hidden], computed anew."""
        shape = (self._prompt.shape[1], len(self._layers), self.hidden_size)
        out = torch.empty(shape, dtype=self._dtype)
        self.run(self._prompt, None, [out])
        return out

    def close(self) -> None:
        """Remove the taps from the decoder and forget it."""
        for hook in self._hooks:
            hook.remove()
        self._decoder = nn.Module()

    def _install(self, stream: "_Stream") -> list[RemovableHandle]:
        beyond = [k for k in self._layers if isinstance(k, int) and k >= self.num_layers]
        if beyond:
            raise SourceUnavailable(f"layer {beyond[0]} of a {self.num_layers}-block model")
        blocks = _find_blocks(self._decoder, stream)
        ends = {FINAL, FINAL_PRE} & set(self._layers)
        norm = _find_norm(self._decoder, blocks[-1], stream) if ends else blocks[-1]
        return [
            _attach(layer, blocks, norm, self._copy_to(column))
            for column, layer in enumerate(self._layers)
        ]

    def _copy_to(self, column: int) -> Copy:
        def copy(tensor: Tensor) -> None:
            if not self._destination:
                return
            for states, rows in zip(self._destination, tensor, strict=True):
                # copy_ would broadcast a single row over all of them.
                states[:, column].copy_(rows[: len(states)].view(len(states), self.hidden_size))
            self._filled.append(column)

        return copy

    def _prove(self, stream: "_Stream") -> None:
        states = self.run_prompt()
        for column, layer in enumerate(self._layers):
            found = states[:, column]
            if not torch.isfinite(found).all():
                raise SourceUnavailable(f"layer {layer} overflows {self._dtype} on a short prompt")
            # final:pre is no output of transformers; finding the norm proved it.
            if layer != FINAL_PRE and not same_bits(found, stream.expected(layer)[0].cpu()):
                raise SourceUnavailable(
                    f"layer {layer} is not what transformers returns for it in {self._dtype}"
                )


def one_line(error: Exception) -> str:
    """The first line of what an engine said, which may be pages."""
    return str(error).strip().split("\n", 1)[0] or type(error).__name__


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two tensors have the same shape, dtype and bits (NaN included)."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return False
    return torch.equal(one.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))


@dataclass(frozen=True)
class _Call:
    """The first hidden-state input and output of one call of one module."""

    given: Tensor | None
    returned: Tensor | None


@dataclass(frozen=True)
class _Stream:
    """What one plain call of the decoder returned, and every module call inside it."""

    hidden_states: tuple[Tensor, ...]
    last_hidden_state: Tensor
    calls: dict[nn.Module, list[_Call]]

    def only_call(self, module: nn.Module) -> _Call:
        """The call of a module that ran exactly once, else one that matches nothing."""
        calls = self.calls.get(module, [])
        return calls[0] if len(calls) == 1 else _Call(None, None)

    def expected(self, layer: Layer) -> Tensor:
        """What transformers returned for a numbered layer or ``final``."""
        return self.hidden_states[layer] if isinstance(layer, int) else self.last_hidden_state


def _observe(decoder: nn.Module, prompt: Tensor) -> _Stream:
    calls: dict[nn.Module, list[_Call]] = {}

    def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:  # noqa: ANN401
        call = _Call(_snapshot(_hidden_input(args, kwargs)), _snapshot(_hidden_output(output)))
        calls.setdefault(module, []).append(call)

    hooks = [m.register_forward_hook(note, with_kwargs=True) for m in decoder.modules()]
    try:
        output = decoder(input_ids=prompt, output_hidden_states=True, return_dict=True)
    except MODEL_ERRORS as error:
        raise SourceUnavailable(f"the model fails on a short prompt: {one_line(error)}") from error
    finally:
        for hook in hooks:
            hook.remove()
    states = getattr(output, "hidden_states", None)
    last = getattr(output, "last_hidden_state", None)
    if not states or last is None:
        raise SourceUnavailable("the model does not return its hidden states")
    if any(state.shape != last.shape for state in states):
        raise SourceUnavailable("the model's hidden states are not one stream of one width")
    return _Stream(tuple(states), last, calls)


def _find_blocks(decoder: nn.Module, stream: _Stream) -> list[nn.Module]:
    lists = (list(m) for m in decoder.modules() if isinstance(m, nn.ModuleList))
    found = [blocks for blocks in lists if _are_blocks(blocks, stream)]
    if len(found) != 1:
        raise SourceUnavailable(f"{len(found)} lists of modules could be the model's blocks, not 1")
    return found[0]


def _are_blocks(modules: list[nn.Module], stream: _Stream) -> bool:
    states = stream.hidden_states
    if len(modules) != len(states) - 1:
        return False
    calls = [stream.only_call(module) for module in modules]
    inner = zip(calls[:-1], states[1:-1], strict=True)
    return same_bits(calls[0].given, states[0]) and all(
        same_bits(call.returned, state) for call, state in inner
    )


def _find_norm(decoder: nn.Module, last_block: nn.Module, stream: _Stream) -> nn.Module:
    if not same_bits(stream.hidden_states[-1], stream.last_hidden_state):
        raise SourceUnavailable("the model's last hidden state is not the end of its stream")
    before = stream.only_call(last_block).returned
    found = [
        module
        for module in decoder.modules()
        if same_bits(stream.only_call(module).given, before)
        and same_bits(stream.only_call(module).returned, stream.last_hidden_state)
    ]
    if len(found) != 1:
        raise SourceUnavailable(f"{len(found)} modules could be the model's final norm, not 1")
    if not same_bits(found[0](before), stream.last_hidden_state):
        raise SourceUnavailable("the final norm gives another result when it is called alone")
    return found[0]


def _attach(layer: Layer, blocks: list[nn.Module], norm: nn.Module, copy: Copy) -> RemovableHandle:
    if layer == 0:
        return blocks[0].register_forward_pre_hook(
            lambda _, args, kwargs: copy(_hidden_input(args, kwargs)), with_kwargs=True
        )
    block = blocks[layer - 1 if isinstance(layer, int) else -1]
    module = norm if layer == FINAL else block
    return module.register_forward_hook(lambda _, __, output: copy(_hidden_output(output)))


def _hidden_input(args: Any, kwargs: Any) -> Any:  # noqa: ANN401
    return args[0] if args else kwargs.get("hidden_states")


def _hidden_output(output: Any) -> Any:  # noqa: ANN401
    return output[0] if isinstance(output, (tuple, list)) and output else output


def _snapshot(value: object) -> Tensor | None:
    return value.clone() if isinstance(value, Tensor) else None
