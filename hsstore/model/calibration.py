"""calibration/: what one short prompt proved about a server, before states of it were believed."""

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hsstore.errors import InvalidDocument
from hsstore.model.capture import FINAL, FINAL_PRE, Layer
from hsstore.model.document import (
    FORMAT,
    Check,
    Document,
    Problem,
    array,
    hexadecimal,
    integer,
    one_of,
    record,
    text,
)
from hsstore.model.document import validate as validate_document
from hsstore.model.manifest import bits_float, float_bits

KIND = "calibration"
PROJECTIONS = 24
VALUE_DIGITS = 8

Method = Literal["reference", "structure"]
Norm = Literal["post", "pre", "both", "none"]


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a layer was from the reference: worst relative error and cosine of any token."""

    relative_error: float
    cosine: float

    def to_document(self) -> dict[str, Any]:
        """One item of ``agreement``."""
        return {name: float_bits(getattr(self, name)) for name in self.__slots__}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Agreement":
        """The inverse of ``to_document``, for a validated document."""
        return cls(**{name: bits_float(document[name]) for name in cls.__slots__})


@dataclass(frozen=True, slots=True)
class Engine:
    """What answered: its name and release, the transport of its states, its own layer ids.

    ``layers`` are the ids that the engine was given, in the order of the store's layers. A final
    state that has no id there is ``"final"``.
    """

    name: str
    release: str
    transport: str
    layers: tuple[Layer, ...]

    def to_document(self) -> dict[str, Any]:
        """The ``engine`` member."""
        return {**{n: getattr(self, n) for n in self.__slots__}, "layers": list(self.layers)}

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "Engine":
        """The inverse of ``to_document``, for a validated document."""
        return cls(**{**document, "layers": tuple(document["layers"])})


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found, how, with what doubt, and a sketch to compare later answers with.

    ``agreement`` has one item a layer where there was a reference, none otherwise. ``doubt`` says
    in words what could not be told, empty where nothing was left open. ``sketch`` has the
    projections of every row, for each layer one tuple of tokens x PROJECTIONS float32 values.
    """

    store: str
    number: int
    when: str
    method: Method
    engine: Engine
    layers: tuple[Layer, ...]
    norm: Norm
    agreement: tuple[Agreement, ...]
    doubt: str
    input_ids: tuple[int, ...]
    sketch: tuple[tuple[float, ...], ...]

    @property
    def name(self) -> str:
        """In words: who was calibrated, and how."""
        by = f"{self.engine.name} {self.engine.release} by {self.engine.transport}"
        return f"calibration {self.number} ({by}, {self.when})"

    def to_document(self) -> Document:
        """The document without its seal."""
        plain = ("store", "number", "when", "method", "norm", "doubt")
        return {
            "format": FORMAT,
            "kind": KIND,
            **{name: getattr(self, name) for name in plain},
            "engine": self.engine.to_document(),
            "layers": list(self.layers),
            "agreement": [found.to_document() for found in self.agreement],
            "input_ids": list(self.input_ids),
            "projections": PROJECTIONS,
            "sketch": [_packed(values) for values in self.sketch],
        }

    @classmethod
    def from_document(cls, document: Document, *, place: str | None = None) -> "Calibration":
        """The calibration in an unsealed document; InvalidDocument naming all its problems."""
        validate_document(document, FIELDS, place=place)
        plain = ("store", "number", "when", "method", "norm", "doubt")
        found = cls(
            **{name: document[name] for name in plain},
            engine=Engine.from_document(document["engine"]),
            layers=tuple(document["layers"]),
            agreement=tuple(map(Agreement.from_document, document["agreement"])),
            input_ids=tuple(document["input_ids"]),
            sketch=tuple(map(_unpacked, document["sketch"])),
        )
        problems = [*found.problems()]
        if problems:
            raise InvalidDocument("; ".join(map(str, problems)), place=place)
        return found

    def problems(self) -> list[Problem]:
        """Where its members do not fit each other."""
        layers, values = len(self.layers), len(self.input_ids) * PROJECTIONS
        found = []
        if not self.input_ids:
            found.append(Problem("input_ids", "length", "empty"))
        if len(self.engine.layers) != layers:
            found.append(Problem("engine.layers", "length", f"not {layers} items"))
        if len(self.agreement) != (layers if self.method == "reference" else 0):
            found.append(Problem("agreement", "length", "not one item a layer of a reference"))
        if [len(row) for row in self.sketch] != [values] * layers:
            found.append(Problem("sketch", "length", f"not {layers} layers of {values} values"))
        if self.norm != norm_of(self.layers):
            found.append(Problem("norm", "choice", "not what the layers say"))
        return found


def norm_of(layers: tuple[Layer, ...]) -> Norm:
    """On which side of the final norm the final state of these layers is."""
    found: dict[tuple[bool, bool], Norm] = {
        (True, True): "both",
        (True, False): "post",
        (False, True): "pre",
        (False, False): "none",
    }
    return found[FINAL in layers, FINAL_PRE in layers]


def projection_bits(projection: int, hidden_size: int) -> bytes:
    """The signs of one projection: bit h (counted from the lowest of byte 0) set for +1."""
    return hashlib.shake_128(b"hsstore-sketch-%d" % projection).digest(-(-hidden_size // 8))


def _packed(values: tuple[float, ...]) -> str:
    return struct.pack(f">{len(values)}f", *values).hex()


def _unpacked(digits: str) -> tuple[float, ...]:
    raw = bytes.fromhex(digits)
    return struct.unpack(f">{len(raw) // 4}f", raw)


def _values(value: object, path: str) -> list[Problem]:
    digits = len(value) if isinstance(value, str) else 0
    whole = digits - digits % (PROJECTIONS * VALUE_DIGITS)
    return hexadecimal(max(whole, VALUE_DIGITS))(value, path)


def _layer(value: object, path: str) -> list[Problem]:
    return (one_of(FINAL, FINAL_PRE) if isinstance(value, str) else integer())(value, path)


_AGREEMENT: Check = record({"relative_error": hexadecimal(16), "cosine": hexadecimal(16)})
_ENGINE: Check = record(
    {"name": text(), "release": text(), "transport": text(), "layers": array(_layer)}
)
FIELDS: dict[str, Check] = {
    "store": hexadecimal(32),
    "number": integer(),
    "when": text(),
    "method": one_of("reference", "structure"),
    "engine": _ENGINE,
    "layers": array(_layer),
    "norm": one_of("post", "pre", "both", "none"),
    "agreement": array(_AGREEMENT),
    "doubt": text(),
    "input_ids": array(integer()),
    "projections": one_of(PROJECTIONS),
    "sketch": array(_values),
}
