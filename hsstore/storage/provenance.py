"""Whether a source computes what a store holds."""

import contextlib

from hsstore.errors import IdentityMismatch, InvalidDocument, UnsupportedFormat
from hsstore.model.source import Origin, differences, expected_match
from hsstore.storage.store import Store


def verify_origin(store: Store, origin: Origin) -> None:
    """IdentityMismatch unless a source may add to this store.

    What the identity leaves open, the first shard whose manifest is whole decides.
    """
    expected = expected_match(store.identity.model, store.identity.capture)
    refuse_other_origin(Origin(expected), origin, str(store.root))
    for earlier in _first_origins(store):
        refuse_other_origin(earlier, origin, str(store.root))


def _first_origins(store: Store) -> tuple[Origin, ...]:
    for version, absent in store.committed().values():
        with contextlib.suppress(InvalidDocument, UnsupportedFormat, OSError):
            return store.manifest(store.read_marker(version, absent=absent)).origins
    return ()


def refuse_other_origin(expected: Origin, found: Origin, place: str) -> None:
    """IdentityMismatch naming what contradicts."""
    contradictions = differences(expected.match, found.match)
    if contradictions:
        raise IdentityMismatch(
            f"the source is not the store's: {'; '.join(contradictions)}",
            place=place,
            remedy="use the model that the store was created for, or create another store",
        )
