"""Whether all shards were computed alike."""

import itertools
from collections.abc import Iterator

from hsstore.integrity.subject import Subject
from hsstore.model.finding import Finding
from hsstore.model.source import differences, expected_match


def check(subject: Subject) -> Iterator[Finding]:
    """Compare the origins of the shards examined so far with each other."""
    yield from _contradicting(subject)
    recorded = [dict(recorded) for _, recorded in subject.origins]
    names = sorted({name for origin in recorded for name in origin})
    mixed = []
    for name in names:
        values = sorted({origin.get(name, "unknown") for origin in recorded})
        if len(values) > 1:
            mixed.append(f"{name}: {', '.join(values)}")
    if mixed:
        yield subject.finding("origin-mixed", "; ".join(mixed), mendable=False)


def _contradicting(subject: Subject) -> Iterator[Finding]:
    """What the store's identity leaves open must still be one and the same for all states."""
    identity = subject.store.identity
    expected = expected_match(identity.model, identity.capture)
    shards: dict[tuple[tuple[str, str | None], ...], list[int]] = {}
    for (match, _), found in subject.origins.items():
        # What contradicts the identity is a finding of its shard already.
        if not differences(expected, dict(match)):
            shards.setdefault(match, []).extend(found)
    by_size = sorted(shards, key=lambda match: len(set(shards[match])), reverse=True)
    for one, other in itertools.combinations(by_size, 2):
        if contradictions := differences(dict(one), dict(other)):
            detail = f"in {_some(shards[other])}, {'; '.join(contradictions)} as in "
            detail += _some(shards[one])
            yield subject.finding("origin-contradicts", detail, mendable=False)


def _some(shards: list[int]) -> str:
    every = sorted(set(shards))
    more = f" and {len(every) - 1} more" if len(every) > 1 else ""
    return f"shard {every[0]}{more}"
