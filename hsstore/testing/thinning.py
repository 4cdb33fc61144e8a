"""How much of a sweep is visited: every step, or each n-th where there is no time for all.

HSSTORE_SWEEP_EVERY says n, an odd one, since some steps alternate. What is told of a sweep counts
the steps that were visited.
"""

import os

EVERY = int(os.environ.get("HSSTORE_SWEEP_EVERY", "1"))


def visited(steps: int) -> range:
    """Which of that many steps are visited: the first, and each n-th after it."""
    return range(0, steps, EVERY)
