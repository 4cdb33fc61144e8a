"""Filling a staging folder from a source: the samples asked for, each answered once."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from hsstore.errors import SourceError
from hsstore.model.geometry import Extent
from hsstore.model.source import Extracted, Failed, HiddenStateSource, Origin, Request
from hsstore.storage.token_file import ShardTokens
from hsstore.storage.writer import ShardWriter

Filled = tuple[Extent, str, Extracted | Failed]


def fill(
    writer: ShardWriter,
    tokens: ShardTokens,
    wanted: Iterable[Extent],
    source: HiddenStateSource,
    origin: Origin,
    *,
    previous: Mapping[int, str] | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Filled]:
    """Have samples of one shard computed and stage the answers; yields each once it is staged.

    ``previous`` maps samples that are computed again to the content digest they had. ``stop`` is
    asked before each request. Raises SourceError where the source answers what was not asked or
    leaves something unanswered.
    """
    asked: dict[int, tuple[Extent, str]] = {}

    def requests() -> Iterator[Request]:
        for extent in wanted:
            if stop():
                return
            key, ids, _ = tokens.sample(extent.sample - tokens.first_sample)
            asked[extent.sample] = extent, key
            yield Request(extent.sample, key, ids)

    for answer in source.states(requests()):
        if answer.sample not in asked:
            raise SourceError(f"the source answered sample {answer.sample}, which was not asked")
        extent, key = asked.pop(answer.sample)
        if isinstance(answer, Extracted):
            before = (previous or {}).get(answer.sample)
            writer.add(extent, key, answer.states, origin, previous=before)
        else:
            writer.fail(extent, key, answer, origin)
        yield extent, key, answer
    if asked:
        raise SourceError(f"the source left {len(asked)} samples unanswered")
