"""A store opened for reading: its identity, its plan, and what is committed."""

import errno
import functools
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Self

import numpy as np
import xxhash

from hsstore.errors import InvalidDocument, NotAStore, SampleMissing, StoreError
from hsstore.model import commands, keys
from hsstore.model.capture import FINAL
from hsstore.model.document import unseal
from hsstore.model.geometry import Extent, place
from hsstore.model.identity import KIND as STORE_KIND
from hsstore.model.identity import StoreIdentity
from hsstore.model.keys import ShardVersion
from hsstore.model.manifest import KIND as MANIFEST_KIND
from hsstore.model.manifest import Manifest
from hsstore.model.marker import Marker
from hsstore.model.plan import KIND as PLAN_KIND
from hsstore.model.plan import Plan
from hsstore.storage import token_file
from hsstore.storage.commit import committed_versions, read_marker
from hsstore.storage.filesystem import LOCAL, NO_PLAIN_FILE, Filesystem
from hsstore.storage.sample_table import SampleTable
from hsstore.storage.zarr_arrays import TABLE_CHUNK


class Store:
    """One store on disk. Opening it reads two small documents and a listing.

    Attributes:
        root: the folder.
        identity: what the store holds (hsstore.json).
        plan: how many samples and shards it has.
        filesystem: the I/O seam.

    """

    def __init__(self, root: Path, identity: StoreIdentity, plan: Plan,
                 filesystem: Filesystem = LOCAL) -> None:  # fmt: skip
        self.root = root
        self.identity = identity
        self.plan = plan
        self.filesystem = filesystem

    @classmethod
    def open(
        cls, path: str | Path, *, filesystem: Filesystem = LOCAL, to_check: bool = False
    ) -> Self:
        """Open the store at ``path``.

        A store whose folders are links or anything else than folders, or whose newest plan is
        damaged, is refused, unless it is to be checked: then the newest whole plan counts.
        Raises NotAStore, UnsupportedFormat, InvalidDocument, OSError.
        """
        root = Path(path)
        try:
            raw = filesystem.read(root / keys.IDENTITY)
        except OSError as error:
            if error.errno in NO_PLAIN_FILE:
                raise InvalidDocument(
                    "no plain file", place=str(root / keys.IDENTITY), remedy=_fsck(root)
                ) from None
            if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
                raise
            if _has_plans(filesystem, root):
                raise InvalidDocument(
                    "it is gone, and the rest of a store is here",
                    place=str(root / keys.IDENTITY),
                    remedy="put it back from a copy of this very store: "
                    + commands.hsstore("repair", root, "--from", "REPLICA", "--apply"),
                ) from None
            raise NotAStore(
                "no hsstore store here",
                place=str(root),
                remedy="check the path, or make one with: hsstore create",
            ) from None
        name = str(root / keys.IDENTITY)
        identity = StoreIdentity.from_document(unseal(raw, STORE_KIND, place=name), place=name)
        if not to_check:
            _refuse_unreal_folders(filesystem, root)
        plan = newest_plan(filesystem, root, identity.uuid, or_older=to_check)
        return cls(root, identity, plan, filesystem)

    # -- samples ------------------------------------------------------------------------------

    @functools.cached_property
    def samples(self) -> SampleTable:
        """Where every sample lies, proven by the plan's digest.

        Read from the Zarr sample arrays, or from the token files where those are damaged.
        """
        for read in (self._table_from_arrays, self._table_from_tokens):
            try:
                table = read()
            except (OSError, ValueError, StoreError):
                continue
            if table.digest() == self.plan.sample_table:
                return table
        raise InvalidDocument(
            "neither the sample arrays nor the token files prove where the samples lie",
            place=str(self.root),
            remedy=_fsck(self.root),
        )

    def _table_from_arrays(self) -> SampleTable:
        columns = []
        for array, dtype in ((keys.SAMPLE_START, "<i8"), (keys.SAMPLE_LENGTH, "<i4")):
            chunks = range(-(-self.plan.samples // TABLE_CHUNK))
            raw = b"".join(
                self.filesystem.read(self.root / keys.array_chunk(array, chunk)) for chunk in chunks
            )
            columns.append(np.frombuffer(raw, dtype)[: self.plan.samples])
        start, length = columns
        return SampleTable(start, length, self.identity.shard_rows)

    def _table_from_tokens(self) -> SampleTable:
        """Place the samples anew; each growth begins a shard of its own."""

        def extents() -> Iterator[Extent]:
            placed = 0
            for _, shards in self.plan.token_files.spans():
                lengths = [int(n) for k in shards for n in self.tokens(k).lengths]
                yield from place(lengths, self.identity.geometry,
                                 first_shard=shards.start, first_sample=placed)  # fmt: skip
                placed += len(lengths)

        return SampleTable.of(extents(), self.identity.shard_rows)

    def tokens(self, shard: int) -> token_file.ShardTokens:
        """Keys, token ids and loss masks of a shard, verified against the plan."""
        file = self.plan.token_files[shard]
        path = self.root / keys.tokens(file.generation, shard)
        raw = self.filesystem.read(path)
        if xxhash.xxh3_128_hexdigest(raw) != file.xxh3_128:
            raise InvalidDocument(
                "the token file differs from the plan",
                place=str(path),
                remedy=_fsck(self.root),
            )
        return token_file.decode(raw, str(path), proven=True)

    def key(self, sample: int) -> str:
        """A sample's key, for messages: ``#`` and its number where its token file is not whole."""
        try:
            tokens = self.tokens(self.samples.extent(sample).shard)
        except (OSError, StoreError):
            return f"#{sample}"
        return tokens.keys[sample - tokens.first_sample]

    def source_words(self) -> tuple[str, ...]:
        """How to type what computes the states: servers, once one was calibrated for this store."""
        try:
            served = bool(self.filesystem.names(self.root / keys.CALIBRATION))
        except OSError:
            served = False
        if not served:
            return commands.TRANSFORMERS
        layers = self.identity.capture.layers
        by_spool = FINAL in layers and len(layers) > 1
        return (*commands.SERVER, *commands.SPOOL) if by_spool else commands.SERVER

    # -- commits ------------------------------------------------------------------------------

    def committed(self) -> dict[int, tuple[ShardVersion, bool]]:
        """Newest committed generation of every shard, and whether samples are absent in it.

        Shards that the plan does not have are left out.
        """
        found = committed_versions(self.filesystem, self.root)
        return {shard: found[shard] for shard in found if shard < self.plan.shards}

    def marker(self, shard: int) -> Marker:
        """The newest commit marker of a shard; SampleMissing where there is none."""
        found = self.committed().get(shard)
        if found is None:
            raise SampleMissing(
                f"shard {shard} is not committed",
                place=str(self.root),
                remedy=f"run: {commands.extract(self.root, source=self.source_words())}",
            )
        version, absent = found
        return self.read_marker(version, absent=absent)

    def read_marker(self, version: ShardVersion, *, absent: bool) -> Marker:
        """One commit marker, checked against its name and this store."""
        path = self.root / keys.marker(version, absent=absent)
        marker = read_marker(self.filesystem, path)
        if (marker.store, marker.version) != (self.identity.uuid, version):
            raise InvalidDocument("the marker is of another store or shard", place=str(path))
        return marker

    def manifest(self, marker: Marker) -> Manifest:
        """The manifest that a marker or intent names."""
        path = self.root / marker.manifest_name
        raw = self.filesystem.read(path)
        if xxhash.xxh3_128_hexdigest(raw) != marker.manifest_xxh3_128:
            raise InvalidDocument("the manifest is not the one its marker names", place=str(path))
        document = unseal(raw, MANIFEST_KIND, place=str(path))
        manifest = Manifest.from_document(document, place=str(path))
        named = (self.identity.uuid, marker.version, marker.writer)
        if (manifest.store, manifest.version, manifest.writer) != named:
            raise InvalidDocument("the manifest is of another store or shard", place=str(path))
        return manifest

    def snapshot_id(self, committed: Mapping[int, tuple[ShardVersion, bool]] | None = None) -> str:
        """xxh3_128 (32 hex digits) over the (shard, generation) pairs of ``committed()``."""
        digest = xxhash.xxh3_128(self.identity.uuid.encode())
        listed = self.committed() if committed is None else committed
        for version, _ in sorted(listed.values()):
            digest.update(f"{version.shard}:{version.generation};".encode())
        return digest.hexdigest()


def _has_plans(filesystem: Filesystem, root: Path) -> bool:
    try:
        return any(keys.read_plan(name) is not None for name in filesystem.names(root / keys.PLAN))
    except OSError:
        return False


def _refuse_unreal_folders(filesystem: Filesystem, root: Path) -> None:
    """InvalidDocument where a folder of the format leads out of the store, or is none."""
    for folder in keys.FOLDERS:
        try:
            mode = filesystem.status(root / folder).st_mode
        except FileNotFoundError:
            continue  # a copy may have left an empty folder behind
        if not stat.S_ISDIR(mode):
            what = "a symbolic link" if stat.S_ISLNK(mode) else "no folder"
            raise InvalidDocument(
                f"{folder} is {what}; a store is made of plain files and folders",
                place=str(root / folder),
                remedy=_fsck(root),
            )


def _fsck(root: Path) -> str:
    return f"run: {commands.hsstore('fsck', root)}"


def newest_plan(filesystem: Filesystem, root: Path, uuid: str, *, or_older: bool = False) -> Plan:
    """The plan of the highest generation; ``or_older``: of the highest that proves whole.

    An older one shows a smaller store. Raises InvalidDocument, OSError.
    """
    generations = map(keys.read_plan, filesystem.names(root / keys.PLAN))
    newest_first = sorted((g for g in generations if g is not None), reverse=True)
    failure: InvalidDocument | None = None
    for generation in newest_first if or_older else newest_first[:1]:
        try:
            return read_plan(filesystem, root, uuid, generation)
        except InvalidDocument as error:
            failure = failure or error
    raise failure or InvalidDocument("the store has no plan", place=str(root / keys.PLAN))


def read_plan(filesystem: Filesystem, root: Path, uuid: str, generation: int) -> Plan:
    """The plan of one generation, checked against its name and the store's uuid."""
    place = str(root / keys.plan(generation))
    try:
        raw = filesystem.read(root / keys.plan(generation))
    except OSError as error:
        if error.errno not in NO_PLAIN_FILE:
            raise
        raise InvalidDocument(
            "the plan is no plain file", place=place, remedy=_fsck(root)
        ) from None
    plan = Plan.from_document(unseal(raw, PLAN_KIND, place=place), place=place)
    if (plan.store, plan.generation) != (uuid, generation):
        raise InvalidDocument(
            "a plan of another store or generation", place=place, remedy=_fsck(root)
        )
    return plan
