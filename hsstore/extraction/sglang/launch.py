"""The launch line of the SGLang server that a store needs, or why there is none."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hsstore.capture.layer_ids import DFLASH, FAMILIES, UnknownLayerIds, engine_ids, family
from hsstore.capture.releases import RELEASES
from hsstore.capture.settings import LAYERS, SPOOL
from hsstore.errors import IdentityMismatch, MalformedInput
from hsstore.model.capture import FINAL, FINAL_PRE
from hsstore.model.identity import StoreIdentity
from hsstore.model.source import differences, expected_match
from hsstore.storage.model_files import CONFIG, HUB_ID, find_model, read_model

# What differs between releases, by the first that has it.
PREFILL_GRAPH_RENAMED = (0, 5, 18)
JSON_OF_THE_RIGHT_REQUEST = (0, 5, 17)
JSON_LAYERS = (0, 5, 23)

TRANSFORMERS = "fill this store with --source transformers:PATH"


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: the environment to add, the arguments, and what to know about it."""

    environment: dict[str, str]
    arguments: tuple[str, ...]
    remarks: tuple[str, ...]

    def shell(self) -> str:
        """The line as a shell takes it."""
        set_first = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*set_first, shlex.join(["python", *self.arguments])])


def launch(
    identity: StoreIdentity,
    release: str,
    *,
    spool: Path | None = None,
    model_path: str | None = None,
    device: str = "cuda",
) -> Launch:
    """How a server of an SGLang release is launched for a store.

    With ``spool``, for the capture plugin; without, for states by JSON. ``model_path`` is where
    the server finds the model, by default the hub id that the store knows it by; a folder of this
    machine must hold the store's model. Raises MalformedInput where SGLang cannot give these
    layers so, IdentityMismatch where the model is another.
    """
    if release not in RELEASES:
        raise MalformedInput(
            f"SGLang {release} was never run with this hsstore",
            remedy=f"use one of {', '.join(RELEASES)}",
        )
    if FINAL_PRE in identity.capture.layers:
        raise MalformedInput(
            f"SGLang gives the last state after the final norm only, no {FINAL_PRE!r}",
            remedy=TRANSFORMERS,
        )
    _refuse_other_model(identity, model_path)
    architecture = _architecture(identity, model_path)
    if spool is None:
        flags = _json_flags(identity, release, architecture)
    else:
        _engine_ids(identity, architecture)
        flags = _spool_flags(release, device)
    model = ["--model-path", model_path or _hub_id(identity)]
    if model_path is None and identity.model.revision is not None:
        model += ["--revision", identity.model.revision]
    dtype = ["--dtype", identity.capture.dtype]
    place = ["--device", device]
    place += ["--attention-backend", "torch_native"] if device == "cpu" else []
    return Launch(
        _environment(identity, spool, device),
        ("-m", "sglang.launch_server", *model, *dtype, *place, *flags),
        tuple(_remarks(release, spool)),
    )


def _environment(identity: StoreIdentity, spool: Path | None, device: str) -> dict[str, str]:
    found = {"SGLANG_USE_CPU_ENGINE": "1"} if device == "cpu" else {}
    if spool is not None:
        # The server may be started from anywhere.
        found |= {SPOOL: str(spool.absolute()), LAYERS: identity.capture.layers_text()}
    return found


def _spool_flags(release: str, device: str) -> list[str]:
    """A replayed graph skips the plugin's hooks, which only CUDA has."""
    if device != "cuda":
        return []
    renamed = _numbers(release) >= PREFILL_GRAPH_RENAMED
    return ["--disable-prefill-cuda-graph" if renamed else "--disable-piecewise-cuda-graph"]


def _json_flags(identity: StoreIdentity, release: str, architecture: str | None) -> list[str]:
    layers = identity.capture.layers
    if _numbers(release) < JSON_OF_THE_RIGHT_REQUEST:
        raise MalformedInput(
            f"SGLang {release} can return another request's rows by JSON",
            remedy="give --spool DIR, or a release from 0.5.17 on",
        )
    common = ["--enable-return-hidden-states", "--chunked-prefill-size", "-1"]
    if layers == (FINAL,):
        return common
    if FINAL in layers:
        raise MalformedInput(
            f"by JSON SGLang gives either 'final' or numbered layers, and this store has "
            f"{identity.capture.layers_text()}",
            remedy="give --spool DIR",
        )
    if _numbers(release) < JSON_LAYERS:
        raise MalformedInput(
            f"SGLang {release} gives no numbered layers by JSON",
            remedy="give --spool DIR, or a release from 0.5.23 on",
        )
    ids = _engine_ids(identity, architecture)
    convention = "DFLASH" if DFLASH in family(str(architecture)).setters else "EAGLE3"
    aux = ["--enable-return-aux-hidden-states", "--speculative-algorithm", convention]
    return [*common, *aux, "--return-aux-hidden-state-layer-ids", *map(str, ids)]


def _engine_ids(identity: StoreIdentity, architecture: str | None) -> tuple[int, ...]:
    numbered = [layer for layer in identity.capture.layers if isinstance(layer, int)]
    if architecture is None:
        raise MalformedInput(
            f"the layer ids of model type {identity.model.model_type!r} in SGLang are not known",
            remedy=f"give --model-path, whose config names the architecture, or {TRANSFORMERS}",
        )
    try:
        return engine_ids(architecture, numbered, identity.model.num_layers)
    except UnknownLayerIds as error:
        raise MalformedInput(str(error), remedy=TRANSFORMERS) from None


def _architecture(identity: StoreIdentity, model_path: str | None) -> str | None:
    """SGLang's class: the one that the config names, else the one known for the model type."""
    if model_path is not None and Path(model_path).is_dir():
        place = find_model(model_path)
        named = json.loads(place.read_bytes()).get("architectures") if place.name == CONFIG else ()
        if named:
            return str(named[0])
    known = [
        name for name, each in FAMILIES.items() if each.model_type == identity.model.model_type
    ]
    return known[0] if len(known) == 1 else None


def _refuse_other_model(identity: StoreIdentity, model_path: str | None) -> None:
    if model_path is None or not Path(model_path).exists():
        return
    own = expected_match(identity.model, identity.capture)
    different = differences(own, expected_match(read_model(model_path), identity.capture))
    if different:
        raise IdentityMismatch(
            f"a model other than the store's: {'; '.join(different)}",
            place=model_path,
            remedy=f"give the model that the store was created for, {identity.model.id}",
        )


def _hub_id(identity: StoreIdentity) -> str:
    if not HUB_ID.fullmatch(identity.model.id):
        raise MalformedInput(
            f"the store knows its model as {identity.model.id!r}, which is no path",
            remedy="give --model-path, as the server's machine sees it",
        )
    return identity.model.id


def _remarks(release: str, spool: Path | None) -> Iterator[str]:
    yield f"for SGLang {release}; add what the machine needs (--tp, --port, memory)"
    if spool is None:
        yield "add no --skip-server-warmup or --pp-size; prompts must not be cut into chunks"
    else:
        yield "hsstore must be installed beside SGLang: pip install --no-deps PATH_OF_ITS_CHECKOUT"
        yield "server and client must see the spool folder under paths of their own; tmpfs is best"


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))
