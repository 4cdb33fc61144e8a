"""Filling a staging folder from a source: the samples asked for, each answered once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

from hsstore.errors import SourceError
from hsstore.model.capture import Capture
from hsstore.model.geometry import Extent
from hsstore.model.source import Extracted, Failed, HiddenStateSource, Origin, Request
from hsstore.storage.token_file import ShardTokens
from hsstore.storage.writer import ShardWriter

Filled = tuple[Extent, str, Extracted | Failed]

# The bits of a positive infinity in each stored dtype; bfloat16 is stored as uint16.
INFINITY = {"<u2": 0x7F80, "<f2": 0x7C00, "<f4": 0x7F80_0000}
# Small enough for a core's cache, so that looking twice at a piece reads memory once.
PIECE_BYTES = 256 << 10


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
    asked before each request. States that are not all finite fail their sample (``non-finite``),
    whatever the source. Raises SourceError where the source answers what was not asked or leaves
    something unanswered.
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
        answer = _without_non_finite(answer, writer.capture)  # noqa: PLW2901 - what will be staged
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


def _without_non_finite(answer: Extracted | Failed, capture: Capture) -> Extracted | Failed:
    """The answer, or a failure that names the first layer and row with a value not finite."""
    if isinstance(answer, Failed) or is_finite(answer.states):
        return answer
    for column, layer in enumerate(capture.layers):
        for row, values in enumerate(answer.states[:, column]):
            if not is_finite(values):
                return Failed(answer.sample, "non-finite", f"layer {layer}, row {row}")
    return answer


def is_finite(states: NDArray[Any]) -> bool:
    """Whether no value is infinite or NaN; bfloat16 comes as its uint16 bits.

    Decided on the bits as integers, at the speed of memory: above the infinity of either sign
    there is nothing else.
    """
    infinity = INFINITY.get(states.dtype.str)
    if infinity is None:
        return True  # no dtype of a store: the writer refuses it
    itemsize = states.dtype.itemsize
    unsigned = states.reshape(-1).view(f"<u{itemsize}")
    negative = infinity | 1 << (8 * itemsize - 1)
    step = PIECE_BYTES // itemsize
    for at in range(0, len(unsigned), step):
        piece = unsigned[at : at + step]
        if piece.max() >= negative or piece.view(f"<i{itemsize}").max() >= infinity:
            return False
    return True
