"""Text that ships with Python itself, as byte tokens: nothing to download, nothing to install."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from pydoc_data.topics import topics

BEGIN, END = 256, 257
VOCABULARY = 258
PASSAGE_BYTES = 160  # a passage ends with the paragraph that reaches it
LONGEST_BYTES = 1000


@dataclass(frozen=True, slots=True)
class Sample:
    """A passage of text as token ids, and 1 for every token to learn from, else 0."""

    id: str
    input_ids: list[int]
    loss_mask: list[int]


def samples(count: int) -> list[Sample]:
    """The first passages of Python's language reference, in the order of its topics.

    Every id is a UTF-8 byte, between ``BEGIN`` and ``END``. The first line of a passage counts as
    the prompt, with a loss mask of 0.
    """
    return list(islice((_sample(name, text) for name, text in _passages()), count))


def write_dataset(path: Path, count: int) -> int:
    """Write that many samples as JSON lines, and return how many tokens they have."""
    chosen = samples(count)
    with path.open("w", encoding="utf-8") as file:
        for sample in chosen:
            fields = {name: getattr(sample, name) for name in Sample.__slots__}
            file.write(json.dumps(fields) + "\n")
    return sum(len(sample.input_ids) for sample in chosen)


def _passages() -> Iterator[tuple[str, str]]:
    for topic in sorted(topics):
        passage, number = "", 0
        for paragraph in topics[topic].strip().split("\n\n"):
            passage = f"{passage}\n\n{paragraph}" if passage else paragraph
            if len(passage) >= PASSAGE_BYTES:
                yield f"{topic}-{number}", passage
                passage, number = "", number + 1
        if passage:
            yield f"{topic}-{number}", passage


def _sample(name: str, text: str) -> Sample:
    raw = text.encode()[:LONGEST_BYTES]
    prompt = 1 + len(raw.split(b"\n", 1)[0])
    ids = [BEGIN, *raw, END]
    return Sample(name, ids, [int(n >= prompt) for n in range(len(ids))])
