"""What holds for all tests: nothing asks a model hub, property tests are not timed."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["HF_HUB_OFFLINE"] = "1"

settings.register_profile("default", deadline=None, max_examples=60)
settings.register_profile("thorough", deadline=None, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(autouse=True, scope="session")
def _verdicts_of_tests(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Commands that tests type keep what they remember to the tests."""
    os.environ["XDG_STATE_HOME"] = str(tmp_path_factory.mktemp("state"))


@pytest.fixture(scope="session")
def demo_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small model for byte tokens that transformers loads."""
    # torch and transformers are wanted by the tests that ask for this alone.
    from hsstore.demo.model import build_model  # noqa: PLC0415

    folder = tmp_path_factory.mktemp("model")
    build_model(folder)
    return folder


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real filesystem of 1 MiB."""
    if os.geteuid():
        pytest.skip("mounting a filesystem takes root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["/bin/mount", "-t", "tmpfs", "-o", "size=1m", "small", disk], check=True)
    yield disk
    subprocess.run(["/bin/umount", disk], check=True)
