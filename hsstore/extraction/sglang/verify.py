"""Is this the server that the store needs? Asked before its first answer and after every outage."""

import re
from collections.abc import Iterator
from pathlib import Path

from hsstore.errors import IdentityMismatch, MalformedInput
from hsstore.extraction.sglang.facts import Facts
from hsstore.extraction.sglang.transport import JsonKind, Transport, json_kind
from hsstore.model.capture import ModelIdentity
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import differences, expected_match
from hsstore.storage.model_files import HUB_ID, read_model

OLDEST_FOR_JSON = (0, 5, 17)
# Keys and values of 8 and 4 bits, which attention may read back in the same forward pass.
ROUNDING_CACHES = ("fp8", "fp4", "int8", "int4", "mxfp", "nvfp4")
RELEASE = re.compile(r"(\d+)\.(\d+)\.(\d+)", re.ASCII)
SERVER_FLAGS = "launch it as `hsstore server-flags STORE` says"


def refuse_unfit(facts: Facts, identity: StoreIdentity, transport: Transport, place: str) -> None:
    """Raise IdentityMismatch with all that keeps a server from serving a store.

    The error names what must be done about it, as far as that differs from the launch line.
    """
    problems = list(_model_problems(facts, identity))
    remedy = f"give the URL of a server of {identity.model.id}: {SERVER_FLAGS}"
    if not problems:
        remedy = SERVER_FLAGS
        problems = list(_launch_problems(facts))
        if transport == "json":
            kind = json_kind(identity.capture, identity.model.model_type)
            problems += _json_problems(facts, kind)
    if problems:
        raise IdentityMismatch(
            f"this server cannot fill the store: {'; '.join(problems)}", place=place, remedy=remedy
        )


def server_match(facts: Facts, identity: StoreIdentity) -> dict[str, str | None]:
    """The ``match`` part of a server's origin; what cannot be told from here is None.

    Weights can be told only where the server's model path is a folder on this machine too.
    """
    match: dict[str, str | None] = dict.fromkeys(expected_match(identity.model, identity.capture))
    if (local := _local_model(facts.model_path)) is not None:
        match = expected_match(local, identity.capture)
    else:
        match |= {"revision": facts.revision, "quantisation": facts.quantization}
    return match | {"dtype": facts.dtype, "layers": identity.capture.layers_text()}


def _model_problems(facts: Facts, identity: StoreIdentity) -> Iterator[str]:
    model = identity.model
    if facts.model_type is not None and facts.model_type != model.model_type:
        yield f"its model is of type {facts.model_type}, not {model.model_type}"
    if _is_other_hub_model(facts.model_path, model.id):
        yield f"its model is {facts.model_path}, not {model.id}"
    if facts.dtype != identity.capture.dtype:
        yield f"it computes in {facts.dtype}, not {identity.capture.dtype}"
    expected = expected_match(model, identity.capture)
    found = server_match(facts, identity)
    # Files of unquantised weights do not tell that the server quantises them as it loads them.
    if facts.quantization and not model.quantisation:
        yield f"it quantises the weights as {facts.quantization}, the store's are not quantised"
        found["quantisation"] = None
    found["dtype"] = None
    yield from differences(expected, found)


def _is_other_hub_model(path: str, model: str) -> bool:
    """Whether both are hub ids, which ignore case, and of two models."""
    is_hub = HUB_ID.fullmatch(path) and HUB_ID.fullmatch(model)
    return bool(is_hub) and path.casefold() != model.casefold()


def _launch_problems(facts: Facts) -> Iterator[str]:
    if facts.load_format == "dummy":
        yield "its weights are random (--load-format dummy)"
    if (facts.kv_cache_dtype or "").startswith(ROUNDING_CACHES):
        yield f"its KV cache rounds what later tokens see (--kv-cache-dtype {facts.kv_cache_dtype})"
    if facts.allow_auto_truncate:
        yield "it would truncate long prompts silently (--allow-auto-truncate)"
    if facts.pp_size > 1:
        yield f"it runs with pipeline parallelism ({facts.pp_size} stages)"
    if facts.attention_dp:
        yield "it runs with data-parallel attention"


def _json_problems(facts: Facts, kind: JsonKind) -> Iterator[str]:
    if (release := release_of(facts)) is None or release < OLDEST_FOR_JSON:
        yield (
            f"SGLang {facts.release} can return another request's rows by JSON, and 0.5.17 is the "
            "oldest that does not: use a newer one or --spool"
        )
    if not facts.return_hidden_states:
        yield "it returns no hidden states (--enable-return-hidden-states is missing)"
    if facts.chunked_prefill_size != -1:
        yield (
            f"it returns the last chunk of a prompt only (--chunked-prefill-size is "
            f"{facts.chunked_prefill_size}, not -1)"
        )
    if facts.return_aux_hidden_states != (kind.layer_ids is not None):
        wanted, got = "auxiliary layers", "the final state"
        if kind.layer_ids is None:
            wanted, got = got, wanted
        yield f"it returns {got}, and the store needs {wanted}"
    elif kind.layer_ids is not None and kind.layer_ids != tuple(sorted(facts.aux_layer_ids or ())):
        yield (
            f"it returns the layers with SGLang's ids {_listed(facts.aux_layer_ids)}, and the "
            f"store needs {_listed(kind.layer_ids)}"
        )


def release_of(facts: Facts) -> tuple[int, int, int] | None:
    """The release as numbers; None for a version that is not spelled like one."""
    found = RELEASE.match(facts.release)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def _local_model(path: str) -> ModelIdentity | None:
    """The identity of the files that the server names, where they are files of this machine."""
    place = Path(path)
    if not place.is_absolute() or not place.exists():
        return None
    try:
        return read_model(place)
    except (MalformedInput, OSError):
        return None


def _listed(ids: tuple[int, ...] | None) -> str:
    return "none" if ids is None else " ".join(map(str, ids))
