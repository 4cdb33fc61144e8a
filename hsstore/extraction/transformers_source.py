"""Hidden states computed in this process by transformers."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hsstore.errors import IdentityMismatch, SourceUnavailable
from hsstore.extraction.layer_taps import MODEL_ERRORS, LayerTaps, one_line
from hsstore.extraction.transformers_model import load_decoder, require_transformers
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import (
    Extracted,
    Failed,
    Origin,
    Request,
    differences,
    expected_match,
)
from hsstore.storage.model_files import find_model, read_model

PROMPT_TOKENS = 12


class TransformersSource:
    """A HiddenStateSource over a model of this machine, which transformers loads.

    ``path`` is a model folder or a GGUF file and must be the model of ``identity``, else
    IdentityMismatch; SourceUnavailable when it cannot be loaded or its layers cannot be told.

    One sample is one forward pass, so its states depend on nothing else, unless ``batch_tokens``
    allows consecutive samples to share one of up to that many tokens, padding included.
    ``attention`` asks for another implementation of transformers than the model's own choice.
    ``forwards`` and ``tokens_computed`` count the work done for requests.
    """

    def __init__(
        self,
        path: str | Path,
        identity: StoreIdentity,
        *,
        batch_tokens: int | None = None,
        device: str = "cpu",
        attention: str | None = None,
    ) -> None:
        self._capture = identity.capture
        self._batch_tokens = batch_tokens
        self._device = device
        self._match = _matching(Path(path), identity)
        decoder: Any = load_decoder(Path(path), identity.capture.dtype, device, attention=attention)
        self._config = decoder.config
        self._vocabulary = int(decoder.get_input_embeddings().weight.shape[0])
        self._longest: int | None = getattr(self._config, "max_position_embeddings", None)
        if batch_tokens is not None:
            _refuse_length_dependence(self._config, str(path))
        self._taps = self._tapped(decoder, identity, str(path))
        self._out = torch.empty(0, dtype=getattr(torch, identity.capture.dtype))
        self.forwards = 0
        self.tokens_computed = 0

    def origin(self) -> Origin:
        """The model's identity, and what computes: engine, device, attention, batching."""
        return Origin(
            match=self._match,
            recorded={
                "engine": "transformers",
                "engine_version": require_transformers().__version__,
                "torch_version": torch.__version__,
                "device": self._device,
                "attention": str(getattr(self._config, "_attn_implementation", "unknown")),
                "batch_tokens": str(self._batch_tokens or "one sample"),
            },
        )

    def states(self, requests: Iterable[Request]) -> Iterator[Extracted | Failed]:
        """The answers in the order of ``requests``.

        An array is overwritten once the next answer is asked for. A sample fails for good as
        ``token-out-of-range``, ``too-long`` or ``forward-error``. Raises SourceUnavailable when
        the model stops computing at all.
        """
        group: list[Request] = []
        for request in requests:
            refused = self._refusal(request)
            if group and (refused or not self._fits([*group, request])):
                yield from self._answers(group)
                group = []
            if refused:
                yield refused
            else:
                group.append(request)
                if not self._batch_tokens:
                    yield from self._answers(group)
                    group = []
        if group:
            yield from self._answers(group)

    def settled(self, samples: Iterable[int]) -> None:
        """Nothing is kept for a sample once it is answered."""

    def close(self) -> None:
        """Free the model; the source must not be used afterwards."""
        self._taps.close()
        self._out = torch.empty(0)

    def _tapped(self, decoder: nn.Module, identity: StoreIdentity, place: str) -> LayerTaps:
        try:
            taps = LayerTaps(decoder, identity.capture, self._prompt())
        except SourceUnavailable as error:
            raise SourceUnavailable(error.message, place=place, remedy=error.remedy) from error
        _refuse_shape(taps, identity, place)
        return taps

    def _prompt(self) -> Tensor:
        length = min(PROMPT_TOKENS, self._longest or PROMPT_TOKENS)
        ids = torch.arange(1, length + 1) * 7919 % self._vocabulary
        return ids[None].to(self._device)

    def _fits(self, group: list[Request]) -> bool:
        widest = max(len(request.input_ids) for request in group)
        return len(group) * widest <= (self._batch_tokens or 0)

    def _refusal(self, request: Request) -> Failed | None:
        ids = request.input_ids
        if self._longest is not None and len(ids) > self._longest:
            detail = f"{len(ids)} tokens, and the model takes {self._longest}"
            return Failed(request.sample, "too-long", detail)
        outside = (ids < 0) | (ids >= self._vocabulary)
        if outside.any():
            position = int(outside.argmax())
            detail = f"token {position} is {ids[position]}, outside 0..{self._vocabulary - 1}"
            return Failed(request.sample, "token-out-of-range", detail)
        return None

    def _answers(
        self, group: list[Request], earlier: tuple[str, ...] = ()
    ) -> Iterator[Extracted | Failed]:
        try:
            states = self._forward(group)
        except MODEL_ERRORS as error:
            self._refuse_outage(error)
            if len(group) == 1:
                attempts = (*earlier, f"alone: {one_line(error)}") if earlier else ()
                yield Failed(group[0].sample, "forward-error", one_line(error), attempts)
                return
            together = f"in a batch of {len(group)} samples: {one_line(error)}"
            for request in group:
                yield from self._answers([request], (together,))
            return
        for request, rows in zip(group, states, strict=True):
            yield Extracted(request.sample, _as_numpy(rows))

    def _forward(self, group: list[Request]) -> list[Tensor]:
        lengths = [len(request.input_ids) for request in group]
        input_ids = torch.zeros((len(group), max(lengths)), dtype=torch.int64)
        mask = torch.zeros_like(input_ids)
        for row, request in enumerate(group):
            ids = torch.from_numpy(request.input_ids.astype(np.int64))
            # A masked NaN still spreads, so padding repeats a token that the sample has anyway.
            input_ids[row] = ids[-1]
            input_ids[row, : lengths[row]] = ids
            mask[row, : lengths[row]] = 1
        states = list(torch.split(self._buffer(sum(lengths)), lengths))
        self.forwards += 1
        padded = None if len(group) == 1 else mask.to(self._device)
        self._taps.run(input_ids.to(self._device), padded, states)
        self.tokens_computed += sum(lengths)
        return states

    def _buffer(self, tokens: int) -> Tensor:
        """The one output array, grown as needed: [tokens, layers, hidden]."""
        if self._out.shape[0] < tokens:
            shape = (tokens, len(self._capture.layers), self._taps.hidden_size)
            dtype = self._out.dtype
            self._out = torch.empty(0, dtype=dtype)  # free the old one first
            self._out = torch.empty(shape, dtype=dtype)
        return self._out[:tokens]

    def _refuse_outage(self, error: Exception) -> None:
        """Raise SourceUnavailable if not even the prompt computes any more (a lost device, say)."""
        try:
            self._taps.run_prompt()
        except MODEL_ERRORS:
            raise SourceUnavailable(f"the model stopped computing: {one_line(error)}") from error


def _matching(path: Path, identity: StoreIdentity) -> dict[str, str | None]:
    place = find_model(path)
    # A bare config.json would leave the weights beside it out of the comparison.
    model = read_model(place if place.suffix == ".gguf" else place.parent)
    found = expected_match(model, identity.capture)
    different = differences(expected_match(identity.model, identity.capture), found)
    if different:
        raise IdentityMismatch(
            f"a model other than the store's: {'; '.join(different)}",
            place=str(path),
            remedy=f"give the model that the store was created for, {identity.model.id}",
        )
    return found


def _refuse_shape(taps: LayerTaps, identity: StoreIdentity, place: str) -> None:
    for what, found, expected in (
        ("blocks", taps.num_layers, identity.model.num_layers),
        ("values a row", taps.hidden_size, identity.model.hidden_size),
    ):
        if found != expected:
            message = f"a model other than the store's: {found} {what}, not {expected}"
            raise IdentityMismatch(message, place=place)


def _refuse_length_dependence(config: Any, place: str) -> None:  # noqa: ANN401
    rope = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    parts = [part for part in (rope, *rope.values()) if isinstance(part, dict)]
    kinds = {part.get("rope_type", part.get("type")) for part in parts}
    if kinds & {"dynamic", "longrope"}:
        raise SourceUnavailable(
            "this model's positions depend on the length of the whole forward pass, "
            "so padding a sample would change its states",
            place=place,
            remedy="leave out --batch-tokens",
        )


def _as_numpy(rows: Tensor) -> NDArray[Any]:
    if rows.dtype == torch.bfloat16:
        return rows.view(torch.int16).numpy().view(np.uint16)
    return rows.numpy()
