"""What every part of a copy is told: from where, to where, and who watches."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hsstore.integrity.copying.room import Room
from hsstore.integrity.subject import Subject
from hsstore.model.progress import Progress
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.store import Store


@dataclass(frozen=True, slots=True)
class Place:
    """The source under examination, and the path and filesystem of the destination."""

    subject: Subject
    target: Path
    filesystem: Filesystem
    room: Room
    progress: Progress
    stop: Callable[[], bool]

    @property
    def source(self) -> Store:
        """The store that is copied."""
        return self.subject.store

    def opened(self) -> Store:
        """The store at the destination. Raises as Store.open."""
        return Store.open(self.target, filesystem=self.filesystem)
