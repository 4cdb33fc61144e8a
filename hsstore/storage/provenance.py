"""Whether a source computes what a store holds."""

import contextlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from hsstore.errors import IdentityMismatch, InvalidDocument, UnsupportedFormat
from hsstore.model.source import Origin, differences, expected_match
from hsstore.storage.store import Store

if TYPE_CHECKING:
    from hsstore.model.keys import ShardVersion


class Provenance:
    """What the committed shards of a store were computed with; what the first told, binds.

    A store may leave members of an origin open (made from a bare config.json, it knows no weights).
    Manifests are read only as far as they tell such a member for the first time: one, as a rule,
    however many shards there are.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._known = _told(expected_match(store.identity.model, store.identity.capture))
        self._seen: set[ShardVersion] = set()

    def refuse_contradiction(self, origins: Iterable[Origin]) -> None:
        """IdentityMismatch where an origin is not the store's, nor that of committed shards.

        Costs a listing when asked again, and shards committed since are looked at. So a writer asks
        before it begins, and again right before each commit: another may have come first.
        """
        for origin in origins:
            self._look_for(_told(origin.match).keys())
            refuse_other_origin(Origin(self._known), origin, str(self._store.root))

    def _look_for(self, names: Iterable[str]) -> None:
        """Learn what committed shards tell of these members, unless it is known."""
        wanted = set(names) - self._known.keys()
        if not wanted:
            return
        for version, absent in sorted(self._store.committed().values()):
            if version in self._seen:
                continue
            with contextlib.suppress(InvalidDocument, UnsupportedFormat, OSError):
                marker = self._store.read_marker(version, absent=absent)
                for origin in self._store.manifest(marker).origins:
                    self._known = _told(origin.match) | self._known
                self._seen.add(version)
            if wanted <= self._known.keys():
                return


def refuse_other_origin(
    expected: Origin,
    found: Origin,
    place: str,
    *,
    remedy: str = "use the model that the store was created for, or create another store",
) -> None:
    """IdentityMismatch naming what contradicts."""
    contradictions = differences(expected.match, found.match)
    if contradictions:
        raise IdentityMismatch(
            f"the source is not the store's: {'; '.join(contradictions)}",
            place=place,
            remedy=remedy,
        )


def _told(match: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in match.items() if value is not None}
