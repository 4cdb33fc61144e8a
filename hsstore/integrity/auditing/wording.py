"""What an audit says of a sample: a sentence, and figures for each layer."""

from collections.abc import Mapping, Sequence

from hsstore.integrity.auditing.comparison import LayerFigures
from hsstore.model.capture import Layer


def wrong(
    phrases: Mapping[str, Sequence[Layer]], figures: Sequence[LayerFigures], whose: str | None
) -> tuple[str, str]:
    """Detail and evidence of a sample with wrong layers.

    ``phrases`` say what is wrong, each with the layers that it is true of, ``whose`` whose rows
    they are.
    """
    told = [f"{_subject(layers, len(figures))}: {phrase}" for phrase, layers in phrases.items()]
    told += [whose] if whose else []
    return f"computed again, it has other states; {'; '.join(told)}", _evidence(figures)


def noise(figures: Sequence[LayerFigures]) -> tuple[str, str]:
    """Detail and evidence of a sample that is right within noise."""
    worst = max(layer.worst_error for layer in figures)
    cosine = min(float(layer.cosine.min()) for layer in figures)
    apart = max(layer.max_abs for layer in figures)
    detail = (
        f"computed again, it differs by numeric noise: by up to {apart:.3g}, relative error up to "
        f"{worst:.2g}, cosine from {cosine:.5f}"
    )
    return detail, _evidence(figures)


def _evidence(figures: Sequence[LayerFigures]) -> str:
    return "; ".join(layer.told() for layer in figures)


def _subject(layers: Sequence[Layer], of: int) -> str:
    if len(layers) == of > 1:
        return "every layer"
    return f"layer{'s' * (len(layers) > 1)} {' and '.join(map(str, layers))}"
