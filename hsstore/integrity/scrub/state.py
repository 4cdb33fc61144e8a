"""The verdicts of all runs of fsck over one store, in a folder outside of it.

Each run keeps its own in a file of its own, which it replaces every few seconds: runs at one time,
on any machine that shares the folder, lose nothing of each other, and need no locks. What ended
runs left is gathered into the file of a later one. A file is a sealed document, as in a store.
"""

import contextlib
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.integrity.scrub.verdicts import (
    Accusation,
    FileHint,
    Verdict,
    Verdicts,
    is_as_deep,
)
from hsstore.model.document import (
    FORMAT,
    Check,
    Document,
    Problem,
    array,
    hexadecimal,
    one_of,
    seal,
    unseal,
    validate,
)
from hsstore.model.finding import LEVELS, Level
from hsstore.model.report import read_finding
from hsstore.storage.filesystem import LOCAL

KIND = "verdicts"
# Left out where there is nothing of it.
ACCUSED = "accused"
SAVE_SECONDS = 5.0
# Saving takes longer the more there is to save; it shall not take all the time there is.
SAVE_SHARE = 20
# A run that has not saved for so long is taken for dead. It is not: its next save brings all back.
DEAD_SECONDS = 86400
LATEST_TIME = 1 << 37
NAME = re.compile(r"[0-9]{10,}-[0-9a-f]{16}\.json")


def default_folder() -> Path:
    """Where verdicts are kept unless told otherwise; RuntimeError where there is no home."""
    given = os.environ.get("XDG_STATE_HOME", "")
    # What is not absolute is to be ignored, says the standard of these folders.
    home = Path(given) if given.startswith("/") else Path.home() / ".local" / "state"
    return home / "hsstore"


class State:
    """The verdicts that earlier runs left about one store (``known``), and those of this run.

    So with what runs found by comparing shards: ``accused``.
    """

    def __init__(
        self,
        folder: Path,
        store: str,
        note: Callable[[str], None],
        elapsed: Callable[[], float] = time.monotonic,
    ) -> None:
        self.known = Verdicts()
        self.accused: set[Accusation] = set()
        self._folder = folder / store
        self._store = store
        self._note = note
        self._elapsed = elapsed
        self._file = self._folder / f"{time.time_ns():020d}-{secrets.token_hex(8)}.json"
        self._own = Verdicts()
        self._own_accused: set[Accusation] = set()
        self._acquitted: Level | None = None
        self._ended: list[Path] = []
        self._torn: list[Path] = []
        self._unsaved = self._told = False
        self._next = elapsed() + SAVE_SECONDS
        self._read()

    def add(self, verdict: Verdict) -> None:
        """Keep a verdict of this run; ``known`` stays what it was."""
        self._own.add([verdict])
        self._unsaved = True

    def accuse(self, accusation: Accusation) -> None:
        """Keep what this run found by comparing shards."""
        self._own_accused.add(accusation)
        self._unsaved = True

    def acquit(self, level: Level) -> None:
        """Drop, when all is saved, what earlier runs found so at this level or a shallower one."""
        self._acquitted = level
        self._unsaved |= bool(self.accused)

    def save_when_due(self) -> None:
        """Save what this run saw, if some seconds have passed since that was last done."""
        if self._unsaved and self._elapsed() >= self._next:
            self._save(_Saved(self._own, self._own_accused), finished=False)

    def close(self) -> None:
        """Save all, together with what ended runs left, and remove what that makes needless."""
        if not self._unsaved:
            return
        ended = [(path, found) for path in self._ended if (found := self._saved(path))]
        gathered = Verdicts(verdict for _, found in ended for verdict in found.verdicts)
        gathered.add(self._own)  # last: within one second, this run was the later one
        accused = {each for _, found in ended for each in found.accused if self._stands(each)}
        if self._save(_Saved(gathered, accused | self._own_accused), finished=True):
            for path, _ in ended:
                with contextlib.suppress(OSError):
                    LOCAL.unlink(path)
            for path in self._torn:
                with contextlib.suppress(OSError):
                    LOCAL.rename(path, path.with_suffix(".torn"))

    def _stands(self, accusation: Accusation) -> bool:
        level = self._acquitted
        return level is None or not is_as_deep(level, accusation.level)

    # -- reading --------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            names = LOCAL.names(self._folder)
        except FileNotFoundError:
            return
        except OSError as error:
            self._give_up(error, "verdicts of earlier runs cannot be read")
            return
        for name in filter(NAME.fullmatch, names):
            if (saved := self._saved(self._folder / name, tell=True)) is not None:
                self.known.add(saved.verdicts)
                self.accused |= saved.accused

    def _saved(self, path: Path, *, tell: bool = False) -> "_Saved | None":
        """What a file holds; None where it is gone or not whole."""
        try:
            document = {ACCUSED: [], **unseal(LOCAL.read(path), KIND)}
            validate(document, FIELDS)
            accused = {Accusation(level, read_finding(line)) for level, line in document[ACCUSED]}
        except FileNotFoundError:
            return None  # another run has gathered it
        except (InvalidDocument, UnsupportedFormat, OSError) as error:
            if tell:
                self._torn += [] if isinstance(error, OSError) else [path]
                what = error.strerror if isinstance(error, OSError) else error
                self._note(f"{path}: {what}; the verdicts in it do not count")
            return None
        if document["store"] != self._store:
            return None
        if tell and (document["finished"] or self._is_old(path)):
            self._ended.append(path)
        return _Saved(Verdicts(_rows(document)), accused)

    def _is_old(self, path: Path) -> bool:
        try:
            return time.time() - LOCAL.status(path).st_mtime > DEAD_SECONDS
        except OSError:
            return False

    # -- writing --------------------------------------------------------------------------------

    def _save(self, what: "_Saved", *, finished: bool) -> bool:
        started = self._elapsed()
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            LOCAL.replace(self._file, seal(self._document(what, finished=finished)))
        except OSError as error:
            self._give_up(error, "verdicts are not kept")
            saved = False
        else:
            self._unsaved, saved = False, True
        ended = self._elapsed()
        self._next = ended + max(SAVE_SECONDS, SAVE_SHARE * (ended - started))
        return saved

    def _document(self, what: "_Saved", *, finished: bool) -> Document:
        rows = [[*verdict[:-1], *verdict.file] for verdict in what.verdicts]
        own = {"store": self._store, "finished": finished, "verdicts": rows}
        if what.accused:
            own[ACCUSED] = [[level, finding.to_json()] for level, finding in what.accused]
        return {"format": FORMAT, "kind": KIND, **own}

    def _give_up(self, error: OSError, what: str) -> None:
        """Say it once; a scrub goes on without."""
        if not self._told:
            self._told = True
            self._note(f"{self._folder}: {what}: {error.strerror}; give --state another folder")


class _Saved(NamedTuple):
    """What one file holds."""

    verdicts: Verdicts
    accused: set[Accusation]


def _rows(document: Document) -> Iterator[Verdict]:
    for shard, generation, level, when, sound, *file in document["verdicts"]:
        yield Verdict(shard, generation, level, when, sound, FileHint(*file))


def _row(value: object, path: str) -> list[Problem]:
    types = tuple(map(type, value)) if isinstance(value, list) else ()
    if not isinstance(value, list) or types != ROW:
        return [Problem(path, "type", "not a verdict")]
    if value[2] not in LEVELS or not 0 <= value[3] < LATEST_TIME:
        return [Problem(path, "choice", "no such level or time")]
    return []


def _accusation(value: object, path: str) -> list[Problem]:
    if isinstance(value, list) and len(value) == 2 and value[0] in LEVELS:  # noqa: PLR2004 - a pair
        return [] if isinstance(value[1], dict) else [Problem(path, "type", "not a finding")]
    return [Problem(path, "type", "not a level and a finding")]


ROW: tuple[type, ...] = (int, int, str, int, bool, int, int, int)
FIELDS: dict[str, Check] = {
    "store": hexadecimal(32),
    "finished": one_of(*(True, False)),
    "verdicts": array(_row),
    ACCUSED: array(_accusation),
}
