"""Which model a path holds: a config.json, a folder with one, or a GGUF file.

Nothing here loads a model. The digests follow from file contents alone, never from names or
places, so a store and the source that fills it come to the same ones.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import xxhash

from hsstore.errors import MalformedInput
from hsstore.model.capture import ITEMSIZE, ModelIdentity
from hsstore.storage.gguf_header import read_header

MODELS = "model folder, its config.json or a GGUF file"
CONFIG = "config.json"
CONFIG_BYTES = 64 << 20
DIMENSION_LIMIT = 2**31
# What differs between copies of one model, or with the tool that saved it.
VOLATILE = {"_name_or_path", "transformers_version", "torch_dtype", "dtype", "use_cache"}
DIMENSIONS = {
    "num_layers": ("num_hidden_layers", "n_layer"),
    "hidden_size": ("hidden_size", "n_embd"),
    "vocab_size": ("vocab_size",),
}
GGUF_DIMENSIONS = {
    "num_layers": ("block_count",),
    "hidden_size": ("embedding_length",),
    "vocab_size": ("vocab_size",),
}
DTYPES = ("dtype", "torch_dtype")
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tiktoken.model", "spiece.model", "vocab.json")
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
HUB_CACHE = re.compile(r"models--(.+?)--(.+)")
HUB_COMMIT = re.compile(r"[0-9a-f]{40}")
FINGERPRINT_BLOCK = 64 << 10
FINGERPRINT_BLOCKS = 64
# llama.cpp's names of general.file_type.
GGUF_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K",
    11: "Q3_K_S", 12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S",
    17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS",
    23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M",
    30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip


def read_model(path: str | os.PathLike[str], revision: str | None = None) -> ModelIdentity:
    """The identity of the model at a path.

    ``revision`` is by default the commit that a hub cache has in its paths. A bare config.json
    leaves the digests of weights and tokenizer open (None). Raises
    MalformedInput where the path holds no model, or one whose dimensions are not told.
    """
    place = find_model(path)
    revision = _revision(place, revision)
    if place.suffix == ".gguf":
        return _gguf_identity(place, revision)
    config = _read_config(place)
    text = _text_config(config)
    folder = place.parent if Path(path).is_dir() else None
    return ModelIdentity(
        id=_identifier(config, place.absolute().parent),
        revision=revision,
        quantisation=_quantisation(config),
        model_type=str(text.get("model_type") or config.get("model_type") or "unknown"),
        config_digest=config_digest(config),
        weights_digest=weights_digest(weight_files(folder)) if folder else None,
        tokenizer_digest=_tokenizer_digest(folder) if folder else None,
        **_dimensions(text, DIMENSIONS, place),
    )


def read_dtype(path: str | os.PathLike[str]) -> str:
    """The dtype that a model's config says its states have.

    Raises MalformedInput where it says none, or one that a store cannot hold.
    """
    place = find_model(path)
    config = {} if place.suffix == ".gguf" else _read_config(place)
    said = [part.get(name) for part in (_text_config(config), config) for name in DTYPES]
    dtype = str(next(filter(None, said), "")).removeprefix("torch.")
    if dtype not in ITEMSIZE:
        problem = f"is of dtype {dtype!r}" if dtype else "does not say its dtype"
        raise MalformedInput(
            f"the model {problem}", place=str(place), remedy=f"give --dtype: {', '.join(ITEMSIZE)}"
        )
    return dtype


def find_model(path: str | os.PathLike[str]) -> Path:
    """The config.json or GGUF file that a path means; MalformedInput where there is none."""
    place = Path(os.path.normpath(path))
    if place.is_file():
        return place
    if not place.is_dir():
        raise MalformedInput("no such model", place=str(path), remedy=f"name a {MODELS}")
    if (place / CONFIG).is_file():
        return place / CONFIG
    found = sorted(place.glob("*.gguf"))
    if len(found) == 1:
        return found[0]
    raise MalformedInput(
        f"the folder holds no {CONFIG} and {len(found) or 'no'} GGUF files",
        place=str(path),
        remedy="name the file" if found else f"name a {MODELS}",
    )


def config_digest(config: Mapping[str, Any]) -> str:
    """The xxh3_128 of a config without its volatile members, in canonical JSON."""
    return _digest(_lasting(config))


def weights_digest(files: list[Path]) -> str | None:
    """A fingerprint of weights: sizes and 66 blocks of 64 KiB a file; None without files.

    Renaming the files keeps it, another training run changes it. It is no proof of every byte:
    the weights of a large model take longer to read than they are worth here.
    """
    if not files:
        return None
    return xxhash.xxh3_128_hexdigest(b"".join(sorted(map(_fingerprint, files))))


def weight_files(folder: Path) -> list[Path]:
    """The weight files that transformers would load: safetensors before pickles."""
    return next((found for found in (sorted(folder.glob(p)) for p in WEIGHTS) if found), [])


def _gguf_identity(place: Path, revision: str | None) -> ModelIdentity:
    fields = read_header(place)
    kind = str(fields.get("general.architecture", "unknown"))
    own = _below(f"{kind}.", fields)
    tokenizer = _below("tokenizer.ggml.", fields)
    vocabulary = {"vocab_size": len(tokenizer.get("tokens", ()))}
    file_type: Any = fields.get("general.file_type")
    return ModelIdentity(
        id=place.stem,
        revision=revision,
        quantisation=f"gguf:{GGUF_TYPES.get(file_type, file_type)}",
        model_type=kind,
        config_digest=_digest({**own, "architecture": kind}),
        weights_digest=weights_digest([place]),
        tokenizer_digest=_digest(tokenizer) if tokenizer else None,
        **_dimensions(vocabulary | own, GGUF_DIMENSIONS, place),
    )


def _revision(place: Path, said: str | None) -> str | None:
    """What is said, or the commit of a hub cache: ``.../snapshots/<40 hex digits>/config.json``."""
    folder = place.absolute().parent
    if folder.parent.name != "snapshots" or not HUB_COMMIT.fullmatch(folder.name):
        return said
    if said not in (None, folder.name):
        raise MalformedInput(
            f"the model is of revision {folder.name}, not {said}",
            place=str(place),
            remedy="leave out --revision, or give the model of that one",
        )
    return folder.name


def _below(prefix: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    return {n.removeprefix(prefix): value for n, value in fields.items() if n.startswith(prefix)}


def _read_config(place: Path) -> dict[str, Any]:
    if place.stat().st_size > CONFIG_BYTES:
        raise MalformedInput("too large for a model config", place=str(place))
    try:
        config = json.loads(place.read_bytes())
    except (ValueError, RecursionError) as error:
        raise MalformedInput(f"not a JSON model config: {error}", place=str(place)) from None
    if not isinstance(config, dict):
        raise MalformedInput("the model config is not a JSON object", place=str(place))
    return config


def _text_config(config: dict[str, Any]) -> dict[str, Any]:
    """The part about the language model: multimodal configs nest it."""
    nested = config.get("text_config")
    return nested if isinstance(nested, dict) else config


def _dimensions(
    config: Mapping[str, Any], names: Mapping[str, tuple[str, ...]], place: Path
) -> dict[str, int]:
    found = {}
    for dimension, spellings in names.items():
        values = [config[name] for name in spellings if name in config]
        if not values or type(values[0]) is not int or not 1 <= values[0] < DIMENSION_LIMIT:
            raise MalformedInput(
                f"the model config tells no {spellings[0]} (a positive integer)", place=str(place)
            )
        found[dimension] = values[0]
    return found


def _identifier(config: Mapping[str, Any], folder: Path) -> str:
    """A hub id where one is known, else the folder's name."""
    named = str(config.get("_name_or_path") or "")
    if HUB_ID.fullmatch(named):
        return named
    cached = HUB_CACHE.fullmatch(folder.parent.parent.name)
    return f"{cached[1]}/{cached[2]}" if cached else folder.name or "model"


def _quantisation(config: dict[str, Any]) -> str | None:
    """The method, and 8 digits that tell its settings apart."""
    found = config.get("quantization_config") or _text_config(config).get("quantization_config")
    if not isinstance(found, dict):
        return None
    return f"{found.get('quant_method', 'unknown')}:{_digest(found)[:8]}"


def _tokenizer_digest(folder: Path) -> str | None:
    for name in TOKENIZERS:
        if (folder / name).is_file():
            return xxhash.xxh3_128_hexdigest((folder / name).read_bytes())
    return None


def _fingerprint(file: Path) -> bytes:
    if not file.is_file():
        raise MalformedInput("a weights file is missing or a dead link", place=str(file))
    size = file.stat().st_size
    last = max(size - FINGERPRINT_BLOCK, 0)
    hasher = xxhash.xxh3_128(size.to_bytes(8, "little"))
    with file.open("rb") as opened:
        for n in range(FINGERPRINT_BLOCKS + 2):
            opened.seek(last * n // (FINGERPRINT_BLOCKS + 1))
            hasher.update(opened.read(FINGERPRINT_BLOCK))
    return hasher.digest()


def _lasting(value: object) -> object:
    if isinstance(value, Mapping):
        return {name: _lasting(item) for name, item in value.items() if name not in VOLATILE}
    return [_lasting(item) for item in value] if isinstance(value, list) else value


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return xxhash.xxh3_128_hexdigest(text.encode())
