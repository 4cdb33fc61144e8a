"""What fsck says as an ordinary user: run by a child process that gives its rights up.

``python -m hsstore.testing.unprivileged LEVEL.. -- STORE..`` prints, for each store and level, a
line of JSON: a list of findings. It works in the current folder, which the user may enter.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hsstore.integrity.fsck import fsck
from hsstore.model.finding import LEVELS, Finding, Level

NOBODY = 65534


def looked_at(folder: Path, stores: Sequence[str], levels: Sequence[Level]) -> list[list[Finding]]:
    """The findings about each store in ``folder``, at each level in turn."""
    package = Path(__file__).parents[2]
    child = subprocess.run(  # noqa: S603 - this very module
        [sys.executable, "-m", __name__, *levels, "--", *stores],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(package)},
        check=True,
        capture_output=True,
    )
    return [[_finding(said) for said in json.loads(line)] for line in child.stdout.splitlines()]


def _finding(said: dict[str, object]) -> Finding:
    tuples = {name: tuple(value) for name, value in said.items() if isinstance(value, list)}
    return Finding(**{**said, **tuples})  # type: ignore[arg-type]


def _main(words: list[str]) -> None:
    split = words.index("--")
    stores = words[split + 1 :]
    # All modules are loaded while they may be.
    list(fsck(stores[0], "thorough", threads=1))
    if os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    for store in stores:
        for level in LEVELS:
            if level in words[:split]:
                findings = [f.to_json() for f in fsck(store, level, threads=1)]
                for finding in findings:
                    del finding["type"]
                sys.stdout.write(json.dumps(findings) + "\n")


if __name__ == "__main__":
    _main(sys.argv[1:])
