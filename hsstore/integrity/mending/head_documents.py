"""Documents without which a store cannot be opened, given back by a copy of the very store.

hsstore.json is proven by nothing else in a store: what its model has of layers and vocabulary is
told nowhere but there. Of plans, each is proven by the seal that the next one names; the newest is
not. A copy has both byte for byte; they are taken once everything here agrees with them.
"""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import xxhash

from hsstore.errors import (
    IdentityMismatch,
    InvalidDocument,
    NotAStore,
    StoreError,
    UnsupportedFormat,
)
from hsstore.integrity.mending.quarantine import Quarantine
from hsstore.integrity.plain_file import Trouble, names_in, read_plain
from hsstore.model import commands, keys
from hsstore.model.document import unseal
from hsstore.model.identity import KIND as STORE_KIND
from hsstore.model.identity import StoreIdentity
from hsstore.model.manifest import KIND as MANIFEST_KIND
from hsstore.model.manifest import Manifest
from hsstore.model.marker import COMMIT_KIND
from hsstore.model.plan import KIND as PLAN_KIND
from hsstore.model.plan import Plan
from hsstore.model.repair_plan import Step
from hsstore.model.source import differences, expected_match
from hsstore.storage.claim import claimed
from hsstore.storage.filesystem import LOCAL, Filesystem
from hsstore.storage.lost_plan import traces
from hsstore.storage.shard_file import encode_index
from hsstore.storage.store import Store, newest_plan

PathLike = str | os.PathLike[str]

UNPROVEN = (
    "other documents tell the store's uuid, its layers, dtype and geometry and the digests of the "
    "model, but none the model's type, its number of blocks or its vocabulary"
)
UNNAMED = (
    "the seal of a plan is named by the plan after it only, and no plan comes after the newest"
)


def give_back_documents(
    path: PathLike,
    replica: PathLike | None,
    *,
    apply: bool = False,
    filesystem: Filesystem = LOCAL,
) -> tuple[Step, ...]:
    """Put hsstore.json and the newest plan back where they are lost; the steps that takes.

    None in a store that has both. Without ``apply`` nothing is written, and what else is wrong
    shows only once these are back. Raises NotAStore, InvalidDocument where they are lost and no
    ``replica`` is given, IdentityMismatch for one of another store, StoreError for one that does
    not fit what is here, ClaimedByAnother, OSError.
    """
    lost = _Lost.in_store(Path(path), filesystem)
    if not lost.names:
        return ()
    if replica is None:
        raise lost.refusal()
    found = lost.taken_from(Path(replica))
    if apply:
        lost.put_back(found)
    return tuple(Step("give-back", lost.names[name], "replica", path=name, reads_bytes=len(raw),
                      writes_bytes=len(raw)) for name, raw in found.items())  # fmt: skip


class _Lost:
    """Which of the two documents a store lacks: ``names`` says why of each, by its path."""

    def __init__(self, root: Path, filesystem: Filesystem) -> None:
        self.root = root
        self.filesystem = filesystem
        self.names: dict[str, str] = {}
        self.identity: StoreIdentity | None = None
        self.plan: Plan | None = None

    @classmethod
    def in_store(cls, root: Path, filesystem: Filesystem) -> "_Lost":
        """Look at a store; NotAStore where nothing says that there is one."""
        lost = cls(root, filesystem)
        raw = lost._read(keys.IDENTITY)
        if raw is not None:
            with lost._noting(keys.IDENTITY):
                place = str(root / keys.IDENTITY)
                lost.identity = StoreIdentity.from_document(unseal(raw, STORE_KIND, place=place))
        if lost.identity is None and not lost.uuids():
            raise NotAStore(
                "no hsstore store here",
                place=str(root),
                remedy="check the path, or make one with: hsstore create",
            )
        lost._look_at_plan()
        return lost

    def _look_at_plan(self) -> None:
        uuid = self.identity.uuid if self.identity else min(self.uuids())
        with self._noting(keys.PLAN):
            self.plan = newest_plan(self.filesystem, self.root, uuid, or_older=True)
            if self.identity is None:
                return
            beyond = traces(Store(self.root, self.identity, self.plan, self.filesystem))
            if beyond:
                self.names[keys.PLAN] = (
                    "the store was larger than its newest whole plan says: "
                    f"{beyond[0]} is beyond it"
                )

    @contextlib.contextmanager
    def _noting(self, name: str) -> Iterator[None]:
        try:
            yield
        except InvalidDocument as error:
            self.names[name] = error.message
        except (FileNotFoundError, NotADirectoryError):
            self.names[name] = "it is gone"

    def _read(self, name: str) -> bytes | None:
        try:
            return read_plain(self.filesystem, self.root, name)
        except Trouble as trouble:
            if trouble.state == "unreadable":
                raise StoreError(
                    f"{name} cannot be read: {trouble.detail}",
                    place=str(self.root),
                    remedy="mend the permissions or the disk first",
                ) from None
            self.names[name] = trouble.detail
            return None

    def uuids(self) -> set[str]:
        """The stores that whole plans, markers and manifests here say that they are of."""
        found = set()
        for folder, kind in ((keys.PLAN, PLAN_KIND), (keys.COMMIT, COMMIT_KIND),
                             (keys.MANIFEST, MANIFEST_KIND)):  # fmt: skip
            for name in names_in(self.filesystem, self.root, folder):
                with contextlib.suppress(Trouble, InvalidDocument, UnsupportedFormat):
                    raw = read_plain(self.filesystem, self.root, f"{folder}/{name}")
                    found.add(str(unseal(raw, kind).get("store")))
        return found

    def refusal(self) -> InvalidDocument:
        """Why the lost documents cannot be made again from what is here."""
        name, why = next(iter(self.names.items()))
        proven = UNPROVEN if name == keys.IDENTITY else UNNAMED
        path = commands.hsstore("repair", self.root, "--from", "REPLICA", "--apply")
        return InvalidDocument(
            f"{why}; it cannot be made again: {proven}",
            place=str(self.root / name),
            remedy=f"give a copy of this very store: {path}",
        )

    # -- from a copy ---------------------------------------------------------------------------

    def taken_from(self, replica: Path) -> dict[str, bytes]:
        """The lost documents by path, as the copy has them, proven to be of this store."""
        copy = Store.open(replica)
        ours = {self.identity.uuid} if self.identity else self.uuids()
        if ours != {copy.identity.uuid}:
            raise IdentityMismatch(
                f"it is no copy of this very store: it is {copy.identity.uuid}, and the documents "
                f"here are of {', '.join(sorted(ours))}",
                place=str(replica),
                remedy="give a copy with the same uuid; a store made anew cannot give these back",
            )
        found: dict[str, bytes] = {}
        if keys.IDENTITY in self.names:
            found[keys.IDENTITY] = copy.filesystem.read(replica / keys.IDENTITY)
        plan = self.plan
        if plan is not None and traces(Store(self.root, copy.identity, plan, self.filesystem)):
            plan = None
        if keys.PLAN in self.names or plan is None:
            plan = copy.plan
            name = keys.plan(plan.generation)
            self.names[name] = self.names.pop(keys.PLAN, "it is gone")
            found[name] = copy.filesystem.read(replica / name)
        self._refuse_misfit(Store(self.root, copy.identity, plan, self.filesystem))
        return found

    def _refuse_misfit(self, mended: Store) -> None:
        """StoreError where what is here contradicts the store that it would be."""
        problems = [f"{name} is beyond its plan" for name in traces(mended)[:1]]
        problems += _token_problems(mended)
        problems += _chain_problems(mended)
        for name in names_in(self.filesystem, self.root, keys.MANIFEST):
            problems += _manifest_problems(mended, f"{keys.MANIFEST}/{name}")
        if problems:
            raise StoreError(
                f"what the copy has does not fit the store: {problems[0]}",
                place=str(self.root),
                remedy="give a copy that was made after the store last grew",
            )

    def put_back(self, found: dict[str, bytes]) -> None:
        """Publish the documents; what is in their place goes to quarantine first."""
        identity = self.identity
        if keys.IDENTITY in found:
            identity = StoreIdentity.from_document(unseal(found[keys.IDENTITY], STORE_KIND))
        plan = self.plan
        for name, raw in found.items():
            if name != keys.IDENTITY:
                plan = Plan.from_document(unseal(raw, PLAN_KIND))
        if identity is None or plan is None:
            raise ValueError("nothing says which store this is")
        store = Store(self.root, identity, plan, self.filesystem)
        for folder in (keys.PLAN, keys.CLAIM, keys.QUARANTINE):
            self.filesystem.make_folder(self.root / folder)
        with claimed(self.filesystem, self.root, identity.uuid, keys.GROWTH) as claim:
            quarantine = Quarantine(store, f"derived.{secrets.token_hex(8)}")
            # The plan first: without hsstore.json nobody takes the store for one meanwhile.
            for name, raw in sorted(found.items(), reverse=True):
                quarantine.set_aside(name)
                claim.verify()
                self.filesystem.publish(self.root / name, raw)
            quarantine.close()


def _token_problems(store: Store) -> Iterator[str]:
    """Token files that are whole by themselves and not those of the plan.

    One that is damaged says nothing against the plan, so most of them must be right.
    """
    right = wrong = 0
    last = ""
    for shard, planned in enumerate(store.plan.token_files):
        name = keys.tokens(planned.generation, shard)
        with contextlib.suppress(Trouble):
            raw = read_plain(store.filesystem, store.root, name)
            fits = xxhash.xxh3_128_hexdigest(raw) == planned.xxh3_128
            right, wrong = right + fits, wrong + (not fits)
            last = last if fits else name
    if wrong > right:
        yield f"{last} and {wrong - 1} more are not the token files of its plan"


def _chain_problems(store: Store) -> Iterator[str]:
    """Whether the plan continues the one before it, where that is whole."""
    generation = store.plan.generation - 1
    if generation < 0:
        return
    with contextlib.suppress(Trouble, InvalidDocument, UnsupportedFormat):
        raw = read_plain(store.filesystem, store.root, keys.plan(generation))
        earlier = Plan.from_document(unseal(raw, PLAN_KIND))
        if earlier.seal != store.plan.previous:
            yield f"its plan {store.plan.generation} does not continue plan {generation}"


def _manifest_problems(store: Store, name: str) -> Iterator[str]:
    """Whether a manifest that is whole can be of this store, by geometry, codec and origin."""
    identity = store.identity
    try:
        raw = read_plain(store.filesystem, store.root, name)
        manifest = Manifest.from_document(unseal(raw, MANIFEST_KIND))
    except (Trouble, InvalidDocument, UnsupportedFormat):
        return
    geometry = identity.geometry
    if any(chunk.chunk >= geometry.chunks_per_shard for chunk in manifest.chunks):
        yield f"{name} has chunks that its geometry does not"
        return
    if xxhash.xxh3_64_hexdigest(encode_index(manifest.chunks, geometry)) != manifest.index_xxh3_64:
        yield f"the shard index of {name} is of another geometry"
    if identity.codec == "none" and any(c.length != geometry.chunk_bytes for c in manifest.chunks):
        yield f"{name} has chunks of another size"
    for origin in manifest.origins:
        for text in differences(expected_match(identity.model, identity.capture), origin.match):
            yield f"by {name}, {text}"
