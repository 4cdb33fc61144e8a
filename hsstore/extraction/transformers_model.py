"""Loading a decoder with transformers: from this machine only, quietly, and whole or not at all."""

import contextlib
import importlib
import io
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from hsstore.errors import SourceUnavailable
from hsstore.extraction.layer_taps import one_line
from hsstore.storage.model_files import find_model

# What transformers raises for a model that it cannot load; torch asserts that a device exists.
LOAD_ERRORS = (
    OSError, ValueError, RuntimeError, LookupError, ImportError, TypeError, AssertionError,
)  # fmt: skip


def require_transformers() -> ModuleType:
    """The package transformers; SourceUnavailable with the remedy where it is not installed."""
    try:
        return importlib.import_module("transformers")
    except ImportError as error:
        raise SourceUnavailable(
            f"the transformers package cannot be imported ({error})",
            remedy="install it: pip install 'hsstore[transformers]'",
        ) from None


def load_decoder(path: Path, dtype: str, device: str, *, attention: str | None = None) -> nn.Module:
    """The decoder of the model at ``path``, without its language-model head, ready to compute.

    ``path`` is a folder with a config.json and its weights, a GGUF file, or a folder with one GGUF
    file (MalformedInput for anything else). Every weight must come from there: a weight that is
    missing raises SourceUnavailable, as transformers itself would fill it with random numbers.
    GGUF weights are dequantised to ``dtype``. ``attention`` is transformers' name of another
    implementation than the model's own choice.
    """
    transformers = require_transformers()
    place = str(path)
    folder, options = _location(path)
    if "gguf_file" in options and hasattr(transformers, "GgufConfig"):
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    options |= {"dtype": getattr(torch, dtype), "local_files_only": True}
    options |= {"attn_implementation": attention} if attention else {}
    # Nothing that comes with a model runs: no module of its folder, no object of a pickle.
    options |= {"trust_remote_code": False, "weights_only": True}
    safetensors = importlib.import_module("safetensors")
    try:
        with quiet(transformers):
            model, info = _load(transformers, folder, options)
            decoder: nn.Module = _without_head(model).eval().to(device)
    except pickle.UnpicklingError as error:
        raise SourceUnavailable(
            "the weights are a pickle with more in it than tensors, which is not run",
            place=place,
            remedy="convert the weights to safetensors",
        ) from error
    except (*LOAD_ERRORS, safetensors.SafetensorError) as error:
        raise SourceUnavailable(
            f"transformers cannot load this model: {one_line(error)}", place=place
        ) from error
    _refuse_unsuitable(decoder, model.config, info, place)
    return decoder


def _location(path: Path) -> tuple[Path, dict[str, Any]]:
    place = find_model(path)
    return place.parent, {"gguf_file": place.name} if place.suffix == ".gguf" else {}


def _load(transformers: ModuleType, folder: Path, options: dict[str, Any]) -> Any:  # noqa: ANN401 - an untyped pair
    loader = transformers.AutoModelForCausalLM
    if "gguf_file" not in options:
        # Left open, transformers asks on stdin whether to run the folder's code.
        config = transformers.AutoConfig.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )
        if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            loader = transformers.AutoModel
    return loader.from_pretrained(folder, output_loading_info=True, **options)


def _without_head(model: Any) -> Any:  # noqa: ANN401 - transformers' own, of many classes
    decoder = model.get_decoder()
    inner = [child for child in decoder.children() if hasattr(child, "get_decoder")]
    # A class that misnames its base model (Llama 4's does) answers with itself, head and all.
    return inner[0] if decoder is model and len(inner) == 1 else decoder


def _refuse_unsuitable(
    decoder: nn.Module,
    config: Any,  # noqa: ANN401 - transformers' own, of many classes
    info: dict[str, Any],
    place: str,
) -> None:
    wanted = set(decoder.state_dict())
    missing = [key for key in sorted(info["missing_keys"]) if _within(key, wanted)]
    mismatched = sorted(str(key) for key in info["mismatched_keys"])
    if missing or mismatched:
        raise SourceUnavailable(
            f"the weights do not fill the model: {len(missing)} missing, {len(mismatched)} of "
            f"another shape, the first {(missing + mismatched)[0]}",
            place=place,
        )
    if getattr(config, "is_encoder_decoder", False):
        raise SourceUnavailable("an encoder-decoder has no single residual stream", place=place)


def _within(key: str, wanted: set[str]) -> bool:
    """Whether a weight named from the top of the model belongs to the decoder inside it."""
    return any(key == name or key.endswith(f".{name}") for name in wanted)


@contextlib.contextmanager
def quiet(transformers: ModuleType) -> Iterator[None]:
    """Nothing of transformers on stderr, and no warnings, while it loads or saves a model."""
    logging = transformers.utils.logging
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        # Progress bars of several libraries write to stderr, not all of which can be switched off.
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
