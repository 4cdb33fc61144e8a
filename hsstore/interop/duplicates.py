"""Several files for one sample: harmless where they hold the same, else none of them counts."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace

from hsstore.interop.foreign import Fault
from hsstore.interop.matching import Match
from hsstore.interop.scanning import ScannedFile

Digest = Callable[[ScannedFile], object]


def without_twins(
    scanned: Sequence[ScannedFile], digest: Digest
) -> tuple[list[ScannedFile], list[tuple[ScannedFile, Fault]]]:
    """The files of a tree less those that repeat the one of the same number; and those.

    Files of one number that hold different samples or states all get a fault. ``digest`` is that
    of a file's states, None where they cannot be read; only such files are read for it.
    """
    redundant: list[tuple[ScannedFile, Fault]] = []
    faulty: dict[str, Fault] = {}
    for group in _twins(scanned):
        if _equal(group, digest):
            redundant += [(one, _equal_to(group[0])) for one in group[1:]]
        else:
            faulty |= dict.fromkeys((one.file.name for one in group), _differing(group))
    gone = {one.file.name for one, _ in redundant}
    kept = [
        replace(one, faults=(faulty[one.file.name],)) if one.file.name in faulty else one
        for one in scanned
        if one.file.name not in gone
    ]
    return kept, redundant


def settle_surplus(
    found: Match[ScannedFile], digest: Digest
) -> tuple[list[tuple[ScannedFile, Fault]], list[tuple[ScannedFile, Fault]]]:
    """The files that repeat another one of the same tokens; and those of which nobody can choose.

    Changes ``found``: where more files than samples have the same tokens and they differ, these
    samples have no file.
    """
    redundant: list[tuple[ScannedFile, Fault]] = []
    faulty: list[tuple[ScannedFile, Fault]] = []
    for samples, left in found.surplus:
        holding = [found.files[sample] for sample in samples]
        if _equal([*holding, *left], digest):
            redundant += [(one, _equal_to(holding[0])) for one in left]
            continue
        told = _differing([*holding, *left])
        faulty += [(one, told) for one in (*holding, *left)]
        for sample in samples:
            found.broken[sample] = replace(found.files.pop(sample), faults=(told,))
    return redundant, faulty


def _twins(scanned: Iterable[ScannedFile]) -> Iterator[list[ScannedFile]]:
    """Sound files with one number in one folder: ``data_5.ckpt`` beside ``data_5.ckpt.gz``."""
    groups: dict[tuple[str, int], list[ScannedFile]] = defaultdict(list)
    for one in scanned:
        if one.sound and one.number is not None:
            groups[one.file.name.rpartition("/")[0], one.number].append(one)
    return (group for group in groups.values() if len(group) > 1)


def _equal(files: Sequence[ScannedFile], digest: Digest) -> bool:
    if len({one.held and one.held.digest for one in files}) > 1:
        return False
    found = {digest(one) for one in files}
    return len(found) == 1 and None not in found


def _equal_to(one: ScannedFile) -> Fault:
    return Fault("duplicate", f"it holds the same as {one.file.name}")


def _differing(files: Sequence[ScannedFile]) -> Fault:
    names = ", ".join(one.file.name for one in files)
    return Fault("duplicate", f"these differ, and nothing says which is right: {names}")
