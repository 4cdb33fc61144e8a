"""speculators' own command line, with the backend ``hsstore`` among its choices.

``python -m hsstore.interop.speculators_cli train --hidden-states-backend hsstore --hsstore-path
STORE ..``, or the same under torchrun. All other arguments are speculators' own.
"""

import importlib
from typing import Any


def main() -> Any:  # noqa: ANN401 - whatever the other program returns
    """Run ``speculators``; it reads sys.argv and exits by itself."""
    # speculators collects the arguments of backends when it is imported.
    importlib.import_module("hsstore.interop.speculators_backend")
    return importlib.import_module("speculators.__main__").app()


if __name__ == "__main__":
    main()
