"""Whether every zarr.json is what the store's identity and plan demand."""

from collections.abc import Iterator

from hsstore.integrity.plain_file import Trouble, read_plain
from hsstore.integrity.subject import Subject
from hsstore.model.finding import Finding
from hsstore.storage.catch_up import metadata, planned
from hsstore.storage.store import Store


def check(subject: Subject) -> Iterator[Finding]:
    """Compare every zarr.json byte for byte.

    Those of a store whose newest plan is lost are beyond what there is to compare with; those that
    an unfinished growth has not reached yet are as the plan before it demands.
    """
    if subject.lost_plan:
        return
    store = subject.newest()
    found = list(_compare(subject, store))
    # The store may have grown meanwhile.
    if found and (grown := subject.newest()).plan.generation > store.plan.generation:
        found = list(_compare(subject, grown))
    yield from found


def _compare(subject: Subject, store: Store) -> Iterator[Finding]:
    earlier = metadata(subject.store, subject.reached)
    for name, expected in metadata(store, planned(store)).items():
        try:
            raw = read_plain(subject.filesystem, subject.root, name)
        except Trouble as trouble:
            yield subject.finding(f"metadata-{trouble.state}", trouble.detail, path=name)
            continue
        if raw not in (expected, earlier[name]):
            detail = "it is not what the store's identity and plan demand"
            yield subject.finding("metadata-damaged", detail, path=name)
