"""``python -m hsstore_cli`` is ``hsstore``."""

import sys

from hsstore_cli.supervised import main

if __name__ == "__main__":
    sys.exit(main())
