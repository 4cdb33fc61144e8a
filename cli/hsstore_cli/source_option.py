"""``--source SCHEME:PLACE``: which engine computes hidden states."""

import click

from hsstore.model.identity import StoreIdentity
from hsstore.model.source import HiddenStateSource

ACCEPTED = "transformers:PATH, where PATH is a model folder or a GGUF file"


def open_source(
    text: str | None, identity: StoreIdentity, batch_tokens: int | None = None
) -> HiddenStateSource:
    """The source that ``text`` names, opened for a store.

    click.UsageError when it names none; SourceError when it cannot serve this store.
    """
    place = source_place(text)
    # Many seconds of silence otherwise, before progress has anything to count.
    click.echo(f"loading {place}", err=True)
    # Costs seconds to import, and is wanted only here.
    from hsstore.extraction.transformers_source import TransformersSource  # noqa: PLC0415

    return TransformersSource(place, identity, batch_tokens=batch_tokens)


def source_place(text: str | None) -> str:
    """The path in ``transformers:PATH``; click.UsageError for any other text, or none."""
    if not text:
        raise click.UsageError(f"Nothing to compute with: give --source {ACCEPTED}.")
    scheme, colon, place = text.partition(":")
    if scheme != "transformers" or not colon or not place:
        raise click.UsageError(f"{text!r} is no source. Accepted: {ACCEPTED}.")
    return place
