"""What files of each format are read as, and what is said of those that are not what they say."""

import inspect
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hsstore.interop.foreign import FAULTS, Fault, Format, gaps
from hsstore.interop.formats import FORMATS, format_named
from hsstore.testing.foreign_trees import (
    HIDDEN,
    drawn,
    quantised,
    save,
    specforge_path,
    specforge_record,
    speculators_path,
    write_modelopt,
    write_specforge,
    write_speculators,
)
from hsstore_cli import import_

SAMPLES = [drawn(n, 5 + n) for n in range(12)]
WRITERS: dict[str, Callable[..., Path]] = {
    "specforge": write_specforge,
    "speculators": write_speculators,
    "modelopt": write_modelopt,
}


@pytest.fixture(params=sorted(WRITERS))
def written(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Format, Path]:
    pytest.importorskip("pyarrow", reason="the extra interop")
    name: str = request.param
    return format_named(name), WRITERS[name](tmp_path / "tree", SAMPLES)


def test_every_sample_is_read_bit_for_bit(written: tuple[Format, Path]) -> None:
    form, root = written
    files = form.files(root)
    assert len(files) == len(SAMPLES)
    for file, sample in zip(files, SAMPLES, strict=True):
        reading = form.read(file)
        assert not reading.faults
        assert reading.sample is not None
        tokens = reading.sample.tokens
        assert np.array_equal(tokens.input_ids, sample.ids.numpy())
        assert tokens.loss_mask is not None
        assert np.array_equal(tokens.loss_mask, sample.mask.numpy().astype(bool))
        assert np.array_equal(reading.sample.states, sample.bits())
        assert reading.sample.has_last
        found, ids_and_mask = form.look(file)
        told = (found.tokens, found.layers, found.hidden, found.dtype, found.has_last)
        assert told == (len(sample.ids), 4, HIDDEN, "bfloat16", True)
        assert not found.faults
        assert ids_and_mask is not None
        assert np.array_equal(ids_and_mask.input_ids, sample.ids.numpy())


def test_files_come_in_natural_order(tmp_path: Path) -> None:
    for number in (0, 1, 2, 10, 1999, 2000, 10_000):
        save({}, specforge_path(tmp_path, number))
    save({}, tmp_path / "vocab_mapping" / "vocab_mapping.pt")
    (tmp_path / "rows_0-2000" / "data_3.ckpt.tmp").touch()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "rows_0-2000")
    link, *files = format_named("specforge").files(tmp_path)
    assert (link.name, link.row) == ("elsewhere", None)
    assert [file.row for file in files] == [0, 1, 2, 10, 1999, 2000, 10_000]
    assert gaps(files)[:2] == [range(3, 10), range(11, 1999)]


def test_folders_may_be_deeper_than_calls(tmp_path: Path) -> None:
    folder = tmp_path / "/".join("d" * 400)
    folder.mkdir(parents=True)
    (folder / "data_7.ckpt").touch()
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 200)
    try:
        files = format_named("specforge").files(tmp_path)
    finally:
        sys.setrecursionlimit(before)
    assert [file.row for file in files] == [7]


def test_a_name_may_hold_a_line_break(tmp_path: Path) -> None:
    (tmp_path / "talk\n1.pt").touch()
    assert [file.name for file in format_named("modelopt").files(tmp_path)] == ["talk\n1.pt"]


def test_dflash_is_told_apart(tmp_path: Path) -> None:
    sample, form = SAMPLES[3], format_named("specforge")
    record = {
        "input_ids": sample.ids,
        "loss_mask": sample.mask,
        "hidden_states": sample.states.flatten(1)[None],
    }
    save(record, specforge_path(tmp_path, 0))
    (file,) = form.files(tmp_path)
    inspection, _ = form.look(file)
    assert (inspection.tokens, inspection.layers, inspection.has_last) == (8, None, False)
    reading = form.read(file, HIDDEN)
    assert reading.sample is not None
    assert not reading.sample.has_last
    assert np.array_equal(reading.sample.states, sample.bits())
    blind = form.read(file)
    assert blind.sample is not None
    assert blind.sample.states.shape == (8, 1, 4 * HIDDEN)
    assert form.read(file, 10).faults[0].kind == "shape"


def changed(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Tensor]], object]:
    return lambda record: record.update({name: make(record[name])})


def with_value(tensor: Tensor, at: tuple[int, ...], value: float) -> Tensor:
    tensor = tensor.clone()
    tensor[at] = value
    return tensor


Change = Callable[[dict[str, Tensor]], object]
BROKEN: dict[str, tuple[Change, str]] = {
    "no last state": (lambda r: r.pop("hidden_state"), "keys"),
    "no ids": (lambda r: r.pop("input_ids"), "keys"),
    "two kinds": (lambda r: r.update(hidden_states=r["hidden_state"]), "keys"),
    "short last": (changed("hidden_state", lambda t: t[:, :-1]), "rows-differ"),
    "short ids": (changed("input_ids", lambda t: t[:-1]), "rows-differ"),
    "short mask": (changed("loss_mask", lambda t: t[1:]), "rows-differ"),
    "narrow layers": (changed("aux_hidden_state", lambda t: t[..., :-1]), "shape"),
    "batch of two": (changed("hidden_state", lambda t: t.repeat(2, 1, 1)), "shape"),
    "empty ids": (changed("input_ids", lambda t: t[:0]), "rows-differ"),
    "float32 last": (changed("hidden_state", lambda t: t.float()), "dtype"),
    "float64 layers": (changed("aux_hidden_state", lambda t: t.double()), "dtype"),
    "float ids": (changed("input_ids", lambda t: t.float()), "dtype"),
    "negative ids": (changed("input_ids", lambda t: t - 2000), "values"),
    "mask of twos": (changed("loss_mask", lambda t: t * 2), "values"),
    "inf": (
        changed("hidden_state", lambda t: with_value(t, (0, 2, 3), float("inf"))),
        "non-finite",
    ),
    "nan": (
        changed("aux_hidden_state", lambda t: with_value(t, (0, 0, 0), float("nan"))),
        "non-finite",
    ),
    "zero last": (changed("hidden_state", torch.zeros_like), "all-zero"),
    "zero layer": (
        changed("aux_hidden_state", lambda t: t * (torch.arange(48) >= HIDDEN)),
        "all-zero",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_wrong_is_named(tmp_path: Path, what: str) -> None:
    change, kind = BROKEN[what]
    record = specforge_record(SAMPLES[6])
    change(record)
    save(record, specforge_path(tmp_path, 0))
    form = format_named("specforge")
    (file,) = form.files(tmp_path)
    assert [fault.kind for fault in form.read(file, HIDDEN).faults] == [kind]
    inspected = [fault.kind for fault in form.look(file)[0].faults]
    assert inspected in ([], [kind])
    assert inspected or kind in ("non-finite", "all-zero")


def test_float8_is_what_speculators_makes_of_it(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="the extra interop")
    root = write_speculators(tmp_path / "tree", SAMPLES, float8=True)
    form = format_named("speculators")
    for file, sample in zip(form.files(root), SAMPLES, strict=True):
        reading = form.read(file)
        assert reading.sample is not None
        told = quantised(sample.states)
        narrow, scales = told["hidden_states"], told["hidden_states_scales"]
        wide = narrow.to(torch.bfloat16) * scales.to(torch.bfloat16)
        assert np.array_equal(reading.sample.states, wide.view(torch.int16).numpy().view(np.uint16))
        assert (reading.sample.dtype, form.look(file)[0].dtype) == ("bfloat16", "bfloat16")
        assert reading.sample.dequantised is not None


def test_float8_needs_its_scales(tmp_path: Path) -> None:
    save_file = pytest.importorskip("safetensors.torch", reason="the extra interop").save_file
    path = speculators_path(tmp_path, 0)
    path.parent.mkdir()
    narrow = quantised(SAMPLES[0].states)
    form = format_named("speculators")
    for scales in (None, torch.ones(4, 1, 1), torch.ones(5, 2, 1), torch.ones(5, 1, 1).double()):
        tensors = {"hidden_states": narrow["hidden_states"], "token_ids": SAMPLES[0].ids}
        save_file(tensors if scales is None else tensors | {"hidden_states_scales": scales}, path)
        (file,) = form.files(tmp_path)
        assert form.read(file).faults


def test_names_of_formats_and_faults_are_known_to_the_command() -> None:
    assert tuple(FORMATS) == import_.FORMATS
    assert all(Fault(kind, "x").kind == kind for kind in FAULTS)
    with pytest.raises(ValueError, match="no kind"):
        Fault("odd", "x")
