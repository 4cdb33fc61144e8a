"""What a store captures, of which model: layers, norm, dtype and the model's identity."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hsstore.capture.layer_ids import FAMILIES, counts_block_outputs
from hsstore.errors import MalformedInput
from hsstore.model.document import (
    Check,
    array,
    hexadecimal,
    integer,
    one_of,
    optional,
    record,
    text,
)

FINAL = "final"
FINAL_PRE = "final:pre"
ITEMSIZE = {"bfloat16": 2, "float16": 2, "float32": 4}
CODECS = ("none", "blosc-zstd")
CONVENTIONS = ("specforge", "vllm", "sglang")
LAYER_DIGITS = 9

Layer = int | str


@dataclass(frozen=True, slots=True)
class Capture:
    """The layers of a store, in stored order, and the dtype of every value.

    A layer ``k`` is the residual stream after ``k`` blocks (transformers' ``hidden_states[k]``; 0
    is the embedding); ``"final"`` is the last state after the model's final norm, ``"final:pre"``
    the same state before it.
    """

    layers: tuple[Layer, ...]
    dtype: str

    @property
    def itemsize(self) -> int:
        """Bytes of one value."""
        return ITEMSIZE[self.dtype]

    def layers_text(self) -> str:
        """The layers as they are typed: ``3,31,59,final``."""
        return ",".join(map(str, self.layers))

    def problems(self, model: "ModelIdentity") -> Iterator[str]:
        """What is wrong with it for a model: no layers, unknown ones, one listed twice."""
        if not self.layers:
            yield "capture.layers: empty"
        for layer in sorted({x for x in self.layers if self.layers.count(x) > 1}, key=str):
            yield f"capture.layers: {layer} is listed twice"
        for layer in self.layers:
            if isinstance(layer, int) and layer >= model.num_layers:
                yield f"capture.layers: {layer} of a model with {model.num_layers} blocks"

    def to_document(self) -> dict[str, Any]:
        """The ``capture`` member of hsstore.json."""
        return {"dtype": self.dtype, "layers": list(self.layers)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Capture":
        """The inverse of ``to_document``, for a validated document."""
        return cls(layers=tuple(document["layers"]), dtype=document["dtype"])

    @staticmethod
    def fields() -> Check:
        """What ``to_document`` must look like."""
        layer: Check = lambda value, path: (  # noqa: E731 - one expression, used once
            one_of(FINAL, FINAL_PRE)(value, path)
            if isinstance(value, str)
            else integer()(value, path)
        )
        return record({"dtype": one_of(*ITEMSIZE), "layers": array(layer)})


@dataclass(frozen=True, slots=True)
class ModelIdentity:
    """Which weights a store's states belong to.

    A digest that could not be taken when the store was created (only a config.json was at hand,
    say) is None; the origin of the first committed shard then fixes it.
    """

    id: str
    revision: str | None
    quantisation: str | None
    model_type: str
    num_layers: int
    hidden_size: int
    vocab_size: int
    config_digest: str
    weights_digest: str | None
    tokenizer_digest: str | None

    def to_document(self) -> dict[str, Any]:
        """The ``model`` member of hsstore.json."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ModelIdentity":
        """The inverse of ``to_document``, for a validated document."""
        return cls(**document)

    @staticmethod
    def fields() -> Check:
        """What ``to_document`` must look like."""
        return record(
            {
                "id": text(),
                "revision": optional(text()),
                "quantisation": optional(text()),
                "model_type": text(),
                "num_layers": integer(1),
                "hidden_size": integer(1),
                "vocab_size": integer(1),
                "config_digest": hexadecimal(32),
                "weights_digest": optional(hexadecimal(32)),
                "tokenizer_digest": optional(hexadecimal(32)),
            }
        )


def parse_layers(
    typed: str, num_layers: int, *, convention: str | None = None, model_type: str | None = None
) -> tuple[Layer, ...]:
    """The layers of a comma-separated list, in the canonical "after k blocks" naming.

    ``convention`` names another tool's counting to convert from: ``specforge`` (also ModelOpt's)
    counts block outputs, so its k is our k + 1; ``vllm`` (also speculators') counts as we do;
    ``sglang`` counts block outputs in the model types that ``capture.layer_ids`` lists, and is
    refused where that differs between its releases or is not known. Raises MalformedInput for
    anything unknown, out of range or repeated.
    """
    shift = _shift(convention, model_type)
    layers = [_layer(word.strip(), num_layers, shift) for word in typed.split(",")]
    repeated = {layer for layer in layers if layers.count(layer) > 1}
    if repeated:
        raise MalformedInput(f"layer {min(map(str, repeated))} is listed twice in {typed!r}")
    return tuple(layers)


def _layer(word: str, num_layers: int, shift: int) -> Layer:
    if word in (FINAL, FINAL_PRE):
        return word
    if not (word.isascii() and word.isdecimal() and len(word) <= LAYER_DIGITS):
        raise MalformedInput(
            f"{word[:40]!r} is no layer", remedy="list block counts, 'final' or 'final:pre'"
        )
    layer = int(word) + shift
    if layer == num_layers:
        raise MalformedInput(
            f"layer {layer} is the last of a {num_layers}-block model, "
            "whose norm a number does not tell",
            remedy="say 'final' (after the final norm) or 'final:pre' (before it)",
        )
    if layer > num_layers:
        raise MalformedInput(
            f"layer {layer} does not exist: the model has {num_layers} blocks",
            remedy=f"name layers 0 to {num_layers - 1}, 'final' or 'final:pre'",
        )
    return layer


def _shift(convention: str | None, model_type: str | None) -> int:
    if convention in (None, "vllm"):
        return 0
    if convention == "specforge" or (convention == "sglang" and model_type in SGLANG_BLOCK_OUTPUTS):
        return 1
    if convention == "sglang":
        raise MalformedInput(
            f"SGLang's layer count for model type {model_type!r} is not known here",
            remedy="give the layers as 'after k blocks', without --layer-convention",
        )
    raise MalformedInput(f"unknown layer convention {convention!r}; known: {CONVENTIONS}")


# Whose id k in SGLang is our k + 1.
SGLANG_BLOCK_OUTPUTS = frozenset(
    family.model_type for family in FAMILIES.values() if counts_block_outputs(family.model_type)
)
