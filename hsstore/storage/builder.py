"""What is written into a folder that becomes a store: identity and markers apart, all of it."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import xxhash

from hsstore.model import keys
from hsstore.model.document import seal
from hsstore.model.geometry import Extent, place
from hsstore.model.identity import StoreIdentity
from hsstore.model.plan import Plan, TokenFile, TokenFiles
from hsstore.model.progress import Progress
from hsstore.storage.array_files import write_chunk
from hsstore.storage.dataset_digest import DatasetDigest
from hsstore.storage.filesystem import Filesystem
from hsstore.storage.sample_table import SampleTable
from hsstore.storage.token_file import ShardTokens, encode, token_digest
from hsstore.storage.tokenised import TokenisedSample, gather
from hsstore.storage.zarr_arrays import (
    ArrayChunk,
    metadata_documents,
    shard_chunks,
    table_chunks,
)

FIRST_GENERATION = 0


@dataclass(slots=True)
class StoreFiles:
    """Writes files into a folder that becomes a store; they are durable after ``finish``."""

    filesystem: Filesystem
    root: Path
    folders: set[Path] = field(default_factory=set)

    def begin(self) -> None:
        """Make the folders of the format."""
        for name in keys.FOLDERS:
            self.folder(self.root / name)

    def write(self, key: str, data: bytes) -> None:
        """Write a new file."""
        self.folder((self.root / key).parent)
        self.filesystem.write_new(self.root / key, data)

    def write_chunk(self, chunk: ArrayChunk) -> None:
        """Write a new chunk file."""
        path = self.root / chunk.key
        self.folder(path.parent)
        write_chunk(self.filesystem, path, chunk)

    def folder(self, path: Path) -> None:
        """Make a folder, unless that was done."""
        if path not in self.folders:
            self.filesystem.make_folders(path, below=self.root)
            self.folders.add(path)

    def finish(self) -> None:
        """Sync the names in all folders."""
        for folder in (*self.folders, self.root):
            self.filesystem.sync_folder(folder)


@dataclass(slots=True)
class Builder:
    """Writes everything but hsstore.json of a store with nothing extracted yet."""

    files: StoreFiles
    identity: StoreIdentity
    token_files: list[TokenFile] = field(default_factory=list)
    token_digests: list[bytes] = field(default_factory=list)
    dataset: DatasetDigest = field(default_factory=DatasetDigest)

    def build(
        self,
        lengths: list[int],
        pairs: Iterable[tuple[Extent, TokenisedSample]],
        progress: Progress,
    ) -> None:
        """Write it; ``lengths`` are the tokens of all samples, ``pairs`` all samples in place.

        Raises OSError.
        """
        self.files.begin()
        progress.start(sum(lengths), 0, "tok")
        for shard, group in groupby(pairs, key=lambda pair: pair[0].shard):
            tokens = gather(len(self.token_digests), [sample for _, sample in group])
            self._shard(shard, tokens)
            progress.advance(len(tokens.input_ids))
        plan = self._plan(lengths)
        for key, document in metadata_documents(self.identity, plan).items():
            self.files.write(key, document)
        self.files.write(keys.plan(FIRST_GENERATION), seal(plan.to_document()))
        self.files.finish()

    def _shard(self, shard: int, tokens: ShardTokens) -> None:
        self.dataset.update(tokens)
        self.token_digests += [token_digest(ids) for _, ids, _ in tokens.samples()]
        raw = encode(tokens)
        self.files.write(keys.tokens(FIRST_GENERATION, shard), raw)
        self.token_files.append(TokenFile(FIRST_GENERATION, xxhash.xxh3_128_hexdigest(raw)))
        for chunk in shard_chunks(shard, tokens, self.identity.geometry):
            self.files.write_chunk(chunk)

    def _plan(self, lengths: list[int]) -> Plan:
        """Write the sample arrays; the plan that sums everything up."""
        extents = place(lengths, self.identity.geometry)
        table = SampleTable.of(extents, self.identity.shard_rows)
        digests = np.frombuffer(b"".join(self.token_digests), np.uint8).reshape(-1, 16)
        for chunk in table_chunks(table.start, table.length, digests):
            self.files.write_chunk(chunk)
        return Plan(
            store=self.identity.uuid,
            generation=FIRST_GENERATION,
            samples=len(lengths),
            shards=len(self.token_files),
            tokens=sum(lengths),
            dataset=self.dataset.hexdigest(),
            sample_table=table.digest(),
            token_files=TokenFiles.of(self.token_files),
        )
