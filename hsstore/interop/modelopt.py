"""Trees of NVIDIA ModelOpt's hidden-state dump: ``{conversation_id}.pt``, one a conversation.

A file holds ``input_ids`` [n], ``hidden_states`` [n, hidden] (the last state),
``aux_hidden_states`` [n, k * hidden], often ``loss_mask`` [n], and ``conversation_id``. Some also
hold ``hidden_states_prenorm``, which is not read: that it is there proves nothing of the norm of
``hidden_states``.
"""

import re

from hsstore.interop.layout import Arrangement, TensorFormat, Tensors, demanded
from hsstore.interop.torch_file import open_torch

NAME = "modelopt"
FILES = re.compile(r"[^.].*\.pt", re.DOTALL)
AUX, LAST = "aux_hidden_states", "hidden_states"


def arrange(tensors: Tensors) -> Arrangement:
    """Which tensors are what; Broken (``keys``) where one is missing."""
    demanded(tensors, "input_ids", AUX, LAST)
    mask = "loss_mask" if "loss_mask" in tensors else None
    return Arrangement("input_ids", mask, joined=AUX, last=LAST)


MODELOPT = TensorFormat(NAME, FILES, open_torch, arrange)
