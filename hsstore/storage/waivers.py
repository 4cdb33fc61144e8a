"""The waivers of a store: which absent samples somebody has accepted to go without."""

import contextlib
from collections.abc import Iterable

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.model import commands, keys
from hsstore.model.document import seal, unseal
from hsstore.model.manifest import AbsentSample
from hsstore.model.waiver import KIND, Waiver
from hsstore.storage.store import Store


def waiver_numbers(store: Store) -> list[int]:
    """The samples that have a waiver by the names in waiver/, in order; OSError."""
    try:
        names = store.filesystem.names(store.root / keys.WAIVER)
    except FileNotFoundError:
        return []
    return sorted(number for number in map(keys.read_waiver, names) if number is not None)


def read_waiver(store: Store, sample: int) -> Waiver:
    """One waiver, proven whole and of this sample.

    Raises InvalidDocument, UnsupportedFormat, OSError.
    """
    path = store.root / keys.waiver(sample)
    found = Waiver.from_document(
        unseal(store.filesystem.read(path), KIND, place=str(path)), place=str(path)
    )
    if (problem := misplaced(found, store, sample)) is not None:
        raise InvalidDocument(
            problem, place=str(path), remedy=f"run: {commands.hsstore('fsck', store.root)}"
        )
    return found


def misplaced(found: Waiver, store: Store, sample: int) -> str | None:
    """Why a waiver cannot be the one of a sample in a store, None where it can."""
    if (found.store, found.sample) != (store.identity.uuid, sample):
        return "it belongs to another store or sample"
    return None


def waivers(store: Store) -> dict[int, Waiver]:
    """The waivers by sample; one that is not whole waives nothing and is left out. OSError."""
    found: dict[int, Waiver] = {}
    for sample in waiver_numbers(store):
        with contextlib.suppress(InvalidDocument, UnsupportedFormat, OSError):
            found[sample] = read_waiver(store, sample)
    return found


def waived(found: dict[int, Waiver], absent: Iterable[AbsentSample]) -> dict[int, Waiver]:
    """Those of these waivers that are of samples which a shard is committed without.

    A waiver whose sample was stored since, or that is of another key, means nothing.
    """
    return {
        a.sample: found[a.sample]
        for a in absent
        if a.sample in found and found[a.sample].key == a.key
    }


def publish_waiver(store: Store, waiver: Waiver) -> None:
    """Put a waiver in place, durably. FileExistsError where the sample has one; OSError."""
    store.filesystem.make_folder(store.root / keys.WAIVER)
    store.filesystem.publish(store.root / keys.waiver(waiver.sample), seal(waiver.to_document()))
