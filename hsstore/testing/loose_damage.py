"""Damage to loose sample files, as disks, savers and people inflict it, and what shows it.

Each entry of CORPUS damages the file of one sample. What shows it depends on the container:
``checked`` (torch.save's zip, gzip) or ``bare`` (torch.save's older form, safetensors).
"""

import os
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from hsstore.testing import damage
from hsstore.testing.loose_files import Saver

PAGE = damage.PAGE
# So far away is a sample that is as long.
DONOR = 50
Shows = Literal["quick", "checksums", "content", "dataset", "nowhere"]
SHOWS: tuple[Shows, ...] = ("quick", "checksums", "content", "dataset", "nowhere")
Item = dict[str, Any]

CONTAINER = frozenset({"crc", "truncated", "no-container", "pickle"})
VALUES = frozenset({"all-zero", "non-finite"})


@dataclass(frozen=True, slots=True)
class Loose:
    """The file to damage: where it is, how files of its tree are saved, and of which sample."""

    path: Path
    save: Saver
    item: Callable[[int], Item]
    sample: int

    def saved(self, item: Mapping[str, Any]) -> None:
        """Put another item in the place of the sample's, whole."""
        with damage.times_kept(self.path):
            self.save(item, self.path)

    def edited(self, edit: Callable[[Item], None]) -> None:
        """Save the sample's item again, edited."""
        item = self.item(self.sample)
        edit(item)
        self.saved(item)


@dataclass(frozen=True, slots=True)
class LooseDamage:
    """One damage: the kinds that name it, and what it takes to show it.

    ``quick``, ``checksums`` and ``content`` are depths; ``dataset`` is a dataset to compare with;
    ``nowhere`` says that no file can prove it. ``zip_only`` is of what other containers lack.
    """

    name: str
    inflict: Callable[[Loose], object]
    kinds: frozenset[str]
    checked: Shows
    bare: Shows
    zip_only: bool = False


def _states(path: Path) -> int:
    """Where the widest record of a zip begins, or the middle of any other file."""
    if not zipfile.is_zipfile(path):
        return path.stat().st_size // 2
    with zipfile.ZipFile(path) as archive:
        record = max(archive.infolist(), key=lambda record: record.file_size)
    raw = path.read_bytes()
    header = record.header_offset
    extra = int.from_bytes(raw[header + 26 : header + 28], "little")
    return header + 30 + extra + int.from_bytes(raw[header + 28 : header + 30], "little")


def _flip(loose: Loose) -> None:
    damage.flip_bit(loose.path, _states(loose.path) + 1001)


def _flip_directory(loose: Loose) -> None:
    """A bit of the last CRC that the directory of the zip tells."""
    damage.flip_bit(loose.path, loose.path.read_bytes().rfind(b"PK\x01\x02") + 17)


def _swap_ranges(loose: Loose) -> None:
    begin = _states(loose.path)
    damage.swap_ranges(loose.path, begin, begin + 2000, 512)


def _hole(loose: Loose) -> None:
    begin = -(-_states(loose.path) // PAGE) * PAGE
    damage.zero(loose.path, begin, PAGE)


def _rename_record(loose: Loose) -> None:
    raw = loose.path.read_bytes()
    at = raw.rfind(b"/data/0")
    damage.overwrite(loose.path, at + 6, b"9")


def _state_keys(item: Item) -> list[str]:
    return [key for key, value in item.items() if value.is_floating_point()]


def _first_states(item: Item) -> Any:  # noqa: ANN401 - a tensor
    return item[_state_keys(item)[-1]]


def _nan(item: Item) -> None:
    _first_states(item)[..., 3] = float("nan")


def _zero_layer(item: Item) -> None:
    """One layer of several, wherever the format keeps them."""
    states = _first_states(item)
    states[..., :64].zero_() if states.shape[-1] > 64 else states[:, 1].zero_()  # noqa: PLR2004


def _zero_rows(item: Item) -> None:
    states = _first_states(item)
    tokens = states.shape[0] if states.shape[0] > 1 else states.shape[1]
    states.reshape(tokens, -1)[tokens // 3 : tokens // 2] = 0


def _wrong_ids(item: Item) -> None:
    _ids(item)[2] = 999_999


def _ids(item: Item) -> Any:  # noqa: ANN401 - a tensor
    return item["input_ids" if "input_ids" in item else "token_ids"]


def _impossible_ids(item: Item) -> None:
    _ids(item)[2] = -5


def _one_row_less(item: Item) -> None:
    key = _state_keys(item)[0]
    states = item[key]
    item[key] = (states[:, :-1] if states.shape[0] == 1 else states[:-1]).contiguous()


def _other_width(item: Item) -> None:
    for key in _state_keys(item):
        item[key] = item[key][..., ::2].contiguous()


def _other_dtype(item: Item) -> None:
    for key in _state_keys(item):
        item[key] = item[key].to(torch.float16)


def _lost_key(item: Item) -> None:
    del item[_state_keys(item)[0]]


def _other_model(item: Item) -> None:
    for key in _state_keys(item):
        item[key] = item[key].roll(1, dims=-1).contiguous()


def _of_neighbour(loose: Loose) -> None:
    """The states of the next sample of the same length, with this one's tokens."""
    item, other = loose.item(loose.sample), loose.item(loose.sample + DONOR)
    loose.saved(item | {key: other[key] for key in _state_keys(item)})


def _padded(item: Item) -> None:
    for key, value in item.items():
        states = value.is_floating_point()
        axis = 1 if states and value.shape[0] == 1 else 0
        shape = list(value.shape)
        shape[axis] = 9
        filling = torch.full(shape, 0.5 if states else 0, dtype=value.dtype)
        item[key] = torch.cat([value, filling], dim=axis).contiguous()


def _edit(edit: Callable[[Item], None]) -> Callable[[Loose], None]:
    return lambda loose: loose.edited(edit)


def _bytes(hurt: Callable[[Path], object]) -> Callable[[Loose], object]:
    return lambda loose: hurt(loose.path)


def _link(path: Path) -> None:
    aside = path.parents[2] / f"aside-{path.name}"
    os.replace(path, aside)  # noqa: PTH105 - either would do
    path.symlink_to(aside)


def _entry(
    name: str, inflict: Callable[[Loose], object], kinds: frozenset[str] | str,
    checked: Shows, bare: Shows | None = None, *, zip_only: bool = False,
) -> LooseDamage:  # fmt: skip
    named = frozenset({kinds}) if isinstance(kinds, str) else kinds
    return LooseDamage(name, inflict, named, checked, bare or checked, zip_only)


# An own row of the dataset is not there for what has the place of a file and is none.
GONE = frozenset({"missing", "link"})

CORPUS = (
    _entry("one bit of the states", _flip, CONTAINER, "checksums", "nowhere"),
    _entry("one bit of the directory", _flip_directory, CONTAINER, "checksums", zip_only=True),
    _entry("a record renamed", _rename_record, CONTAINER, "quick", zip_only=True),
    _entry("4 KiB of zeros in the states", _hole, CONTAINER | VALUES, "checksums", "content"),
    _entry("the first 4 KiB zeroed", _bytes(lambda p: damage.zero(p, 0, PAGE)), CONTAINER, "quick"),
    _entry(
        "the tail zeroed",
        _bytes(lambda p: damage.zero(p, p.stat().st_size - PAGE, PAGE)),
        CONTAINER | VALUES,
        "quick",
        "content",
    ),
    _entry("zeros throughout", _bytes(lambda p: damage.zero(p, 0, 1 << 40)), CONTAINER, "quick"),
    _entry("cut by one byte", _bytes(lambda p: damage.resize(p, -1)), CONTAINER, "quick"),
    _entry("cut to 100 bytes", _bytes(lambda p: os.truncate(p, 100)), CONTAINER, "quick"),
    _entry("no bytes", _bytes(lambda p: os.truncate(p, 0)), "empty", "quick"),
    _entry("longer by one zero", _bytes(lambda p: damage.resize(p, 1)), CONTAINER, "quick"),
    _entry("longer by a page", _bytes(lambda p: damage.resize(p, PAGE)), CONTAINER, "quick"),
    _entry("two stretches swapped", _swap_ranges, CONTAINER, "checksums", "nowhere"),
    _entry("text", _bytes(lambda p: p.write_text("no sample")), CONTAINER, "quick"),
    _entry("deleted", _bytes(Path.unlink), GONE, "quick"),
    _entry("a link", _bytes(_link), GONE, "quick"),
    _entry("a folder", _bytes(damage.to_folder), GONE, "quick"),
    _entry("a pipe", _bytes(damage.to_pipe), GONE, "quick"),
    _entry("ids that none can be", _edit(_impossible_ids), "values", "quick"),
    _entry("one row less", _edit(_one_row_less), "rows-differ", "quick"),
    _entry("another width", _edit(_other_width), "shape", "quick"),
    _entry("another dtype", _edit(_other_dtype), "dtype", "quick"),
    _entry("a key less", _edit(_lost_key), "keys", "quick"),
    _entry("NaN", _edit(_nan), "non-finite", "content"),
    _entry("a layer of zeros", _edit(_zero_layer), "all-zero", "content"),
    _entry("rows of zeros", _edit(_zero_rows), "all-zero", "content"),
    _entry("states of a neighbour", _of_neighbour, "same-states", "content"),
    _entry("wrong token ids", _edit(_wrong_ids), "unmatched", "dataset"),
    _entry("padded", _edit(_padded), "padded", "dataset"),
    _entry("states of another revision", _edit(_other_model), "nothing", "nowhere"),
)
