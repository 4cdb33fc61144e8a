"""The plugin's settings: what a server's launch line says in its environment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

SPOOL = "HSSTORE_SPOOL"
LAYERS = "HSSTORE_LAYERS"
SPOOL_BYTES = "HSSTORE_SPOOL_BYTES"
BOOT = "HSSTORE_BOOT"  # set by the plugin itself, for the processes that the server starts

FINAL = "final"
NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")

Layer = int | str


class Refused(Exception):
    """Why this server captures nothing, in one line."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``layers`` in our naming and in stored order; ``spool_bytes`` is None where it is not set."""

    spool: Path
    layers: tuple[Layer, ...]
    spool_bytes: int | None
    boot: str


def read_settings(environ: Mapping[str, str]) -> Settings:
    """The settings in an environment; Refused where a value is missing or means nothing."""
    return Settings(
        spool=spool_folder(environ),
        layers=_layers(environ.get(LAYERS, "")),
        spool_bytes=_spool_bytes(environ.get(SPOOL_BYTES)),
        boot=environ[BOOT],
    )


def spool_folder(environ: Mapping[str, str]) -> Path:
    """The spool folder; Refused where it is no absolute path: processes may differ in theirs."""
    folder = Path(environ[SPOOL])
    if not folder.is_absolute():
        raise Refused(f"{SPOOL} is no absolute path: {environ[SPOOL]!r}")
    return folder


def _layers(typed: str) -> tuple[Layer, ...]:
    if not typed.strip():
        raise Refused(f"{LAYERS} is not set: say which layers to capture, such as 2,18,33,final")
    layers = tuple(_layer(word.strip()) for word in typed.split(","))
    if len(set(layers)) != len(layers):
        raise Refused(f"{LAYERS} lists a layer twice: {typed!r}")
    return layers


def _layer(word: str) -> Layer:
    if word == FINAL:
        return FINAL
    if word == "final:pre":
        raise Refused("SGLang gives the final state after the final norm only, no 'final:pre'")
    if not NUMBER.fullmatch(word):
        raise Refused(f"{LAYERS}: {word!r} is neither a number of blocks nor 'final'")
    return int(word)


def _spool_bytes(typed: str | None) -> int | None:
    if typed is None:
        return None
    if not (typed.isascii() and typed.isdecimal()):
        raise Refused(f"{SPOOL_BYTES} is no number of bytes: {typed!r}")
    if int(typed) <= 0:
        raise Refused(f"{SPOOL_BYTES} leaves no room: {typed!r}")
    return int(typed)
