"""Whether the token files are those that the plan names."""

from collections.abc import Iterator

import numpy as np
import xxhash

from hsstore.errors import InvalidDocument
from hsstore.integrity.plain_file import Trouble, read_plain
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.storage import token_file


def check(subject: Subject, shard: int) -> Iterator[Finding]:
    """Check one shard's token file, and remember its samples' token digests."""
    planned = subject.store.plan.token_files[shard]
    name = keys.tokens(planned.generation, shard)
    try:
        raw = read_plain(subject.filesystem, subject.root, name)
        tokens = _decode(raw, planned.xxh3_128)
    except (Trouble, InvalidDocument) as error:
        state = error.state if isinstance(error, Trouble) else "damaged"
        subject.keep_tokens(shard, None)
        yield subject.finding(
            f"tokens-{state}",
            KINDS_SAY[state],
            shard=shard,
            samples=subject.samples(shard),
            path=name,
            evidence=str(error),
        )
        return
    subject.keep_tokens(shard, tokens)
    digests = b"".join(token_file.token_digest(ids) for _, ids, _ in tokens.samples())
    subject.token_digests[shard] = np.frombuffer(digests, np.uint8).reshape(-1, 16)


def _decode(raw: bytes, expected: str) -> token_file.ShardTokens:
    found = xxhash.xxh3_128_hexdigest(raw)
    if found != expected:
        raise Trouble("damaged", f"xxh3_128 {found}, expected {expected}")
    return token_file.decode(raw)


KINDS_SAY = {
    "missing": "the token file is gone",
    "damaged": "the token file is not the one that the plan names",
    "unreadable": "the token file cannot be read",
}
