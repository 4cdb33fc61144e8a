"""The waivers of a store once more in one that was cut from it."""

import contextlib
import dataclasses

from hsstore.integrity.copying.cut import Cut
from hsstore.storage.store import Store
from hsstore.storage.waivers import publish_waiver, waived, waivers


def carry_waivers(cut: Cut, made: Store) -> None:
    """Waive in ``made`` the samples that it lacks as its parent does, and that are waived there.

    Reason and date are the parent's. Raises InvalidDocument, OSError.
    """
    accepted = waivers(cut.parent)
    if not accepted:
        return
    numbers = {number: own for own, number in enumerate(cut.samples)}
    here = {
        numbers[number]: dataclasses.replace(waiver, sample=numbers[number])
        for number, waiver in accepted.items()
        if number in numbers
    }
    for version, absent in made.committed().values():
        lost = made.manifest(made.read_marker(version, absent=True)).absent if absent else ()
        for waiver in waived(here, lost).values():
            # An earlier run, or one beside this, may have carried it.
            with contextlib.suppress(FileExistsError):
                publish_waiver(
                    made,
                    dataclasses.replace(waiver, store=made.identity.uuid, shard=version.shard),
                )
