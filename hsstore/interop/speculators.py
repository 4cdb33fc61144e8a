"""Trees of speculators and vLLM (read against hs-connectors and speculators 0.9.0).

A dataset saved by Hugging Face's ``datasets`` (``input_ids``, ``loss_mask``), and beside it
``hidden_states/hs_{row}.safetensors`` with ``token_ids`` [n] and ``hidden_states``
[n, layers + 1, hidden], the last of these being the last state. In float8 there is also
``hidden_states_scales`` [n, 1, 1]. The loss masks are in the dataset only.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hsstore.errors import MalformedInput
from hsstore.interop.arrow_rows import ArrowRows, ArrowSamples, has_rows, read_rows
from hsstore.interop.foreign import Broken, Container, ForeignFile
from hsstore.interop.layout import Arrangement, TensorFormat, Tensors, demanded
from hsstore.interop.safetensors_file import open_safetensors

NAME = "speculators"
FILES = re.compile(r"hs_(?P<row>[0-9]{1,18})\.safetensors")
FOLDER = "hidden_states"
SCALES = "hidden_states_scales"


def arrange(tensors: Tensors) -> Arrangement:
    """Which tensors are what; Broken (``keys``) where one is missing."""
    demanded(tensors, "token_ids", "hidden_states")
    scales = SCALES if SCALES in tensors else None
    return Arrangement("token_ids", stacked="hidden_states", scales=scales)


@dataclass(frozen=True)
class Speculators(TensorFormat):
    """The Format; it keeps the rows of a tree's dataset once they were read."""

    _rows: dict[Path, ArrowRows | None] = field(default_factory=dict, compare=False)

    def rows(self, root: Path) -> ArrowRows | None:
        """The rows of a tree's dataset, None where the tree has none.

        Raises MalformedInput where it is damaged, OSError.
        """
        if root not in self._rows:
            self._rows[root] = read_rows(root) if has_rows(root) else None
        return self._rows[root]

    def own_dataset(self, root: Path) -> ArrowSamples | None:
        """The tree's dataset; a row is named after the file that should hold its states."""
        rows = self.rows(root)
        if rows is None:
            return None
        samples = (file for file in self.files(root) if file.row is not None)
        folders = {file.name.rpartition("/")[0] for file in samples} or {FOLDER}
        if len(folders) > 1:
            raise MalformedInput(
                f"its states lie in {len(folders)} folders: {', '.join(sorted(folders)):.200}",
                place=str(root),
                remedy="give the rows they are of with --dataset",
            )
        return ArrowSamples(rows, f"{folders.pop()}/".lstrip("/") + "hs_{}.safetensors", root)

    def mask_in(
        self,
        file: ForeignFile,
        container: Container,  # noqa: ARG002 - these files hold no mask
        arrangement: Arrangement,  # noqa: ARG002 - as above
        ids: NDArray[np.int64],
    ) -> NDArray[np.bool_] | None:
        """The mask of the row that the file's name tells, if its tokens are those of the file."""
        try:
            rows = self.rows(file.root)
        except MalformedInput as error:
            raise Broken("unreadable", f"the tree's dataset: {error.message}") from None
        if rows is None or file.row is None or file.row >= len(rows):
            return None
        row_ids, mask = rows.row(file.row)
        return mask.astype(bool) if np.array_equal(row_ids, ids) else None


def speculators() -> Speculators:
    """The Format, which has read nothing yet."""
    return Speculators(NAME, FILES, open_safetensors, arrange)
