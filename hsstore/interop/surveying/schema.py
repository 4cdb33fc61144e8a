"""What the files of one tree have in common: keys, dtypes, and shapes but for the tokens."""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Self

from hsstore.interop.foreign import TensorHeader
from hsstore.model.capture import ITEMSIZE

Arrays = Mapping[str, tuple[str, tuple[int, ...]]]
"""What a file holds: dtype and shape by key."""

STATES = frozenset({"bfloat16", "float16", "float32", "float64", "float8_e4m3fn", "float8_e5m2"})
# What float8 states are scaled with: a value a token, no states.
SCALES = "_scales"
# What a model says of the next token, as wide as its vocabulary.
OUTPUTS = ("target_probs", "target", "logits", "topk_probs")
WIDTH = {"int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1, "float64": 8,
         "float8_e4m3fn": 1, "float8_e5m2": 1} | ITEMSIZE  # fmt: skip


@dataclass(frozen=True, slots=True)
class Field:
    """One key: its dtype, and its shape with None where the tokens are counted."""

    key: str
    dtype: str
    shape: tuple[int | None, ...]

    @property
    def row(self) -> tuple[int, ...]:
        """The shape of one token's values; none where the field has no tokens."""
        return tuple(size for size in self.shape if size is not None)

    @property
    def holds_states(self) -> bool:
        """Whether these are states of a model."""
        return _holds_states(self.key, self.dtype)

    def difference(self, dtype: str, shape: tuple[int, ...], tokens: int) -> tuple[str, str] | None:
        """What an array differs in: ``shape`` or ``dtype``, and the words; None if in nothing."""
        wanted = tuple(tokens if size is None else size for size in self.shape)
        if shape != wanted:
            kind = "rows-differ" if self._is_row_alike(shape) else "shape"
            return kind, f"{self.key} is {_shape(shape)}, for {tokens} tokens not {_shape(wanted)}"
        if dtype != self.dtype:
            return "dtype", f"{self.key} is {dtype}, elsewhere {self.dtype}"
        return None

    def _is_row_alike(self, shape: tuple[int, ...]) -> bool:
        """Whether a shape is this one but for the number of tokens."""
        return len(shape) == len(self.shape) and all(
            told in {None, size} for told, size in zip(self.shape, shape, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Schema:
    """The fields of a file, in the order of their keys."""

    fields: tuple[Field, ...]

    @classmethod
    def of(cls, arrays: Arrays, tokens: int) -> Self:
        """The schema of a file of so many tokens; its first axis of that length counts them."""
        return cls(tuple(
            Field(key, dtype, _generalised(shape, tokens))
            for key, (dtype, shape) in sorted(arrays.items())
        ))  # fmt: skip

    @property
    def row_bytes(self) -> int:
        """Bytes that one token takes in a file, in all keys that have tokens."""
        return sum(prod(f.row) * WIDTH.get(f.dtype, 0) for f in self.fields if None in f.shape)

    @property
    def states(self) -> tuple[int, int, str] | None:
        """Layers, hidden size and dtype of the states; None where they do not add up to any.

        The narrowest key of states is one layer or has an axis of layers; wider ones hold several
        side by side.
        """
        floats = [f for f in self.fields if None in f.shape and f.row and f.holds_states]
        dtypes = {f.dtype if f.dtype in ITEMSIZE else "bfloat16" for f in floats}
        hidden_size = min((f.row[-1] for f in floats), default=0)
        if len(dtypes) != 1 or not hidden_size or any(f.row[-1] % hidden_size for f in floats):
            return None
        layers = sum(prod(f.row) for f in floats) // hidden_size
        return layers, hidden_size, dtypes.pop()

    def differences(self, arrays: Arrays, tokens: int | None) -> Iterator[tuple[str, str]]:
        """What a file of so many tokens differs in: ``keys``, ``shape`` or ``dtype``, and words.

        Where the tokens are not told, only the keys can be compared.
        """
        ours = {f.key: f for f in self.fields}
        for word, names in (("lacks", ours.keys() - arrays), ("also has", arrays.keys() - ours)):
            if names:
                yield "keys", f"it {word} {', '.join(sorted(names))}"
        for key in sorted(ours.keys() & arrays):
            if tokens is not None and (found := ours[key].difference(*arrays[key], tokens)):
                yield found


def _generalised(shape: tuple[int, ...], tokens: int) -> tuple[int | None, ...]:
    # The one that leads, unless it is the batch of one in front of the tokens.
    start = 1 if len(shape) > 1 and shape[:2] == (1, tokens) else 0
    for axis in range(start, len(shape)):
        if shape[axis] == tokens:
            return (*shape[:axis], None, *shape[axis + 1 :])
    return shape


def is_states(key: str, header: TensorHeader) -> bool:
    """Whether a tensor of a file holds states: of at least [tokens, hidden]."""
    return _holds_states(key, header.dtype) and len(header.shape) > 1


def _holds_states(key: str, dtype: str) -> bool:
    return dtype in STATES and not key.endswith(SCALES) and key not in OUTPUTS


def leading(schemas: Counter[Schema]) -> Schema | None:
    """The schema that more than half of the files have; None where none has."""
    for schema, count in schemas.most_common(1):
        if 2 * count > schemas.total():
            return schema
    return None


def _shape(shape: tuple[int | None, ...]) -> str:
    return f"[{', '.join(map(str, shape))}]"
