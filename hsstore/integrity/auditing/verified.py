"""What a store holds of single samples, verified; and where that fails, what fsck says of it."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from hsstore.errors import StoreError
from hsstore.integrity.checks import chunks
from hsstore.integrity.examine import Listing, examine
from hsstore.integrity.subject import ShardCase, Subject
from hsstore.model.finding import Finding
from hsstore.model.keys import ShardVersion
from hsstore.model.source import Request
from hsstore.storage.digest import content_digest
from hsstore.storage.reader import Reader
from hsstore.storage.store import Store


class VerifiedSamples:
    """Samples of one store, each to be examined before it is read.

    A sample is examined as fsck does at level data, but of its shard's chunks only its own are
    hashed.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.subject = Subject(store, "manifest", threads=1)
        self._listing = Listing(self.subject)
        self._reader = Reader(store)
        self._cases: dict[int, ShardCase] = {}

    def close(self) -> None:
        """Let go of threads."""
        self.subject.chunks.close()

    @cached_property
    def committed(self) -> dict[int, tuple[ShardVersion, bool]]:
        """What is committed, listed once: a store has tens of thousands of shards."""
        return self.store.committed()

    def present(self, shard: int) -> Sequence[int]:
        """The global indexes of a shard's committed samples; none where they cannot be told."""
        samples = self.subject.samples(shard)
        version, absent = self.committed[shard]
        if not absent:
            return samples
        try:
            manifest = self.store.manifest(self.store.read_marker(version, absent=True))
        except (StoreError, OSError):
            return []
        return [stored.sample for stored in manifest.samples]

    def examine(self, shard: int, sample: int) -> Iterator[Finding]:
        """Examine a shard and this sample's chunks; what is wrong."""
        case = self._cases[sample] = examine(self.subject, shard, self._listing)
        if case.manifest is not None and sample not in case.lost:
            case.findings += chunks.check(case, {sample})
        yield from case.findings

    def case(self, sample: int) -> ShardCase:
        """What is known of the shard of a sample that was examined."""
        return self._cases[sample]

    def findings(self, sample: int) -> list[Finding]:
        """What is wrong with the shard of a sample that was examined."""
        return self._cases[sample].findings

    def is_lost(self, sample: int) -> bool:
        """Whether a sample that was examined cannot be read as it was stored."""
        case = self._cases[sample]
        return case.manifest is None or sample in case.lost

    def request(self, shard: int, sample: int) -> Request | None:
        """What to ask a source for a sample; None where its token ids are lost."""
        tokens = self.subject.tokens(shard)
        if tokens is None:
            return None
        key, ids, _ = tokens.sample(sample - tokens.first_sample)
        return Request(sample, key, ids)

    def read(self, sample: int) -> NDArray[Any] | None:
        """The states of a sample that was examined, verified again; None where they are damaged.

        A shard that was replaced meanwhile is examined anew.
        """
        states = self._states(sample)
        if states is not None and content_digest(states) == self._content(sample):
            return states
        self._listing = Listing(self.subject)
        self._reader.refresh()
        list(self.examine(self._cases[sample].shard, sample))
        return None if self.is_lost(sample) else self._states(sample)

    def forget(self, sample: int) -> None:
        """A sample that was examined is done with."""
        del self._cases[sample]

    def peek(self, sample: int) -> NDArray[Any] | None:
        """The states of any sample, verified; None where there are none."""
        return self._states(sample)

    def remedy(self) -> str:
        """The command that mends what an audit finds wrong."""
        return self.subject.report_command()

    def _states(self, sample: int) -> NDArray[Any] | None:
        try:
            return self._reader.read(sample, verify=True)
        except (StoreError, OSError):
            return None

    def _content(self, sample: int) -> str | None:
        manifest = self._cases[sample].manifest
        samples = manifest.samples if manifest else ()
        return next((stored.content for stored in samples if stored.sample == sample), None)
