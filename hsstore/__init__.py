"""hsstore: a dataset format and integrity toolkit for the hidden states of language models."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hsstore.errors import HsstoreError
    from hsstore.integrity.copying.copy import copy_store
    from hsstore.integrity.fsck import fsck
    from hsstore.integrity.repair import repair
    from hsstore.integrity.scrub.schedule import Scrub
    from hsstore.interop.importing import import_tree
    from hsstore.model.capacity import Workload, plan_capacity
    from hsstore.storage.create import create
    from hsstore.storage.extend import extend
    from hsstore.storage.store import Store
    from hsstore.training.dataset import HiddenStateDataset
    from hsstore.training.stream import HiddenStateStream

__version__ = "0.1.0"

_HOMES = {
    "HiddenStateDataset": "hsstore.training.dataset",
    "HiddenStateStream": "hsstore.training.stream",
    "HsstoreError": "hsstore.errors",
    "Scrub": "hsstore.integrity.scrub.schedule",
    "Store": "hsstore.storage.store",
    "Workload": "hsstore.model.capacity",
    "copy_store": "hsstore.integrity.copying.copy",
    "create": "hsstore.storage.create",
    "extend": "hsstore.storage.extend",
    "fsck": "hsstore.integrity.fsck",
    "import_tree": "hsstore.interop.importing",
    "plan_capacity": "hsstore.model.capacity",
    "repair": "hsstore.integrity.repair",
}

__all__ = [
    "HiddenStateDataset",
    "HiddenStateStream",
    "HsstoreError",
    "Scrub",
    "Store",
    "Workload",
    "copy_store",
    "create",
    "extend",
    "fsck",
    "import_tree",
    "plan_capacity",
    "repair",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - whatever the front door hands out
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hsstore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
