"""Formats whose files hold one sample each, as named tensors: what all of them have in common.

Such a format says which names its files have and what each tensor is; everything else is here.
Tensors may have one dimension of 1 in front, which is the batch that some writers keep.
"""

import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hsstore.interop.contents import state_faults
from hsstore.interop.float8 import DEQUANTISED, FLOAT8, dequantised
from hsstore.interop.foreign import (
    Broken,
    Container,
    Fault,
    ForeignFile,
    ForeignSample,
    Inspection,
    Reading,
    TensorHeader,
    Tokens,
    found_files,
)
from hsstore.interop.tokens import bare_tokens, checked_ids
from hsstore.storage.tokenised import Samples

STATES = ("bfloat16", "float16", "float32")
IDS = ("int64", "int32")
FLAGS = ("int64", "int32", "uint8", "int8", "bool")
SCALES = "float32"


@dataclass(frozen=True, slots=True)
class Arrangement:
    """Which tensors of a file are what.

    ``ids`` and ``mask`` [n]; ``joined`` [n, layers * hidden] or ``stacked`` [n, layers, hidden],
    the last of these being the model's last state; ``last`` [n, hidden], the last state on its own;
    ``scales`` [n, 1, 1], of states in float8.
    """

    ids: str
    mask: str | None = None
    joined: str | None = None
    stacked: str | None = None
    last: str | None = None
    scales: str | None = None


Tensors = Mapping[str, TensorHeader]
Arrange = Callable[[Tensors], Arrangement]
Open = Callable[[ForeignFile], AbstractContextManager[Container]]


@dataclass(frozen=True, slots=True)
class _Form:
    """What the headers of a sound file say: tokens, dtype, layers of which width."""

    tokens: int
    dtype: str
    layers: int | None
    hidden: int | None
    width: int
    has_last: bool


@dataclass(frozen=True)
class TensorFormat:
    """A Format by the names of its files, the container they are, and the names in it."""

    name: str
    pattern: re.Pattern[str]
    open: Open
    arrange: Arrange

    def files(self, root: Path) -> list[ForeignFile]:
        """The sample files of a tree, in natural order; OSError for a folder that is not listed."""
        return found_files(root, self.pattern)

    def own_dataset(self, root: Path) -> Samples | None:  # noqa: ARG002 - for formats that have one
        """None: such trees hold no dataset."""
        return None

    def look(self, file: ForeignFile) -> tuple[Inspection, Tokens | None]:
        """What its headers prove, and its ids and mask; what is wrong with either in ``faults``."""
        inspection, tokens = Inspection(), None
        try:
            with self.open(file) as container:
                inspection = self._inspected(container.tensors)
                tokens = self.tokens_in(file, container, self.arrange(container.tensors))
        except Broken as broken:
            return replace(inspection, faults=inspection.faults or (broken.fault,)), None
        return inspection, tokens

    def read(self, file: ForeignFile, hidden: int | None = None) -> Reading:
        """The sample, and every fault that reading all of the file finds."""
        try:
            with self.open(file) as container:
                sample, faults = self._sample(file, container, hidden)
                container.prove()
        except Broken as broken:
            return Reading(None, (broken.fault,))
        return Reading(sample, faults)

    def _inspected(self, tensors: Tensors) -> Inspection:
        try:
            form = _form(tensors, self.arrange(tensors))
        except Broken as broken:
            return Inspection(faults=(broken.fault,))
        dtype = "bfloat16" if form.dtype == FLOAT8 else form.dtype
        return Inspection(form.tokens, dtype, form.layers, form.hidden, form.has_last)

    def tokens_in(
        self, file: ForeignFile, container: Container, arrangement: Arrangement
    ) -> Tokens:
        """Ids and mask of an open file, checked; raises Broken."""
        ids = checked_ids(arrangement.ids, _flat(container, arrangement.ids, IDS))
        return Tokens(ids, self.mask_in(file, container, arrangement, ids))

    def mask_in(
        self,
        file: ForeignFile,  # noqa: ARG002 - for formats that keep masks elsewhere
        container: Container,
        arrangement: Arrangement,
        ids: NDArray[np.int64],
    ) -> NDArray[np.bool_] | None:
        """The loss mask [n] of an open file, None where it has none; raises Broken."""
        if arrangement.mask is None:
            return None
        flags = _flat(container, arrangement.mask, FLAGS)
        if len(flags) != len(ids):
            raise Broken("rows-differ", f"{len(ids)} token ids, {len(flags)} in the loss mask")
        if not np.isin(flags.view(np.uint8) if flags.dtype == bool else flags, (0, 1)).all():
            raise Broken("values", f"{arrangement.mask} holds what is not 0 or 1")
        return flags.astype(bool)

    def _sample(
        self, file: ForeignFile, container: Container, hidden: int | None
    ) -> tuple[ForeignSample, tuple[Fault, ...]]:
        """The sample, and what is wrong with its values."""
        arrangement = self.arrange(container.tensors)
        form = _form(container.tensors, arrangement)
        tokens = self.tokens_in(file, container, arrangement)
        arrays = _arrays(container, arrangement, form, hidden or form.hidden or form.width)
        bare = bare_tokens(tokens)
        faults = tuple(
            fault
            for name, values in arrays.items()
            for fault in state_faults(name, container.tensors[name].dtype, values, bare)
        )
        states = _states(arrays, arrangement)
        if form.dtype != FLOAT8:
            return ForeignSample(tokens, states, form.dtype, form.has_last), faults
        return ForeignSample(tokens, states, "bfloat16", form.has_last, DEQUANTISED), faults


def demanded(tensors: Tensors, *names: str) -> None:
    """Broken (``keys``) where one of these tensors is not there."""
    missing = [name for name in names if name not in tensors]
    if missing:
        there = ", ".join(sorted(tensors)) or "none"
        raise Broken("keys", f"no {', '.join(missing)}; its tensors: {there:.200}")


def _form(tensors: Tensors, arrangement: Arrangement) -> _Form:
    """What sound headers say; Broken where they are not."""
    tokens = _shape(tensors, arrangement.ids, 1, IDS)[0]
    named = {arrangement.ids: tokens}
    if arrangement.mask is not None:
        named[arrangement.mask] = _shape(tensors, arrangement.mask, 1, FLAGS)[0]
    form = _stacked if arrangement.stacked else _joined
    found = form(tensors, arrangement, tokens, named)
    if len(set(named.values())) > 1:
        raise Broken("rows-differ", ", ".join(f"{name}: {rows}" for name, rows in named.items()))
    if not found.width or not tokens:
        raise Broken("shape", "a tensor without values")
    return found


def _stacked(
    tensors: Tensors, arrangement: Arrangement, tokens: int, named: dict[str, int]
) -> _Form:
    name = arrangement.stacked or ""
    allowed = (FLOAT8,) if arrangement.scales else STATES
    named[name], layers, hidden = _shape(tensors, name, 3, allowed)
    if arrangement.scales:
        scales = _shape(tensors, arrangement.scales, 3, (SCALES,))
        named[arrangement.scales] = scales[0]
        if scales[1:] != (1, 1):
            raise Broken("shape", f"{arrangement.scales} is {list(scales)}, not [n, 1, 1]")
    return _Form(tokens, tensors[name].dtype, layers, hidden, layers * hidden, has_last=True)


def _joined(
    tensors: Tensors, arrangement: Arrangement, tokens: int, named: dict[str, int]
) -> _Form:
    name, last = arrangement.joined or "", arrangement.last
    named[name], width = _shape(tensors, name, 2, STATES)
    dtype = tensors[name].dtype
    if last is None:
        return _Form(tokens, dtype, None, None, width, has_last=False)
    named[last], hidden = _shape(tensors, last, 2, STATES)
    if tensors[last].dtype != dtype:
        raise Broken("dtype", f"{name} is {dtype}, {last} is {tensors[last].dtype}")
    if not hidden or width % hidden:
        raise Broken("shape", f"{name} has rows of {width} values, no multiple of {hidden}")
    return _Form(tokens, dtype, width // hidden + 1, hidden, width, has_last=True)


def _shape(
    tensors: Tensors, name: str, dimensions: int, dtypes: tuple[str, ...]
) -> tuple[int, ...]:
    """The shape of a tensor without the batch in front; Broken for another kind of tensor."""
    demanded(tensors, name)
    header = tensors[name]
    if header.dtype not in dtypes:
        raise Broken("dtype", f"{name} is {header.dtype}, not {' or '.join(dtypes)}")
    shape = header.shape
    if len(shape) == dimensions + 1 and shape[0] == 1:
        shape = shape[1:]
    if len(shape) != dimensions:
        raise Broken("shape", f"{name} is {list(header.shape)}: not {dimensions} dimensions")
    return shape


def _flat(container: Container, name: str, dtypes: tuple[str, ...]) -> NDArray[Any]:
    _shape(container.tensors, name, 1, dtypes)
    return container.array(name).reshape(-1)


def _arrays(
    container: Container, arrangement: Arrangement, form: _Form, hidden: int
) -> dict[str, NDArray[Any]]:
    """The states of a file as it holds them, [n, layers, hidden] each, and their scales."""
    if form.width % hidden or form.hidden not in (None, hidden):
        raise Broken("shape", f"states of {form.hidden or form.width} values, not of {hidden}")
    if arrangement.stacked:
        shapes = {arrangement.stacked: (form.tokens, form.layers or 0, form.hidden or 0)}
        if arrangement.scales:
            shapes[arrangement.scales] = (form.tokens, 1, 1)
    else:
        shapes = {arrangement.joined or "": (form.tokens, form.width // hidden, hidden)}
        if arrangement.last:
            shapes[arrangement.last] = (form.tokens, 1, hidden)
    return {name: container.array(name).reshape(shape) for name, shape in shapes.items()}


def _states(arrays: Mapping[str, NDArray[Any]], arrangement: Arrangement) -> NDArray[Any]:
    """All layers of a sample [n, layers, hidden] in one array."""
    first, *more = arrays.values()
    if not more:
        return first
    if arrangement.scales:
        return dequantised(first, more[0])
    return np.concatenate([first, *more], axis=1)


def shape_faults(inspection: Inspection, expected: Inspection) -> list[Fault]:
    """How the states of one file are other than those of its tree."""
    found = []
    if inspection.dtype != expected.dtype:
        found.append(Fault("dtype", f"its states are {inspection.dtype}, not {expected.dtype}"))
    sizes = [(one.layers, one.hidden, one.has_last) for one in (inspection, expected)]
    if sizes[0] != sizes[1]:
        told, wanted = ([layers, hidden] for layers, hidden, _ in sizes)
        found.append(Fault("shape", f"its states are [n, {told}], not [n, {wanted}]"))
    return found
