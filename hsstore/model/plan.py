"""plan/<n>.json: how many samples and shards a store has, and the digests of its token files.

The highest valid generation wins; publishing it is the commit point of create and extend.
"""

from dataclasses import dataclass
from typing import Any

from hsstore.model.document import (
    FORMAT,
    Document,
    array,
    hexadecimal,
    integer,
    optional,
    record,
)
from hsstore.model.document import validate as validate_document

KIND = "plan"


@dataclass(frozen=True, slots=True)
class TokenFile:
    """The token file of one shard: which plan generation wrote it, its size and its xxh3_128."""

    generation: int
    bytes: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Totals of a store and its token files, one a shard.

    ``dataset`` is the xxh3_128 over every sample's key, token ids and loss mask in order;
    ``sample_table`` the xxh3_128 over every sample's first global row (int64), then every
    sample's tokens (int32); ``previous`` the seal of the plan that this one extends.
    """

    store: str
    generation: int
    samples: int
    shards: int
    tokens: int
    dataset: str
    sample_table: str
    token_files: tuple[TokenFile, ...]
    previous: str | None = None

    def to_document(self) -> Document:
        """The document without its seal."""
        return {
            "format": FORMAT,
            "kind": KIND,
            "store": self.store,
            "generation": self.generation,
            "samples": self.samples,
            "shards": self.shards,
            "tokens": self.tokens,
            "dataset": self.dataset,
            "sample_table": self.sample_table,
            "token_files": [
                {"generation": f.generation, "bytes": f.bytes, "xxh3_128": f.xxh3_128}
                for f in self.token_files
            ],
            "previous": self.previous,
        }

    @classmethod
    def from_document(cls, document: Document, *, place: str | None = None) -> "Plan":
        """The plan in an unsealed document; InvalidDocument naming all its problems."""
        validate_document(document, FIELDS, place=place)
        names = (
            "store",
            "generation",
            "samples",
            "shards",
            "tokens",
            "dataset",
            "sample_table",
            "previous",
        )
        return cls(
            **{name: document[name] for name in names},
            token_files=tuple(TokenFile(**file) for file in document["token_files"]),
        )


FIELDS: dict[str, Any] = {
    "store": hexadecimal(32),
    "generation": integer(),
    "samples": integer(1),
    "shards": integer(1),
    "tokens": integer(1),
    "dataset": hexadecimal(32),
    "sample_table": hexadecimal(32),
    "token_files": array(
        record({"generation": integer(), "bytes": integer(1), "xxh3_128": hexadecimal(32)})
    ),
    "previous": optional(hexadecimal(32)),
}
