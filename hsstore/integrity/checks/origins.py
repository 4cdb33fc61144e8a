"""Whether all shards were computed alike."""

from collections.abc import Iterator

from hsstore.integrity.subject import Subject
from hsstore.model.finding import Finding


def check(subject: Subject) -> Iterator[Finding]:
    """Note what differs between the origins of the shards examined so far."""
    recorded = [dict(origin) for origin in subject.origins]
    names = sorted({name for origin in recorded for name in origin})
    mixed = []
    for name in names:
        values = sorted({origin.get(name, "unknown") for origin in recorded})
        if len(values) > 1:
            mixed.append(f"{name}: {', '.join(values)}")
    if mixed:
        yield subject.finding("origin-mixed", "; ".join(mixed), mendable=False)
