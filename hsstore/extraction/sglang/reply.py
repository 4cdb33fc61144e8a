"""Is this reply what was asked for, whole and of finite values? Only then are its rows believed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from hsstore.extraction.sglang.outcome import AttemptFailed
from hsstore.model.identity import StoreIdentity
from hsstore.storage.codec import stored_dtype
from hsstore.storage.fill import is_finite

LOW_HALF = 0xFFFF


@dataclass(frozen=True, slots=True)
class Expected:
    """What a reply must be: of request ``rid`` with ``tokens`` tokens, and of these weights."""

    rid: str
    tokens: int
    weight_version: str | None


@dataclass(frozen=True, slots=True)
class Rows:
    """A store's rows, [layers, hidden] in ``dtype``.

    ``order`` has for each of its layers the place at which a JSON row holds it.
    """

    layers: int
    hidden_size: int
    dtype: str
    order: tuple[int, ...]

    @classmethod
    def of(cls, identity: StoreIdentity) -> "Rows":
        """The rows of a store; a server's layers come in the order of the model."""
        layers = identity.capture.layers
        ascending = sorted(layers, key=lambda layer: (isinstance(layer, str), layer))
        order = tuple(ascending.index(layer) for layer in layers)
        return cls(len(layers), identity.model.hidden_size, identity.capture.dtype, order)


def checked_meta(body: bytes | bytearray, expected: Expected) -> Mapping[str, Any]:
    """The ``meta_info`` of a reply with status 200 that is an accountable answer to a request.

    Raises AttemptFailed with what is wrong otherwise.
    """
    try:
        answer = orjson.loads(body)
        meta: Mapping[str, Any] = answer["meta_info"]
        problem = _problem(meta, expected)
    except (ValueError, TypeError, KeyError, AttributeError):
        raise AttemptFailed("wrong-reply", "the reply is no answer to /generate") from None
    if problem:
        raise problem
    return meta


def _problem(meta: Mapping[str, Any], expected: Expected) -> AttemptFailed | None:
    finish = meta["finish_reason"]
    if finish["type"] == "abort":
        said = str(finish.get("message") or "no reason given")[:200]
        return AttemptFailed("aborted", f"the server aborted it: {said}")
    found = {
        "finish_reason": finish["type"],
        "id": meta["id"],
        "prompt_tokens": meta["prompt_tokens"],
        "cached_tokens": meta["cached_tokens"],
        "num_retractions": meta.get("num_retractions", 0),
        "weight versions": _versions(meta, expected),
    }
    wanted = {
        "finish_reason": "length",
        "id": expected.rid,
        "prompt_tokens": expected.tokens,
        "cached_tokens": 0,
        "num_retractions": 0,
        "weight versions": {expected.weight_version},
    }
    different = [f"{n} is {found[n]!r}, not {wanted[n]!r}" for n in wanted if found[n] != wanted[n]]
    return AttemptFailed("wrong-reply", "; ".join(different)) if different else None


def _versions(meta: Mapping[str, Any], expected: Expected) -> set[str | None]:
    """All weight versions that a reply names; older releases name one, or none."""
    named = {each["version"] for each in meta.get("weight_versions") or ()}
    return named | {meta.get("weight_version", expected.weight_version)}


def json_states(body: bytes | bytearray, expected: Expected, rows: Rows) -> NDArray[Any]:
    """The states [tokens, layers, hidden] of a JSON reply in the dtype that a store keeps.

    Raises AttemptFailed where the reply is not whole, or not of these rows.
    """
    hidden = checked_meta(body, expected).get("hidden_states")
    width = rows.layers * rows.hidden_size
    try:
        values = _table(hidden[0] if hidden else [], expected.tokens, width)
    except (TypeError, ValueError, KeyError):
        raise AttemptFailed("wrong-shape", "the hidden states are no table of numbers") from None
    states = _as_stored(values, rows.dtype).reshape(-1, rows.layers, rows.hidden_size)
    if list(rows.order) != sorted(rows.order):
        states = np.ascontiguousarray(states[:, rows.order])
    refuse_non_finite(states)
    return states


def _table(prefill: list[Any], tokens: int, width: int) -> NDArray[np.float32]:
    """The rows as an array; one at a time takes half the time of all at once."""
    widths = {len(row) if isinstance(row, list) else 0 for row in prefill}
    if len(prefill) != tokens or widths != {width}:
        found = f"{len(prefill)} rows of {' or '.join(map(str, sorted(widths))) or 'no'} values"
        problem = f"the hidden states are {found}, not {tokens} rows of {width}"
        raise AttemptFailed("wrong-shape", problem)
    values = np.empty((tokens, width), np.float32)
    for into, row in zip(values, prefill, strict=True):
        into[:] = row
    return values


def refuse_non_finite(states: NDArray[Any]) -> None:
    """Raise AttemptFailed where not every value is finite; JSON spells those null."""
    if not is_finite(states):
        raise AttemptFailed("non-finite", "the states hold values that are not finite")


def _as_stored(values: NDArray[np.float32], dtype: str) -> NDArray[Any]:
    """The same numbers in the stored dtype, exactly."""
    if dtype == "bfloat16":
        bits = values.view(np.uint32)
        if (bits & LOW_HALF).any():
            raise wrong_dtype(dtype)
        return (bits >> np.uint32(16)).astype(stored_dtype(dtype))
    stored = values.astype(stored_dtype(dtype), copy=False)
    if dtype == "float16" and not np.array_equal(stored, values, equal_nan=True):
        raise wrong_dtype(dtype)
    return stored


def wrong_dtype(dtype: str) -> AttemptFailed:
    """The failure of a reply with values that ``dtype`` cannot hold."""
    return AttemptFailed("wrong-dtype", f"the states hold values that are no {dtype}")
