"""speculators' own command line, with the backend ``hsstore`` among its choices.

``python -m hsstore.interop.speculators_cli train --hidden-states-backend hsstore --hsstore-path
STORE ..``, or the same under torchrun. All other arguments are speculators' own.
"""

from typing import Any


def main() -> Any:  # noqa: ANN401 - whatever the other program returns
    """Run ``speculators``; it reads sys.argv and exits by itself."""
    # speculators collects the arguments of backends when it is imported.
    import hsstore.interop.speculators_backend  # noqa: F401, PLC0415 - registers the backend
    from speculators.__main__ import app  # noqa: PLC0415

    return app()


if __name__ == "__main__":
    main()
