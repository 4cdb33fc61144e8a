"""Filling a staging folder from a source: the samples asked for, each answered once."""

from collections.abc import Callable, Iterator, Mapping, Sequence

from hsstore.errors import SourceError
from hsstore.model.geometry import Extent
from hsstore.model.source import Extracted, Failed, HiddenStateSource, Origin, Request
from hsstore.storage.token_file import ShardTokens
from hsstore.storage.writer import ShardWriter

Filled = tuple[Extent, str, Extracted | Failed]


def fill(
    writer: ShardWriter,
    tokens: ShardTokens,
    wanted: Sequence[Extent],
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
    unanswered = len(wanted)

    def requests() -> Iterator[Request]:
        nonlocal unanswered
        for n, extent in enumerate(wanted):
            if stop():
                unanswered -= len(wanted) - n
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
            try:
                writer.add(extent, key, answer.states, origin, previous=before)
            except ValueError as error:
                raise SourceError(f"the source answered something else: {error}") from error
        else:
            writer.fail(extent, key, answer, origin)
        unanswered -= 1
        yield extent, key, answer
    # Those that the source never came to ask for count too.
    if unanswered:
        raise SourceError(f"the source left {unanswered} samples unanswered")
