"""Which way a store's states can come from a server, and what that demands of the request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hsstore.capture.layer_ids import counts_block_outputs
from hsstore.errors import MalformedInput
from hsstore.model.capture import FINAL, FINAL_PRE, Capture

ENGINE = "sglang"

Transport = Literal["json", "spool"]

Ask = Callable[[NDArray[np.int32]], NDArray[Any]]
"""The states [tokens, layers, hidden] of one prompt, int32 [tokens], as the store keeps them."""


@dataclass(frozen=True, slots=True)
class JsonKind:
    """What the rows of a JSON reply are: the final state (no ids), or auxiliary layers.

    ``layer_ids`` are SGLang's, ascending, which is the order of the layers in a row.
    """

    layer_ids: tuple[int, ...] | None


def choose_transport(capture: Capture, *, spool: bool) -> Transport:
    """The transport for a store's layers; MalformedInput where no server gives them that way."""
    if FINAL_PRE in capture.layers:
        raise MalformedInput(
            f"SGLang gives no {FINAL_PRE!r}: its last state comes after the final norm",
            remedy="use --source transformers:PATH for this store",
        )
    if not spool and FINAL in capture.layers and len(capture.layers) > 1:
        raise MalformedInput(
            f"the layers {capture.layers_text()} cannot come by JSON, which carries "
            f"either {FINAL!r} alone or numbered layers alone",
            remedy="give --spool DIR, with a server launched as `hsstore server-flags STORE` says",
        )
    return "spool" if spool else "json"


def json_kind(capture: Capture, model_type: str) -> JsonKind:
    """What a server must be launched to return by JSON for a store's layers.

    SGLang counts block outputs, so our layer k is its k - 1. Raises MalformedInput for the
    embedding, and for a model type of which that is not known.
    """
    if capture.layers == (FINAL,):
        return JsonKind(None)
    if not counts_block_outputs(model_type):
        raise MalformedInput(
            f"SGLang's layer count for model type {model_type!r} is not known here",
            remedy="use --source transformers:PATH for this store",
        )
    if 0 in capture.layers:
        raise MalformedInput(
            "SGLang does not return the embedding, which is layer 0",
            remedy="use --source transformers:PATH for this store",
        )
    return JsonKind(tuple(sorted(int(layer) - 1 for layer in capture.layers)))
