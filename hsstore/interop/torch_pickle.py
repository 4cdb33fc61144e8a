"""The pickle inside a torch file, read as a description of tensors.

A machine of its own for the few instructions that torch.save writes: what any other instruction,
or any other name than those listed here, would do is not found out. It is narrower than
``torch.load(weights_only=True)``, which in addition trusts the sizes that a file tells of its
storages. The instructions are those of Python's ``pickletools``.
"""

import math
import pickletools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

PICKLE_BYTES = 4 << 20
DIMENSIONS = 16
VALUES = 2**60
# Of a storage as torch.save tells it; the older form has one more.
STORAGE_PARTS = 5
STORAGES = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "UntypedStorage": "untyped",
}
# Dtypes that have no storage of their own, and the bytes of a value: their storages hold bytes.
LATER_DTYPES = {"float8_e4m3fn": 1, "float8_e5m2": 1, "uint16": 2, "uint32": 4, "uint64": 8}
PUSHES = frozenset({
    "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT",
    "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES",
})  # fmt: skip
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}


class NotPlain(ValueError):
    """The pickle is no description of tensors and plain values."""


@dataclass(frozen=True, slots=True)
class StorageRef:
    """A record of the file: its key, its dtype and how many values of it there are."""

    key: str
    dtype: str
    values: int


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A tensor within a storage; ``offset`` and ``stride`` count values of ``dtype``."""

    storage: StorageRef
    dtype: str
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Name:
    module: str
    name: str


class _Mark:
    """Where a group begins on the stack."""


def described(data: bytes) -> Any:  # noqa: ANN401 - whatever was saved
    """The value that was pickled, with a TensorRef for each tensor; NotPlain for anything else."""
    if len(data) > PICKLE_BYTES:
        raise NotPlain(f"a description of {len(data)} bytes")
    machine = _Machine()
    try:
        for opcode, argument, _ in pickletools.genops(data):
            if opcode.name == "STOP":
                return machine.pop()
            machine.step(opcode.name, argument)
    except NotPlain:
        raise
    except (ValueError, IndexError, KeyError, TypeError, OverflowError) as error:
        raise NotPlain(f"malformed: {error}") from error
    raise NotPlain("it does not end")


class _Machine:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._steps: dict[str, Callable[[Any], None]] = {
            "PROTO": self._nothing,
            "FRAME": self._nothing,
            "MARK": lambda _: self._stack.append(_Mark()),
            "EMPTY_DICT": lambda _: self._stack.append({}),
            "EMPTY_LIST": lambda _: self._stack.append([]),
            "EMPTY_TUPLE": lambda _: self._stack.append(()),
            "TUPLE": lambda _: self._stack.append(tuple(self._group())),
            "TUPLE1": lambda _: self._tuple(1),
            "TUPLE2": lambda _: self._tuple(2),
            "TUPLE3": lambda _: self._tuple(3),
            "APPEND": lambda _: self._extend([self.pop()]),
            "APPENDS": lambda _: self._extend(self._group()),
            "SETITEM": lambda _: self._update(self._last(2)),
            "SETITEMS": lambda _: self._update(self._group()),
            "BINPUT": self._put,
            "LONG_BINPUT": self._put,
            "MEMOIZE": lambda _: self._put(len(self._memo)),
            "BINGET": lambda key: self._stack.append(self._memo[key]),
            "LONG_BINGET": lambda key: self._stack.append(self._memo[key]),
            "GLOBAL": lambda names: self._stack.append(_Name(*names.split(" ", 1))),
            "STACK_GLOBAL": lambda _: self._stack.append(_Name(*map(_text, self._last(2)))),
            "BINPERSID": lambda _: self._stack.append(_storage(self.pop())),
            "REDUCE": lambda _: self._stack.append(_rebuilt(*self._last(2))),
        }

    def step(self, name: str, argument: object) -> None:
        if name in PUSHES:
            self._stack.append(CONSTANTS.get(name, argument))
        elif name in self._steps:
            self._steps[name](argument)
        else:
            raise NotPlain(f"it holds the instruction {name}")

    def pop(self) -> Any:  # noqa: ANN401 - whatever is on the stack
        value = self._stack.pop()
        if isinstance(value, _Mark):
            raise NotPlain("malformed: a group without an end")
        return value

    def _nothing(self, _: object) -> None:
        """What says something about the pickle only."""

    def _put(self, key: int) -> None:
        self._memo[key] = self._stack[-1]

    def _last(self, count: int) -> list[Any]:
        return [self.pop() for _ in range(count)][::-1]

    def _tuple(self, count: int) -> None:
        self._stack.append(tuple(self._last(count)))

    def _group(self) -> list[Any]:
        items = []
        while not isinstance(item := self._stack.pop(), _Mark):
            items.append(item)
        return items[::-1]

    def _extend(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not list:
            raise NotPlain("malformed: items for what is no list")
        self._stack[-1].extend(items)

    def _update(self, items: list[Any]) -> None:
        if type(self._stack[-1]) is not dict:
            raise NotPlain("malformed: items for what is no dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            # A key of nested tuples could take for ever to hash.
            self._stack[-1][key if type(key) is int else _text(key)] = value


def _text(value: object) -> str:
    # A pickle can hold halves of characters, which nothing that is written can.
    if not isinstance(value, str) or any("\ud800" <= each <= "\udfff" for each in value):
        raise NotPlain("a name that is no text")
    return value


def _storage(told: Any) -> StorageRef:  # noqa: ANN401 - whatever the file says
    """A storage as torch.save tells it: ('storage', class, key, place, values).

    The older form has a sixth member, which is None but for views of other storages.
    """
    kind, holder, key, _, values, view = told if len(told) > STORAGE_PARTS else (*told, None)
    if view is not None:
        raise NotPlain("a storage that is a part of another one")
    if kind != "storage" or not isinstance(holder, _Name) or holder.name not in STORAGES:
        raise NotPlain(f"a reference to {_said(holder)}")
    return StorageRef(_text(key), STORAGES[holder.name], _count(values))


def _rebuilt(name: object, arguments: Any) -> Any:  # noqa: ANN401 - as above
    """What a call gives, for the few that describe data. Nothing is called."""
    if not isinstance(name, _Name):
        raise NotPlain("it calls what has no name")
    match (name.module, name.name):
        case ("collections", "OrderedDict"):
            return {}
        case ("torch._utils", "_rebuild_tensor_v2"):
            return _tensor(arguments[:4], None, arguments[6:])
        case ("torch._utils", "_rebuild_tensor_v3"):
            return _tensor(arguments[:4], _later(arguments[6]), arguments[7:])
        case ("torch._utils", "_rebuild_parameter"):
            return arguments[0]
        # How torch.save writes bytes, sets and devices: they are told by what they are made of.
        case ("_codecs", "encode") | ("__builtin__", "set") | ("torch", "device"):
            return arguments[0]
        case ("torch", "Size"):
            return _sizes(arguments[0])
    raise NotPlain(f"it calls {name.module}.{name.name}"[:120])


def _tensor(told: Any, dtype: str | None, marks: Any) -> TensorRef:  # noqa: ANN401 - as above
    """A tensor; its dtype is its storage's unless it has one of its own."""
    storage, offset, shape, stride = told
    if not isinstance(storage, StorageRef):
        raise NotPlain("a tensor without a storage")
    if dtype and (storage.dtype != "untyped" or storage.values % LATER_DTYPES[dtype]):
        raise NotPlain(f"{dtype} in a storage of {storage.values} {storage.dtype}")
    if any(mark for mark in marks):
        # Torch marks a tensor so whose values are to be negated or conjugated as they are read.
        raise NotPlain("a tensor whose values are not those of its storage")
    sizes, steps = _sizes(shape), _steps(stride)
    if len(sizes) != len(steps):
        raise NotPlain("a tensor of no shape")
    return TensorRef(storage, dtype or storage.dtype, _count(offset), sizes, steps)


def _sizes(value: Any) -> tuple[int, ...]:  # noqa: ANN401 - as above
    if len(value) > DIMENSIONS:
        raise NotPlain("a tensor of no shape")
    sizes = tuple(map(_count, value))
    # No array has more values than these, counted without the sizes that are 0.
    if math.prod(filter(None, sizes)) >= VALUES:
        raise NotPlain("a tensor of no shape")
    return sizes


def _steps(value: Any) -> tuple[int, ...]:  # noqa: ANN401 - as above
    """Strides: each of them bounded, for their product says nothing of a tensor's size."""
    steps = tuple(map(_count, value[: DIMENSIONS + 1]))
    if any(step >= VALUES for step in steps):
        raise NotPlain("a tensor of no shape")
    return steps


def _said(value: object) -> str:
    """A value in a few words: a small pickle may hold one that takes for ever to write out."""
    told = f"{value.module}.{value.name}" if isinstance(value, _Name) else type(value).__name__
    return told[:80]


def _later(dtype: object) -> str:
    if isinstance(dtype, _Name) and dtype.module == "torch" and dtype.name in LATER_DTYPES:
        return dtype.name
    raise NotPlain(f"a dtype that is not known: {_said(dtype)}")


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**62:
        raise NotPlain("a size that is none")
    return value
