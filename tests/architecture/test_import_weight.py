"""What the front door and the help cost: the heavy packages stay out until they are needed."""

import subprocess
import sys

import pytest

from hsstore_cli.main import COMMANDS

HEAVY = {"torch", "transformers", "zarr"}


def loaded(code: str) -> set[str]:
    """The top-level packages in sys.modules of a fresh interpreter after ``code``."""
    probe = f"import sys\n{code}\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import hsstore",
        "import hsstore.errors, hsstore.model.document, hsstore.model.manifest",
        "from hsstore_cli.main import main; assert main(['--help']) == 0",
        "from hsstore_cli.main import main; assert main(['--version']) == 0",
    ],
)
def test_front_door_and_help_are_light(code: str) -> None:
    assert not loaded(code) & (HEAVY | {"numpy"})


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_command_loads_no_engine(command: str) -> None:
    code = f"from hsstore_cli.main import main; assert main([{command!r}, '--help']) == 0"
    assert not loaded(code) & {"torch", "transformers"}


def test_an_unneeded_package_would_be_seen() -> None:
    assert "xxhash" in loaded("import hsstore.model.document")
