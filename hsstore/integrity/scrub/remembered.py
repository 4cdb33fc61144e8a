"""What a run of fsck remembers of earlier ones, and leaves for later ones."""

from collections.abc import Callable, Container, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from pathlib import Path

from hsstore.integrity.examine import Listing
from hsstore.integrity.scrub.schedule import Schedule, Scrub, schedule
from hsstore.integrity.scrub.state import State
from hsstore.integrity.scrub.verdicts import (
    Accusation,
    FileHint,
    Standing,
    Verdict,
    file_hint,
    is_as_deep,
)
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model.finding import Finding

EARLIER = (
    "found by an earlier run, beside other shards than are compared now, and not replaced since; a "
    "run over all shards tells whether it is so still"
)


class Memory:
    """The verdicts of one run, on top of those of earlier runs; without a state, of none."""

    def __init__(self, subject: Subject, scrub: Scrub, note: Callable[[str], None]) -> None:
        self._subject = subject
        self._scrub = scrub
        self._note = note
        self._made: dict[int, Verdict] = {}
        self._accused: set[tuple[object, ...]] = set()
        uuid, clock = subject.store.identity.uuid, scrub.clock
        self._state = (
            None if scrub.state is None else State(Path(scrub.state), uuid, note, clock.elapsed)
        )

    def schedule(self, shards: Iterable[int], listing: Listing) -> Schedule:
        """What of ``shards`` is to be looked at now, never looked at first."""
        shards, now, age = [*shards], self._scrub.clock.now(), self._scrub.max_age_seconds
        standings = {
            shard: standing
            for shard in shards
            if (standing := self._standing(shard, listing, now)) is not None
        }
        return schedule(shards, standings, None if age is None else now - age)

    def accuse(self, finding: Finding) -> None:
        """Remember what was found by comparing shards, which fewer of them do not show."""
        if self._state is not None:
            self._accused.add(_about(finding))
            self._state.accuse(Accusation(self._subject.level, finding))

    def recalled(
        self, shards: Container[int], compared: AbstractSet[int], listing: Listing
    ) -> Iterator[Finding]:
        """What earlier runs found by comparing ``shards`` with others, where it still stands.

        A run that has ``compared`` all that are committed sees it itself, or takes it back.
        """
        if self._state is None:
            return
        level = self._subject.level
        if listing.marked <= compared:
            self._state.acquit(level)
            return
        every = sorted(self._state.accused, key=lambda a: (a.finding.shard or 0, str(a)))
        for found_at, finding in every:
            told = _about(finding) in self._accused
            if told or finding.shard not in shards or not is_as_deep(level, found_at):
                continue
            if (
                finding.shard is not None
                and listing.generation(finding.shard) == finding.generation
            ):
                self._note(f"shard {finding.shard}: {finding.kind}: {EARLIER}")
                yield replace(finding, repair=self._subject.report_command())

    def _standing(self, shard: int, listing: Listing, now: float) -> Standing | None:
        markers, intents = listing.of(shard)
        if self._state is None or not markers or intents:
            return None
        generation, subject = listing.generation(shard), self._subject
        return self._state.known.standing(subject.store, shard, generation, subject.level, now)

    def hint(self, shard: int) -> FileHint | None:
        """What is known of a shard's file before it is looked at; None where nobody asks."""
        return None if self._state is None else file_hint(self._subject.store, shard)

    def keep(self, case: ShardCase, file: FileHint | None) -> None:
        """Remember how a shard is; ``file`` is from before it was looked at."""
        generation = generation_of(case)
        if self._state is None or file is None or not generation:
            return
        sound = all(finding.severity == "note" for finding in case.findings)
        now = int(self._scrub.clock.now())
        level = self._subject.level
        self._add(Verdict(case.shard, generation, level, now, sound, file))

    def condemn(self, finding: Finding) -> None:
        """Take back that a shard is sound: something was found that concerns it.

        What was found of no one shard once they were looked at concerns them all: a run that left
        some out would not see it.
        """
        if finding.severity == "note" or (finding.shard is None and finding.kind == "audit-failed"):
            return
        for shard in [*self._made] if finding.shard is None else [finding.shard]:
            if shard in self._made:
                self._condemn(self._made[shard], finding)

    def _condemn(self, made: Verdict, finding: Finding) -> None:
        # No level sees what an audit sees: none but the deepest may take that back.
        level = "thorough" if finding.kind == "audit-wrong" else made.level
        if made.sound or level != made.level:
            self._add(made._replace(sound=False, level=level))

    def _add(self, verdict: Verdict) -> None:
        if self._state is not None:
            self._made[verdict.shard] = verdict
            self._state.add(verdict)

    def save_when_due(self) -> None:
        """Save, if it is time."""
        if self._state is not None:
            self._state.save_when_due()

    def close(self) -> None:
        """Save all."""
        if self._state is not None:
            self._state.close()


def _about(finding: Finding) -> tuple[object, ...]:
    return finding.kind, finding.shard, finding.samples, finding.generation


def generation_of(case: ShardCase) -> int:
    """Which generation of a shard was looked at; 0 where it has none."""
    if case.marker is not None:
        return case.marker.version.generation
    return max((version.generation for version, _ in case.markers), default=0)
