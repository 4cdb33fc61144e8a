"""Which samples to train on, decided by their tokens alone: no state is read for it."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hsstore.errors import MalformedInput
from hsstore.storage.store import Store
from hsstore.storage.token_file import ShardTokens
from hsstore.views.options import whole_number

NAMED_KEYS = 5


@dataclass(frozen=True, slots=True)
class Where:
    """What a sample must fulfil to be served; all of it.

    ``min_length`` and ``max_length`` bound its tokens as stored. ``min_loss_tokens`` is how many of
    the tokens that would be served, after any truncation, must be in its loss mask. ``keys`` lists
    the samples; ``key_prefixes`` says what a key must begin with (one of them), for datasets whose
    keys tell where a sample came from, as in ``sharegpt/17``. ValueError for other values.
    """

    min_length: int = 1
    max_length: int | None = None
    min_loss_tokens: int = 0
    keys: Collection[str] | None = None
    key_prefixes: Collection[str] | None = None

    def __post_init__(self) -> None:
        whole_number("min_length", self.min_length, 0)
        whole_number("min_loss_tokens", self.min_loss_tokens, 0)
        if self.max_length is not None:
            whole_number("max_length", self.max_length, 1)
        for name in ("keys", "key_prefixes"):
            _texts(name, getattr(self, name))


def _texts(name: str, given: Collection[str] | None) -> None:
    """ValueError for anything but a collection of texts, or None."""
    if isinstance(given, str):
        raise ValueError(f"{name} is one text; it must be a collection of them")  # noqa: TRY004 - like every other option
    if given is not None and not isinstance(given, Collection):
        raise ValueError(f"{name} is a {type(given).__name__}; it must be a collection of texts")
    for each in given or ():
        if not isinstance(each, str):
            raise ValueError(f"{name} has {each!r}, which is no text")  # noqa: TRY004 - as above


@dataclass(frozen=True, slots=True)
class Selected:
    """The ``samples`` int64 that are left, ascending, and how many each criterion left out.

    A sample that fails several counts with the first of them.
    """

    samples: NDArray[np.int64]
    left_out: Mapping[str, int]

    def __str__(self) -> str:
        counts = (f"{count} by {name}" for name, count in self.left_out.items())
        return f"{len(self.samples)} samples selected, left out {', '.join(counts)}"


def select(
    store: Store, samples: NDArray[np.int64], where: Where, *, served: int | None = None
) -> Selected:
    """Those of ``samples`` (global numbers) that ``where`` allows.

    ``served`` is the most tokens that are served of a sample (None: all). Lengths come from the
    sample table; the token files are read where loss masks or keys are asked about. Raises
    MalformedInput for a key or prefix that no sample of the store has, and for a selection of
    nothing; InvalidDocument for a damaged token file; OSError.
    """
    reasons = np.full(len(store.samples), "", object)
    for reason, fails in _failures(store, where, served):
        reasons[fails & (reasons == "")] = reason
    of_samples = reasons[samples]
    found = Selected(
        samples[of_samples == ""], dict(Counter(of_samples[of_samples != ""].tolist()))
    )
    if len(samples) and not len(found.samples):
        raise MalformedInput(f"where= selects no sample: {found}", place=str(store.root))
    return found


def _failures(
    store: Store, where: Where, served: int | None
) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Each criterion by name, and whether each sample of the store fails it."""
    lengths = store.samples.length
    yield "min_length", lengths < where.min_length
    if where.max_length is not None:
        yield "max_length", lengths > where.max_length
    if where.min_loss_tokens > 0:
        counts = [_loss_tokens(tokens, served) for tokens in _token_files(store)]
        yield "min_loss_tokens", np.concatenate(counts) < where.min_loss_tokens
    if where.keys is not None:
        yield "keys", ~_listed(store, frozenset(where.keys))
    if where.key_prefixes is not None:
        yield "key_prefixes", ~_prefixed(store, tuple(where.key_prefixes))


def _token_files(store: Store) -> Iterator[ShardTokens]:
    return map(store.tokens, range(store.plan.shards))


def _loss_tokens(tokens: ShardTokens, served: int | None) -> NDArray[np.int64]:
    """How many tokens to learn from each sample of a shard serves."""
    counted = np.concatenate([[0], np.cumsum(tokens.loss_mask, dtype=np.int64)])
    start, end = tokens.bounds[:-1], tokens.bounds[1:]
    if served is not None:
        end = np.minimum(end, start + served)
    count: NDArray[np.int64] = counted[end] - counted[start]
    return count


def _listed(store: Store, wanted: frozenset[str]) -> NDArray[np.bool_]:
    keys = [key for tokens in _token_files(store) for key in tokens.keys]
    _refuse_unknown("keys", wanted.difference(keys), store)
    return np.array([key in wanted for key in keys])


def _prefixed(store: Store, prefixes: tuple[str, ...]) -> NDArray[np.bool_]:
    keys = [key for tokens in _token_files(store) for key in tokens.keys]
    unknown = {p for p in prefixes if not any(key.startswith(p) for key in keys)}
    _refuse_unknown("key_prefixes", unknown, store)
    return np.array([key.startswith(prefixes) for key in keys])


def _refuse_unknown(name: str, unknown: Collection[str], store: Store) -> None:
    if unknown:
        first = ", ".join(map(repr, sorted(unknown)[:NAMED_KEYS]))
        raise MalformedInput(
            f"no sample of the store fits {len(unknown)} of {name}, first: {first}",
            place=str(store.root),
            remedy="correct them; hsstore inspect shows a sample by its key",
        )
