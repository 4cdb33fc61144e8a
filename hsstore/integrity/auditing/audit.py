"""An audit: after the checks of fsck, some samples are computed again and compared."""

import contextlib
import dataclasses
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any

from numpy.typing import NDArray

from hsstore.errors import SourceError
from hsstore.integrity.auditing.comparison import compare
from hsstore.integrity.auditing.looks import Evidence, wrongs
from hsstore.integrity.auditing.other_sample import whose_rows
from hsstore.integrity.auditing.selection import draw, in_order_of_origin
from hsstore.integrity.auditing.verified import VerifiedSamples
from hsstore.integrity.auditing.wording import noise, wrong
from hsstore.integrity.fsck import Fsck
from hsstore.model.audit import AuditCounts
from hsstore.model.finding import Finding
from hsstore.model.progress import Progress, Silent
from hsstore.model.source import Extracted, Failed, HiddenStateSource, Request, Waiting
from hsstore.model.waits import Waits
from hsstore.storage.fill import answered, is_finite
from hsstore.storage.provenance import Provenance


class Audit:
    """A run of fsck, and then an audit: an iterator of the findings of both.

    ``samples`` committed samples of the run's shards, drawn by ``seed``, are asked of ``source``,
    which has to compute each by itself. What the store holds of them is verified, compared bit by
    bit, then value by value. The run's ``summary`` counts along in ``audit``, and is complete only
    if each was compared, or found damaged. The run's time limit holds for both. Nothing is written;
    ``source`` stays open.

    Raises IdentityMismatch when it is made, if the source is not the store's.
    """

    def __init__(
        self,
        run: Fsck,
        source: HiddenStateSource,
        samples: int,
        seed: int,
        *,
        progress: Progress | None = None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        self._store = run.subject.store
        self._provenance = Provenance(self._store)
        self._provenance.refuse_contradiction([source.origin()])
        self.summary = run.summary
        self.counts = self.summary.audit = AuditCounts(samples, 0, seed)
        self._run = run
        self._source = source
        self._progress = progress or Silent()
        self._stop = stop
        self._verified = VerifiedSamples(self._store)
        self._told: set[Finding] = set()
        run.then(self._check)

    def __iter__(self) -> Generator[Finding, None, None]:
        with contextlib.closing(iter(self._run)) as findings:
            for finding in findings:
                self._told.add(finding)
                yield finding

    def _check(self) -> Iterator[Finding]:
        """What the audit finds, once the run is through with everything else."""
        try:
            yield from self._findings()
        finally:
            self._verified.close()

    def _findings(self) -> Iterator[Finding]:
        chosen = self._choose()
        self._progress.start(len(chosen), 0, "samples")
        waits, aside = Waits(self._progress), deque[Finding]()
        requests = self._requests(chosen, aside)
        try:
            for event in answered(requests, self._source):
                yield from _taken(aside)
                if isinstance(event, Waiting):
                    waits.waiting(event)
                    if event.outage and self._is_over():
                        return
                    continue
                waits.over()
                yield from self._judged(*event)
                self._source.settled([event[0].sample])
                self._verified.forget(event[0].sample)
                self._progress.advance(1)
        except SourceError as error:
            yield self._cut_short(error)
        finally:
            waits.over()
        yield from _taken(aside)

    def _cut_short(self, error: SourceError) -> Finding:
        counts = self.counts
        left = counts.drawn - counts.audited - counts.damaged - counts.failed
        counts.failed += left
        return self._verified.subject.finding(
            "audit-failed", f"{left} samples could not be computed again: {error}", mendable=False
        )

    def _is_over(self) -> bool:
        """Whether nothing more is to be asked for."""
        return self._stop() or self._run.is_out_of_time()

    # -- choosing ------------------------------------------------------------------------------

    def _choose(self) -> list[tuple[int, int]]:
        """The shard and the global index of every sample to audit, in the order of asking."""
        shards = in_order_of_origin(self._committed(), self._origins())
        present = [self._verified.present(shard) for shard in shards]
        sizes = [len(samples) for samples in present]
        self.counts.population = sum(sizes)
        drawn = draw(sizes, self.counts.asked, self.counts.seed)
        return [(shards[group], present[group][place]) for group, place in drawn]

    def _committed(self) -> list[int]:
        return [shard for shard in self._run.shards if shard in self._verified.committed]

    def _origins(self) -> Callable[[int], Sequence[int]]:
        """The numbers of a shard's origins, as far as the checks before came upon them."""
        found: dict[int, list[int]] = {}
        for number, shards in enumerate(self._run.subject.origins.values()):
            for shard in shards:
                found.setdefault(shard, []).append(number)
        return lambda shard: found.get(shard, [])

    def _requests(
        self, chosen: Iterable[tuple[int, int]], aside: deque[Finding]
    ) -> Iterator[Request]:
        """What to ask the source; findings about samples that are damaged are put aside."""
        for shard, sample in chosen:
            if self._is_over():
                return
            aside += self._untold(self._verified.examine(shard, sample))
            self.summary.bytes_checked += self._verified.case(sample).bytes_checked
            if self._verified.is_lost(sample):
                self.counts.damaged += 1
            elif (request := self._verified.request(shard, sample)) is None:
                self.counts.failed += 1
                aside.append(self._failed(sample, "its token ids are lost"))
            else:
                yield request

    def _untold(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        for finding in findings:
            if finding not in self._told:
                self._told.add(finding)
                yield finding

    # -- judging -------------------------------------------------------------------------------

    def _judged(self, request: Request, answer: Extracted | Failed) -> Iterator[Finding]:
        if isinstance(answer, Failed):
            self.counts.failed += 1
            yield self._failed(request.sample, f"{answer.kind}: {answer.detail}")
            return
        if answer.origin is not None:
            self._provenance.refuse_contradiction([answer.origin])
        if not is_finite(answer.states):
            self.counts.failed += 1
            yield self._failed(request.sample, "computed again, its values are not finite")
            return
        stored = self._verified.read(request.sample)
        if stored is None:
            self.counts.damaged += 1
            yield from self._untold(self._verified.findings(request.sample))
        else:
            yield from self._compared(request, stored, answer.states)

    def _compared(
        self, request: Request, stored: NDArray[Any], found: NDArray[Any]
    ) -> Iterator[Finding]:
        if (found.shape, found.dtype) != (stored.shape, stored.dtype):
            raise SourceError(f"the source answered {found.dtype} {found.shape}")
        capture = self._store.identity.capture
        figures = compare(stored, found, capture.layers)
        if all(layer.exact for layer in figures):
            self.counts.exact += 1
            return
        phrases = wrongs(Evidence(capture.layers, capture.dtype, stored, found, figures))
        if phrases:
            self.counts.wrong += 1
            whose = whose_rows(self._verified, request, stored, found, capture.dtype)
            yield self._finding("audit-wrong", request.sample, *wrong(phrases, figures, whose))
        else:
            self.counts.noise += 1
            yield self._finding("audit-noise", request.sample, *noise(figures))

    def _finding(self, kind: str, sample: int, detail: str, evidence: str | None = None) -> Finding:
        case = self._verified.case(sample)
        found = case.finding(kind, detail, samples=[sample], evidence=evidence)
        repair = self._verified.remedy() if found.severity == "error" else None
        generation = case.marker.version.generation if case.marker else None
        return dataclasses.replace(found, repair=repair, generation=generation)

    def _failed(self, sample: int, detail: str) -> Finding:
        return self._finding("audit-failed", sample, detail)


def _taken(aside: deque[Finding]) -> Iterator[Finding]:
    while aside:
        yield aside.popleft()
