"""What a server says about itself, by a whitelist: its answers also hold keys and command lines."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import xxhash

from hsstore.errors import IdentityMismatch

DTYPES = {"float": "float32", "half": "float16"}


@dataclass(frozen=True, slots=True)
class Facts:
    """One launch of a server: what ``/model_info`` and ``/server_info`` say of it.

    ``boot`` is a digest that no other launch has; None in a member says that the release does not
    tell it. ``dtype`` is in our spelling; ``chunked_prefill_size`` is in tokens, -1 for off;
    ``aux_layer_ids`` are in the server's counting.
    """

    release: str
    boot: str
    model_path: str
    tokenizer_path: str | None
    model_type: str | None
    architectures: tuple[str, ...]
    weight_version: str | None
    load_format: str | None
    revision: str | None
    dtype: str | None
    quantization: str | None
    kv_cache_dtype: str | None
    tp_size: int
    pp_size: int
    dp_size: int
    attention_dp: bool
    attention_backend: str | None
    device: str | None
    chunked_prefill_size: int | None
    radix_cache: bool
    allow_auto_truncate: bool
    max_req_input_len: int
    max_total_tokens: int | None
    max_running_requests: int | None
    max_queued_requests: int | None
    return_hidden_states: bool
    return_aux_hidden_states: bool
    aux_layer_ids: tuple[int, ...] | None

    @property
    def longest_prompt(self) -> int:
        """The most tokens of a prompt that it takes: 400 above."""
        return self.max_req_input_len - 1


def read_facts(model_info: object, server_info: object, place: str) -> Facts:
    """The facts in the two answers of the server at ``place``.

    Raises IdentityMismatch where they are not what an SGLang server says.
    """
    if not isinstance(model_info, dict) or not isinstance(server_info, dict):
        raise not_sglang(place, "its /model_info or /server_info is no JSON object")
    try:
        return _facts(_Told(model_info), _Told(server_info))
    except (KeyError, TypeError) as error:
        raise not_sglang(place, f"its answers do not tell {error.args[0]}") from None


def not_sglang(place: str, why: str) -> IdentityMismatch:
    """The error for something else that answers at ``place``."""
    return IdentityMismatch(
        f"what answers here is no SGLang server: {why}",
        place=place,
        remedy="give --server the URL of the server that `hsstore server-flags STORE` launches",
    )


def _facts(model: "_Told", server: "_Told") -> Facts:
    dtype = server.text("dtype")
    return Facts(
        release=server.needed_text("version"),
        boot=_boot(server),
        model_path=model.needed_text("model_path"),
        tokenizer_path=model.text("tokenizer_path"),
        model_type=model.text("model_type"),
        architectures=tuple(map(str, model.members("architectures"))),
        weight_version=model.text("weight_version"),
        load_format=model.text("load_format") or server.text("load_format"),
        revision=server.text("revision"),
        dtype=DTYPES.get(dtype or "", dtype),
        quantization=server.text("quantization"),
        kv_cache_dtype=server.text("kv_cache_dtype"),
        tp_size=server.number("tp_size") or 1,
        pp_size=server.number("pp_size") or 1,
        dp_size=server.number("dp_size") or 1,
        attention_dp=server.flag("enable_dp_attention"),
        attention_backend=server.text("attention_backend"),
        device=server.text("device"),
        chunked_prefill_size=server.number("chunked_prefill_size"),
        radix_cache=not server.flag("disable_radix_cache"),
        allow_auto_truncate=server.flag("allow_auto_truncate"),
        max_req_input_len=server.needed_number("max_req_input_len"),
        max_total_tokens=server.number("max_total_num_tokens"),
        max_running_requests=server.number("max_running_requests"),
        max_queued_requests=server.number("max_queued_requests"),
        return_hidden_states=server.flag("enable_return_hidden_states"),
        return_aux_hidden_states=server.flag("enable_return_aux_hidden_states"),
        aux_layer_ids=server.numbers("return_aux_hidden_state_layer_ids"),
    )


def _boot(server: "_Told") -> str:
    """A digest over what is drawn or measured anew at every launch."""
    launch = [server.whatever("random_seed"), server.whatever("startup_time")]
    # The ranks' states come in the order in which the ranks answered.
    ranks = sorted(
        repr([state.get("random_seed"), state.get("startup_time")])
        for state in server.members("internal_states")
        if isinstance(state, dict)
    )
    return xxhash.xxh3_128_hexdigest(repr([launch, ranks]).encode())


class _Told:
    """The members of an answer, by their kind; TypeError with the name of one of another kind."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self._answer = answer

    def needed_text(self, name: str) -> str:
        return str(self._of_kind(name, str, needed=True))

    def text(self, name: str) -> str | None:
        value = self._of_kind(name, str)
        return None if value is None else str(value)

    def needed_number(self, name: str) -> int:
        return int(self._of_kind(name, int, needed=True))

    def number(self, name: str) -> int | None:
        value = self._of_kind(name, int)
        return None if value is None else int(value)

    def flag(self, name: str) -> bool:
        return bool(self._of_kind(name, bool))

    def members(self, name: str) -> list[Any]:
        return list(self._of_kind(name, list) or ())

    def numbers(self, name: str) -> tuple[int, ...] | None:
        listed = self._of_kind(name, list)
        return None if listed is None else tuple(map(int, listed))

    def whatever(self, name: str) -> object:
        return self._answer.get(name)

    def _of_kind(self, name: str, kind: type, *, needed: bool = False) -> Any:  # noqa: ANN401
        value = self._answer.get(name)
        if value is None and not needed:
            return None
        if not isinstance(value, kind):
            raise TypeError(name)
        return value
