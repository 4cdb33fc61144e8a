"""Whose tree it is, by the keys of its files and by what lies beside them."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from hsstore.interop.surveying.schema import Schema


@dataclass(frozen=True, slots=True)
class Layout:
    """A writer of such trees and the keys that its files have at least."""

    name: str
    keys: frozenset[str]


# The first that fits; so those that another one's keys would fit too come first.
LAYOUTS = (
    Layout("specforge", frozenset({"input_ids", "loss_mask", "aux_hidden_state", "hidden_state"})),
    Layout("angelslim", frozenset({"input_ids", "hidden_states", "target_hiddens"})),
    Layout("automodel", frozenset({"input_ids", "attention_mask", "aux_hidden_states"})),
    Layout("modelopt", frozenset({"input_ids", "aux_hidden_states", "hidden_states"})),
    Layout("speculators", frozenset({"token_ids", "hidden_states"})),
    Layout("eagle-v1", frozenset({"input_ids", "loss_mask", "hidden_state"})),
    Layout("specforge-dflash", frozenset({"input_ids", "loss_mask", "hidden_states"})),
)
# Names beside the samples that give a format away which keeps many samples in a file.
INDEXES = {"samples.idx": "deepspec"}


def layout_of(schema: Schema) -> str | None:
    """The writer whose keys a file has; None where it is nobody's that is known."""
    keys = {field.key for field in schema.fields}
    return next((layout.name for layout in LAYOUTS if layout.keys <= keys), None)


def evidence_of(schemas: Counter[Schema]) -> list[str]:
    """What the files hold, one line for each kind of file, most of them first."""
    return [
        f"{count} of {schemas.total()} files hold {_listed(schema)}"
        for schema, count in schemas.most_common(KINDS_SHOWN)
    ]


KINDS_SHOWN = 5


def _listed(schema: Schema) -> str:
    """``input_ids [n] int64, hidden_state [1, n, 8] bfloat16``."""
    return ", ".join(
        f"{f.key} [{', '.join('n' if size is None else str(size) for size in f.shape)}] {f.dtype}"
        for f in schema.fields
    )


def index_of(names: Collection[str]) -> str | None:
    """The format that an index beside the samples gives away."""
    return next((INDEXES[name] for name in names if name in INDEXES), None)
