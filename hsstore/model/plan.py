"""plan/<n>.json: how many samples and shards a store has, and the digests of its token files.

The highest valid generation wins; publishing it is the commit point of create and extend.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

from hsstore.errors import InvalidDocument
from hsstore.model.document import (
    FORMAT,
    Document,
    Problem,
    array,
    hexadecimal,
    integer,
    optional,
    record,
    seal_digits,
)
from hsstore.model.document import validate as validate_document

KIND = "plan"


DIGEST_DIGITS = 32


class TokenFile(NamedTuple):
    """The token file of one shard: which plan generation wrote it, and its xxh3_128."""

    generation: int
    xxh3_128: str


@dataclass(frozen=True, slots=True)
class TokenFiles:
    """The token files of all shards, by shard number.

    ``parts`` holds, for each plan generation in order, its number and the digests of the shards
    that it added, back to back: tens of thousands of shards open in milliseconds.
    """

    parts: tuple[tuple[int, str], ...]

    @classmethod
    def of(cls, files: Iterable[TokenFile]) -> Self:
        """The token files of consecutive shards."""
        groups = itertools.groupby(files, key=lambda file: file.generation)
        return cls(tuple((g, "".join(file.xxh3_128 for file in added)) for g, added in groups))

    def spans(self) -> Iterator[tuple[int, range]]:
        """Every plan generation that added shards, and which, in order."""
        first = 0
        for generation, digests in self.parts:
            stop = first + len(digests) // DIGEST_DIGITS
            yield generation, range(first, stop)
            first = stop

    def __len__(self) -> int:
        return sum(len(digests) for _, digests in self.parts) // DIGEST_DIGITS

    def __iter__(self) -> Iterator[TokenFile]:
        for generation, digests in self.parts:
            for at in range(0, len(digests), DIGEST_DIGITS):
                yield TokenFile(generation, digests[at : at + DIGEST_DIGITS])

    def __getitem__(self, shard: int) -> TokenFile:
        at = shard * DIGEST_DIGITS
        for generation, digests in self.parts:
            if 0 <= at < len(digests):
                return TokenFile(generation, digests[at : at + DIGEST_DIGITS])
            at -= len(digests)
        raise IndexError(f"the plan has no shard {shard}")


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
    token_files: TokenFiles
    previous: str | None = None

    @property
    def seal(self) -> str:
        """The seal of its document, which the next plan names as ``previous``."""
        return seal_digits(self.to_document())

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
                {"generation": generation, "xxh3_128": digests}
                for generation, digests in self.token_files.parts
            ],
            "previous": self.previous,
        }

    @classmethod
    def from_document(cls, document: Document, *, place: str | None = None) -> "Plan":
        """The plan in an unsealed document; InvalidDocument naming all its problems."""
        validate_document(document, FIELDS, place=place)
        digits = sum(len(part["xxh3_128"]) for part in document["token_files"])
        if digits != document["shards"] * DIGEST_DIGITS:
            raise InvalidDocument("token_files are not one a shard", place=place)
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
            token_files=TokenFiles(
                tuple((part["generation"], part["xxh3_128"]) for part in document["token_files"])
            ),
        )


def _digests(value: object, path: str) -> list[Problem]:
    whole = isinstance(value, str) and re.fullmatch(r"([0-9a-f]{32})+", value)
    return [] if whole else [Problem(path, "digest", "not xxh3_128 digests back to back")]


FIELDS: dict[str, Any] = {
    "store": hexadecimal(32),
    "generation": integer(),
    "samples": integer(1),
    "shards": integer(1),
    "tokens": integer(1),
    "dataset": hexadecimal(32),
    "sample_table": hexadecimal(32),
    "token_files": array(record({"generation": integer(), "xxh3_128": _digests})),
    "previous": optional(hexadecimal(32)),
}
