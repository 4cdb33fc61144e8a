"""How far a copy is, in bytes, shard by shard."""

from dataclasses import dataclass

from hsstore.model.progress import Progress


@dataclass(slots=True)
class Meter:
    """Tells ``progress`` of each shard as many bytes as were said of it, whatever came of it."""

    progress: Progress
    bytes_copied: int = 0
    _left: int = 0

    def begin(self, total: int) -> None:
        """A shard of so many bytes begins."""
        self._left = total

    def copied(self, count: int) -> None:
        """So many bytes were copied."""
        self.bytes_copied += count
        self.passed(count)

    def passed(self, count: int) -> None:
        """So many bytes need no more work: an earlier run had copied them."""
        told = min(count, self._left)
        self._left -= told
        self.progress.advance(told)

    def end(self) -> None:
        """The shard is done with, copied or not."""
        self.passed(self._left)
