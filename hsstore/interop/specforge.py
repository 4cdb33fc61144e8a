"""Trees of SpecForge (read against its release 0.2.0): ``rows_{a}-{b}/data_{i}.ckpt``, or ``.gz``.

An EAGLE-3 file holds ``input_ids`` [n], ``loss_mask`` [n], ``aux_hidden_state`` [1, n, k * hidden]
and ``hidden_state`` [1, n, hidden], the last state; one for DFlash or Domino holds
``hidden_states`` [1, n, k * hidden] and no last state. Nothing in it says which layers, which norm,
or which row of the dataset.
"""

import re

from hsstore.interop.foreign import Broken
from hsstore.interop.layout import Arrangement, TensorFormat, Tensors, demanded
from hsstore.interop.torch_file import open_torch

NAME = "specforge"
# Its vocab_mapping.pt, and what it left when it was killed, are no samples.
FILES = re.compile(r"data_(?P<row>[0-9]{1,18})\.ckpt(?:\.gz)?")
EAGLE, LAST, DFLASH = "aux_hidden_state", "hidden_state", "hidden_states"


def arrange(tensors: Tensors) -> Arrangement:
    """Which tensors are what; Broken (``keys``) for a file of neither kind."""
    demanded(tensors, "input_ids", "loss_mask")
    if DFLASH in tensors:
        if EAGLE in tensors or LAST in tensors:
            raise Broken("keys", f"{DFLASH} beside {EAGLE} or {LAST}: of two kinds at once")
        return Arrangement("input_ids", "loss_mask", joined=DFLASH)
    demanded(tensors, EAGLE, LAST)
    return Arrangement("input_ids", "loss_mask", joined=EAGLE, last=LAST)


SPECFORGE = TensorFormat(NAME, FILES, open_torch, arrange)
