"""What the states of a tree are: how many layers, which, before or after the final norm.

Nothing in a tree says it. It is told by whoever imports, and held against what can be proven.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from hsstore.errors import MalformedInput
from hsstore.interop.foreign import ForeignSample, Format
from hsstore.interop.layout import shape_faults
from hsstore.interop.norm_evidence import after_norm, norm_weight
from hsstore.interop.scanning import ScannedFile
from hsstore.model.capture import FINAL, FINAL_PRE, ModelIdentity

NORMS = {"post": FINAL, "pre": FINAL_PRE}
LOOKED_AT = 3


@dataclass(frozen=True, slots=True)
class Told:
    """What a user says of a tree's states, as typed: layers, whose numbers they are, the norm."""

    layers: str
    layer_convention: str | None = None
    norm: str | None = None


@dataclass(frozen=True, slots=True)
class TreeCapture:
    """The layers and the dtype of a tree; ``norm_by`` says how the norm is known."""

    layers: str
    dtype: str
    norm_by: str


def with_shape_faults(scanned: Sequence[ScannedFile]) -> list[ScannedFile]:
    """The files of a tree, a fault added to each whose states have another form than most."""
    sound = [one for one in scanned if not one.faults]
    forms = Counter(_form(one) for one in sound)
    if len(forms) < 2:  # noqa: PLR2004 - one form, and all have it
        return list(scanned)
    (usual, _), *_ = forms.most_common(1)
    typical = next(one.inspection for one in sound if _form(one) == usual)
    return [
        one if one.faults else replace(one, faults=tuple(shape_faults(one.inspection, typical)))
        for one in scanned
    ]


def capture_of(
    form: Format, scanned: Sequence[ScannedFile], told: Told, place: Path, model: ModelIdentity
) -> TreeCapture:
    """The layers and dtype of a tree, from what is told and what some of its files prove.

    ``place`` is where ``model`` was read. Raises MalformedInput where too little is told, or
    something else than the files show.
    """
    looked_at = list(_some(form, scanned, model.hidden_size))
    if not looked_at:
        _refuse_unread(form, scanned, model.hidden_size)
    _, first = looked_at[0]
    words = [word.strip() for word in told.layers.split(",")]
    _refuse_untold_convention(words, told)
    last_told = NORMS.get(told.norm or "")
    proven = _proven(looked_at, place, model)
    if first.has_last and words[-1] not in (FINAL, FINAL_PRE):
        words.append(last_told or (FINAL if proven else _refuse_untold_norm()))
    _refuse_contradiction(words, told, proven)
    _refuse_count(words, first, looked_at[0][0])
    by = "told" if proven is None else "the final norm's weight" if proven else "told, not post"
    return TreeCapture(",".join(words), first.dtype, by if first.has_last else "no last state")


def _form(one: ScannedFile) -> tuple[object, ...]:
    found = one.inspection
    return (found.dtype, found.layers, found.hidden, found.has_last)


def _some(
    form: Format, scanned: Sequence[ScannedFile], hidden: int
) -> Iterator[tuple[str, ForeignSample]]:
    """A few sound samples from all over the tree, read whole; with the name of their files."""
    sound = [one.file for one in scanned if not one.faults]
    step = max(len(sound) // LOOKED_AT, 1)
    found = 0
    # Those at a distance first, and all others only as far as these are damaged.
    for file in [*sound[::step], *sound]:
        if found == LOOKED_AT:
            return
        reading = form.read(file, hidden)
        if reading.sample is not None and not reading.faults:
            found += 1
            yield file.name, reading.sample


def _refuse_unread(form: Format, scanned: Sequence[ScannedFile], hidden: int) -> NoReturn:
    """Not one file is sound: said by what is wrong with the first of them, if there is one."""
    why = [
        f": {one.file.name} ({fault})"
        for one in scanned[:1]
        for fault in (one.faults or form.read(one.file, hidden).faults)[:1]
    ]
    raise MalformedInput(f"not one of {len(scanned)} files can be read whole{''.join(why)}")


def _proven(
    looked_at: Sequence[tuple[str, ForeignSample]], place: Path, model: ModelIdentity
) -> bool | None:
    """Whether the last states come after the model's final norm; None where nothing proves it."""
    weight = norm_weight(place, model)
    if weight is None or not looked_at[0][1].has_last:
        return None
    verdicts = {after_norm(sample.states[:, -1], weight) for _, sample in looked_at}
    return verdicts.pop() if len(verdicts) == 1 else None


def _refuse_untold_convention(words: Sequence[str], told: Told) -> None:
    numbered = any(word not in (FINAL, FINAL_PRE) for word in words)
    if numbered and told.layer_convention is None:
        raise MalformedInput(
            f"files do not say whose layer numbers {told.layers!r} are",
            remedy="give --layer-convention: vllm counts the blocks passed, specforge numbers the "
            "blocks from 0",
        )


def _refuse_untold_norm() -> NoReturn:
    raise MalformedInput(
        "files do not say whether their last state is before or after the final norm, and nothing "
        "at hand proves it",
        remedy="give --norm post or --norm pre, or a --model folder with weights that prove it",
    )


def _refuse_contradiction(words: Sequence[str], told: Told, proven: bool | None) -> None:  # noqa: FBT001 - three answers
    said = words[-1]
    norm = NORMS.get(told.norm or "")
    if norm is not None and said in NORMS.values() and said != norm:
        raise MalformedInput(f"--norm {told.norm} and --layers {told.layers} contradict each other")
    if norm is not None and said not in NORMS.values():
        raise MalformedInput("--norm says something of a last state, and the files hold none")
    if proven is not None and said in NORMS.values() and (said == FINAL) != proven:
        shown = "after" if proven else "not after"
        raise MalformedInput(
            f"the last states are told to be {said!r}, but the weight of the model's final norm "
            f"shows that they are {shown} it",
            remedy="correct --norm or --layers, or give the model that the states are of; a bare "
            "config.json as --model proves nothing and is believed",
        )


def _refuse_count(words: Sequence[str], sample: ForeignSample, name: str) -> None:
    layers = sample.states.shape[1]
    if layers != len(words):
        last = ", the last state among them" if sample.has_last else ""
        raise MalformedInput(
            f"{layers} layers are in a file{last}; {len(words)} are named: {','.join(words)}",
            place=name,
            remedy="name with --layers what the files hold, in their order",
        )
