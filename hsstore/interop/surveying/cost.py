"""What extracting lost samples again takes: tokens, and bytes in two forms."""

from collections.abc import Sequence

from hsstore.interop.surveying.finding import Cost
from hsstore.interop.surveying.schema import Schema
from hsstore.model.capacity import Workload, plan_capacity


def cost_of(
    lengths: Sequence[int | None], mean_tokens: float | None, schema: Schema | None
) -> Cost:
    """The cost of samples of these lengths in tokens (None: unknown, the mean counts).

    ``schema`` is what the sound files of the tree hold.
    """
    if not lengths:
        return Cost()
    unknown = sum(length is None for length in lengths)
    if unknown and mean_tokens is None:
        return Cost(len(lengths), None, exact=False, tree_bytes=None, store_bytes=None)
    tokens = sum(filter(None, lengths)) + round(unknown * (mean_tokens or 0))
    if schema is None:
        return Cost(len(lengths), tokens, not unknown, None, None)
    known = None if unknown else [length or 0 for length in lengths]
    stored = _store_bytes(schema, len(lengths), tokens, known)
    return Cost(len(lengths), tokens, not unknown, tokens * schema.row_bytes, stored)


def _store_bytes(
    schema: Schema, samples: int, tokens: int, lengths: Sequence[int] | None
) -> int | None:
    """What a store of them takes; None where the states are of no shape that a store has."""
    states = schema.states
    if states is None or tokens < samples or (lengths and min(lengths) < 1):
        return None
    layers, hidden_size, dtype = states
    workload = Workload(
        layers=layers, hidden_size=hidden_size, dtype=dtype, lengths=lengths,
        tokens=tokens, samples=samples,
    )  # fmt: skip
    return plan_capacity(workload).store_bytes
