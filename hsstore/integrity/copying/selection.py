"""Which samples and layers of a store a copy takes, from what was typed."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hsstore.errors import MalformedInput
from hsstore.model.capture import Layer, parse_layers
from hsstore.storage.store import Store

KEY_FILE = "@"


def chosen_layers(store: Store, layers: str | Iterable[Layer] | None) -> tuple[Layer, ...]:
    """The layers asked for, in that order; all of them for None.

    MalformedInput for one that the store does not have.
    """
    held = store.identity.capture.layers
    if layers is None:
        return held
    typed = layers if isinstance(layers, str) else ",".join(map(str, layers))
    asked = parse_layers(typed, store.identity.model.num_layers)
    for layer in asked:
        if layer not in held:
            raise MalformedInput(
                f"the store has no layer {layer}",
                place=str(store.root),
                remedy=f"choose from {store.identity.capture.layers_text()}",
            )
    return asked


def chosen_samples(store: Store, words: Sequence[str]) -> list[int]:
    """The numbers of the samples asked for, ascending; all of them for no words.

    A word is a number, a range ``A-B`` with both ends, ``@FILE`` with a key on each line, or a key.
    Raises MalformedInput for what the store does not have, and where a token file is needed that
    is not whole, InvalidDocument; OSError.
    """
    if not words:
        return list(range(store.plan.samples))
    numbers: set[int] = set()
    keys: dict[str, str] = {}
    for word in words:
        if (span := _span(word)) is not None:
            _refuse_beyond(store, word, span)
            numbers.update(span)
        elif word.startswith(KEY_FILE):
            keys |= dict.fromkeys(_keys_in(Path(word.removeprefix(KEY_FILE))), word)
        else:
            keys[word] = word
    return sorted(numbers | set(_numbers_of(store, keys)))


def _span(word: str) -> range | None:
    first, dash, last = word.partition("-")
    ends = (first, last if dash else first)
    if not all(end.isascii() and end.isdecimal() for end in ends):
        return None
    return range(int(ends[0]), int(ends[1]) + 1)


def _refuse_beyond(store: Store, word: str, span: range) -> None:
    if not span or span.stop > store.plan.samples:
        raise MalformedInput(
            f"there are no samples {word}",
            place=str(store.root),
            remedy=f"the store has samples 0 to {store.plan.samples - 1}",
        )


def _keys_in(path: Path) -> Iterator[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise MalformedInput(f"the keys cannot be read: {error}", place=str(path)) from None
    found = text.splitlines()
    if not found or not all(found):
        raise MalformedInput("no keys, or a line without one", place=str(path))
    yield from found


def _numbers_of(store: Store, keys: dict[str, str]) -> Iterator[int]:
    wanted = dict(keys)
    for shard in range(store.plan.shards) if wanted else ():
        tokens = store.tokens(shard)
        for number, key in enumerate(tokens.keys, tokens.first_sample):
            if wanted.pop(key, None) is not None:
                yield number
    for key, word in wanted.items():
        raise MalformedInput(
            f"the store has no sample {key!r}",
            place=word.removeprefix(KEY_FILE) if word != key else str(store.root),
            remedy="give keys as the dataset has them; without ids, numbers",
        )
