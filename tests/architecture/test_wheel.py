"""What an installation puts on a machine."""

import email
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hsstore

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT],
        check=True,
        capture_output=True,
        timeout=120,
    )
    [path] = out.glob("*.whl")
    return zipfile.ZipFile(path)


def test_only_our_two_packages_become_importable(wheel: zipfile.ZipFile) -> None:
    tops = {name.partition("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"hsstore", "hsstore_cli"}


def test_every_module_is_in_it(wheel: zipfile.ZipFile) -> None:
    sources = {
        path.relative_to(base).as_posix()
        for base, package in ((ROOT, "hsstore"), (ROOT / "cli", "hsstore_cli"))
        for path in (base / package).rglob("*.py")
    }
    packed = {name for name in wheel.namelist() if name.endswith(".py")}
    assert packed == sources
    assert "hsstore/py.typed" in wheel.namelist()


def test_metadata_names_version_license_and_program(wheel: zipfile.ZipFile) -> None:
    folder = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    metadata = email.message_from_bytes(wheel.read(folder))
    assert metadata["Version"] == hsstore.__version__
    assert metadata["License-Expression"] == "Apache-2.0"
    scripts = wheel.read(folder.replace("METADATA", "entry_points.txt")).decode()
    assert "hsstore = hsstore_cli.supervised:main" in scripts
