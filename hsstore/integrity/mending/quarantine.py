"""Putting aside what a repair replaces, with a note that says what it was."""

import contextlib
import stat
from pathlib import Path

from hsstore.integrity.subject import printable
from hsstore.model import keys
from hsstore.model.document import FORMAT, seal
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import Chunk
from hsstore.storage import digest
from hsstore.storage.store import Store

KIND = "quarantine"


class Quarantine:
    """One folder of ``quarantine/``, made when the first thing goes into it.

    Its ``note.json`` is a sealed document of kind ``quarantine``: for each item the path it came
    from, and for byte ranges offset, length, and the expected and the found xxh3_64.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store = store
        self._filesystem = store.filesystem
        self._folder = store.root / keys.QUARANTINE / name
        self._items: list[dict[str, object]] = []

    @classmethod
    def of_shard(cls, store: Store, version: ShardVersion, writer: str) -> "Quarantine":
        """The folder of one repair of one shard."""
        return cls(store, f"{version.shard:08d}-{version.generation:06d}.{writer}")

    def set_aside(self, name: str) -> None:
        """Move whatever bears that name here; of a path through a link, the link."""
        path = self._first_unreal(name)
        if not self._filesystem.exists(path):
            return
        self._make()
        target = self._folder / f"{len(self._items):04d}.{path.name}"
        self._filesystem.rename(path, target)
        self._filesystem.sync_folder(path.parent)
        self._filesystem.sync_folder(self._folder)
        came_from = path.relative_to(self._store.root).as_posix()
        self._items.append({"path": printable(came_from), "file": printable(target.name)})

    def keep_file(self, name: str) -> None:
        """Give a plain file a second name here, so that its path never vanishes."""
        self._make()
        file = f"{len(self._items):04d}.whole"
        self._filesystem.link(self._store.root / name, self._folder / file)
        self._items.append({"path": name, "file": file})

    def keep_bytes(self, name: str, chunk: Chunk) -> None:
        """Copy a damaged range of a file here; one that cannot be read is only noted."""
        self._make()
        path = self._store.root / name
        item = {"path": name, "offset": chunk.offset, "length": chunk.length}
        stored = bytearray(chunk.length)
        found = None
        with contextlib.suppress(OSError), self._filesystem.opened(path) as fd:
            count = self._filesystem.read_at(fd, stored, chunk.offset, path)
            found = memoryview(stored)[:count]
        if found:
            file = f"{len(self._items):04d}.{chunk.chunk}"
            self._filesystem.write_new(self._folder / file, found)
            item |= {"file": file, "found_xxh3_64": digest.chunk_digest(found)}
        self._items.append({**item, "expected_xxh3_64": chunk.xxh3_64})

    def close(self) -> None:
        """Write the note; nothing where nothing was put aside."""
        if self._items:
            note = {
                "format": FORMAT,
                "kind": KIND,
                "store": self._store.identity.uuid,
                "items": self._items,
            }
            self._filesystem.replace(self._folder / "note.json", seal(note))
            self._filesystem.sync_folder(self._folder)

    def _make(self) -> None:
        self._filesystem.make_folders(self._folder, below=self._store.root)

    def _first_unreal(self, name: str) -> Path:
        """The path itself, or the first folder on the way to it that is none.

        Raises OSError where that cannot be told: what is no folder for want of an answer may hold
        all that there is.
        """
        path = self._store.root
        *folders, last = name.split("/")
        for part in folders:
            path /= part
            try:
                real = stat.S_ISDIR(self._filesystem.status(path).st_mode)
            except FileNotFoundError:
                real = False
            if not real:
                return path
        return path / last
