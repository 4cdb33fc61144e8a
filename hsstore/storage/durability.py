"""When the staged samples of several writers become durable, and that their source hears of it."""

from collections.abc import Collection, Iterable

from hsstore.model.source import HiddenStateSource
from hsstore.storage import writer as writing
from hsstore.storage.writer import ShardWriter


class Durability:
    """Bounds what a power cut may cost over all open writers, and tells a source what is safe.

    The source hears of every answer once: when the journal that settles it is synced, or when
    nobody here will store it any more.
    """

    def __init__(self, source: HiddenStateSource) -> None:
        self._source = source
        self._untold: set[int] = set()
        self._advanced = False

    def staged(self, sample: int, writers: Collection[ShardWriter]) -> None:
        """Sync what is due now that one more answer is staged in one of ``writers``."""
        self._untold.add(sample)
        for writer in writers:
            writer.sync_when_due()
        unsynced = sum(writer.unsynced_bytes for writer in writers)
        for writer in sorted(writers, key=lambda w: w.unsynced_bytes, reverse=True):
            if unsynced < writing.SYNC_BYTES:
                break
            unsynced -= writer.unsynced_bytes
            writer.sync()
        self.tell(writers)

    def sync(self, writers: Collection[ShardWriter]) -> None:
        """Make all that is staged durable."""
        for writer in writers:
            writer.sync()
        self.tell(writers)

    def tell(self, writers: Iterable[ShardWriter]) -> None:
        """Tell the source what its writers have made durable meanwhile."""
        durable = [sample for writer in writers for sample in writer.take_durable()]
        self._advanced = self._settle(durable) or self._advanced

    def advanced(self) -> bool:
        """Whether anything became durable of which the source had not heard, since last asked."""
        advanced, self._advanced = self._advanced, False
        return advanced

    def drop(self, samples: Iterable[int]) -> None:
        """Answers that will not be stored here: another writer does, or they come too late."""
        wanted = set(samples)
        self._untold |= wanted
        self._settle(wanted)

    def forget(self, samples: Collection[int]) -> None:
        """Drop those of ``samples`` that were staged and of which the source has not heard."""
        self._settle(self._untold.intersection(samples))

    def _settle(self, samples: Iterable[int]) -> bool:
        told = self._untold.intersection(samples)
        if told:
            self._untold -= told
            self._source.settled(sorted(told))
        return bool(told)
