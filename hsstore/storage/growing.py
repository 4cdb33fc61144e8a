"""Who may grow a store: one at a time, under a claim, and fenced as the writers of shards are.

A growth is prepared in a folder that only its writer uses, plan/.{generation}.{writer}. Its token
files and its plan get their names by a rename and a link out of that folder, so whoever takes over
renames the folder first and knows that from then on the other can change nothing.
"""

import contextlib
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hsstore.errors import ClaimedByAnother
from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.plan import Plan
from hsstore.storage.claim import Claim, acquire
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.lost_plan import refuse_lost_plan
from hsstore.storage.store import Store

TOKENS = "tokens"
# What token files without a plan are called while they are being removed.
UNDECIDED = "undecided"


@dataclass(slots=True)
class Growing:
    """The right to grow a store; ``store`` has the plan that was the newest once it was given."""

    store: Store
    claim: Claim

    @property
    def generation(self) -> int:
        """The generation of the plan that would come next."""
        return self.store.plan.generation + 1

    @property
    def _folder(self) -> Path:
        return self.store.root / keys.growth(self.generation, self.claim.writer)

    def verify(self) -> None:
        """ClaimedByAnother unless nobody has taken over."""
        with _worded():
            self.claim.verify()

    def begin(self) -> None:
        """Make the folder that the growth is prepared in; ClaimedByAnother after a takeover."""
        self._own()
        with _fenced(self.store.filesystem, self._folder):
            self.store.filesystem.make_folder(self._folder / TOKENS)

    def discard(self, undecided: list[Path]) -> None:
        """Remove token files of growths that were never decided; ClaimedByAnother after a takeover.

        Through the own folder: by their name they may be a successor's, decided meanwhile.
        """
        self._own()
        for number, path in enumerate(undecided):
            with _fenced(self.store.filesystem, self._folder):
                self.store.filesystem.rename(path, self._folder / f"{UNDECIDED}-{number}")
        self.withdraw()

    def _own(self) -> None:
        with _fenced(self.store.filesystem, self._folder):
            self.store.filesystem.make_folder(self._folder)
        # A takeover before this found no folder to rename; a later one will.
        self.verify()

    def add_tokens(self, shard: int, raw: bytes) -> None:
        """Prepare the token file of a new shard."""
        name = keys.tokens(self.generation, shard).rpartition("/")[2]
        with _fenced(self.store.filesystem, self._folder):
            self.store.filesystem.write_new(self._folder / TOKENS / name, raw)

    def decide(self, plan: Plan) -> None:
        """Put the token files in place, then the plan: from then on the store is the larger one.

        ClaimedByAnother where another took over or came first; nothing was changed then.
        """
        filesystem, root = self.store.filesystem, self.store.root
        with _fenced(filesystem, self._folder):
            filesystem.sync_folder(self._folder / TOKENS)
            self.verify()
            filesystem.rename(self._folder / TOKENS, root / keys.token_folder(plan.generation))
            filesystem.sync_folder(root / keys.PLAN)
            path = root / keys.plan(plan.generation)
            filesystem.publish(path, seal(plan.to_document()), within=self._folder)

    def withdraw(self) -> None:
        """Remove what was prepared and got no name yet.

        Token files that have theirs stay: without their plan nobody can say whose they are.
        """
        remove_growth(self.store.filesystem, self._folder)


@contextlib.contextmanager
def growing(store: Store) -> Iterator[Growing]:
    """The right to grow a store for the length of a with block; it begins tidy and ends so.

    Raises ClaimedByAnother while a live or possibly live process has it, and InvalidDocument where
    traces of a lost plan show that the store was larger.
    """
    filesystem, root = store.filesystem, store.root
    with _worded():
        claim = acquire(filesystem, root, store.identity.uuid, keys.GROWTH, secrets.token_hex(8))
    try:
        fenced = _fence(filesystem, root)
        # Only now can no earlier writer decide anything any more.
        found = Growing(Store.open(root, filesystem=filesystem), claim)
        refuse_lost_plan(found.store)
        for folder in fenced:
            remove_growth(filesystem, folder)
        try:
            if left := _undecided(found.store):
                found.discard(left)
            yield found
        except FileNotFoundError:
            # Whoever takes over clears away what its predecessor was about to put in place.
            found.verify()
            raise
        finally:
            # The error on its way is the one to see, not that of cleaning up behind it.
            with contextlib.suppress(OSError):
                found.withdraw()
    finally:
        claim.release()


def is_begun(store: Store) -> bool:
    """Whether there is something of a growth that somebody began: alive, or killed at it."""
    claims, plans = (store.filesystem.names(store.root / f) for f in (keys.CLAIM, keys.PLAN))
    claimed = any(name.lstrip(".").startswith(f"{keys.GROWTH:08d}-") for name in claims)
    return claimed or any(map(keys.is_growth, plans)) or bool(_undecided(store))


def undecided(store: Store) -> list[str]:
    """Folders of token files, relative to the store, that no plan names (yet)."""
    return [path.relative_to(store.root).as_posix() for path in _undecided(store)]


def _undecided(store: Store) -> list[Path]:
    names = store.filesystem.names(store.root / keys.PLAN)
    generations = ((name, keys.read_token_folder(name)) for name in names)
    newest = store.plan.generation
    later = (store.root / keys.PLAN / n for n, g in generations if g is not None and g > newest)
    return [path for path in later if _is_folder(store.filesystem, path)]


def _is_folder(filesystem: Filesystem, path: Path) -> bool:
    """Whether that is a folder itself, no link to one; not if it is gone by now."""
    with contextlib.suppress(FileNotFoundError):
        return stat.S_ISDIR(filesystem.status(path).st_mode)
    return False


def _fence(filesystem: Filesystem, root: Path) -> list[Path]:
    """Rename what earlier writers prepared; what they hold cannot be decided from then on."""
    fenced = []
    for name in filter(keys.is_growth, filesystem.names(root / keys.PLAN)):
        path = root / keys.PLAN / name
        if not keys.is_fenced(name):
            path = path.with_name(f"{name}.{secrets.token_hex(4)}")
            # Its owner may withdraw it at this moment; then there is nothing to fence.
            with contextlib.suppress(FileNotFoundError):
                filesystem.rename(root / keys.PLAN / name, path)
        fenced.append(path)
    return fenced


def remove_growth(filesystem: Filesystem, folder: Path) -> None:
    """Remove a folder that a growth was prepared in, and the folders of token files in it."""
    with contextlib.suppress(FileNotFoundError):
        for name in filesystem.names(folder):
            if name == TOKENS or name.startswith(f"{UNDECIDED}-"):
                filesystem.remove_folder(folder / name)
    filesystem.remove_folder(folder)


@contextlib.contextmanager
def _fenced(filesystem: Filesystem, folder: Path) -> Iterator[None]:
    """Name the reason when a takeover renamed the folder away under us."""
    try:
        yield
    except FileNotFoundError:
        if filesystem.exists(folder):
            raise
        raise ClaimedByAnother(
            "another process has taken over growing the store; this one changed nothing",
            remedy="run the same command again once that one is done",
        ) from None


@contextlib.contextmanager
def _worded() -> Iterator[None]:
    """Say of the claim what it is for: it has no shard."""
    try:
        yield
    except ClaimedByAnother:
        raise ClaimedByAnother(
            "another process is growing the store",
            remedy="wait for it to finish; a dead one's work is taken over by itself",
        ) from None
