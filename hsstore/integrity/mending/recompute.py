"""Having a source compute lost samples of a shard again."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from hsstore.model.manifest import AbsentSample
from hsstore.model.progress import Progress
from hsstore.model.source import Extracted, Failed, HiddenStateSource, Request, Waiting
from hsstore.model.waits import Waits
from hsstore.storage.durability import Durability
from hsstore.storage.fill import Stager, answered
from hsstore.storage.provenance import Provenance
from hsstore.storage.store import Store
from hsstore.storage.writer import ShardWriter


class Recomputation:
    """One source at work for one store. IdentityMismatch if it is not the store's."""

    def __init__(
        self,
        store: Store,
        source: HiddenStateSource,
        progress: Progress,
        stop: Callable[[], bool],
    ) -> None:
        origin, provenance = source.origin(), Provenance(store)
        provenance.refuse_contradiction([origin])
        self._source = source
        self._stop = stop
        self._stager = Stager(store, provenance, origin)
        self._durability = Durability(source)
        self._waits = Waits(progress)

    def stage(
        self,
        writer: ShardWriter,
        requests: Iterable[Request],
        contents: Mapping[int, str],
        absent: Mapping[int, AbsentSample],
    ) -> Iterator[tuple[Request, Extracted | Failed]]:
        """Stage the answers to ``requests``; each once it is staged.

        ``contents`` are the content digests that the samples had, ``absent`` what is known of
        attempts that failed before. Once asked to stop nothing more is asked for. Raises
        SourceError, OSError.
        """
        try:
            for event in answered(self._until_stopped(requests), self._source):
                if isinstance(event, Waiting):
                    self._waits.waiting(event)
                    self._durability.sync([writer])
                    if event.outage and self._stop():
                        break
                    continue
                self._waits.over()
                request, answer = event
                before = absent.get(request.sample)
                staged = self._stager.stage(
                    writer,
                    request,
                    answer,
                    previous=contents.get(request.sample),
                    earlier=before.tried() if before else (),
                )
                self._durability.staged(request.sample, [writer])
                yield request, staged
        finally:
            self._waits.over()

    def written(self, writer: ShardWriter) -> None:
        """A writer was synced for the last time."""
        self._durability.tell([writer])

    def _until_stopped(self, requests: Iterable[Request]) -> Iterator[Request]:
        for request in requests:
            if self._stop():
                return
            yield request
