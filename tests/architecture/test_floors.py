"""The import contracts hold, and each of them would notice a breach."""

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What changes or reads a store's files behind the seam's back.
FILE_CALLS = {
    *("fdatasync", "fsync", "ftruncate", "link", "mkdir", "open", "preadv", "pread", "pwrite"),
    *("read", "rename", "replace", "rmdir", "symlink", "truncate", "unlink", "write"),
}


def lint_imports(tree: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": f"{tree}{os.pathsep}{tree / 'cli'}"}
    program = Path(sys.executable).with_name("lint-imports")
    return subprocess.run(
        [program, "--no-cache"],
        cwd=tree,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("hsstore", "cli"):
        shutil.copytree(ROOT / name, tmp_path / name)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_contracts_are_kept() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("module", "statement", "contract"),
    [
        ("hsstore/model/keys.py", "import hsstore.storage.filesystem", "Imports go only downward"),
        ("hsstore/training/__init__.py", "import hsstore.extraction", "rooms on one floor"),
        ("hsstore/errors.py", "import hsstore.model.document", "Imports go only downward"),
        ("hsstore/storage/filesystem.py", "import zarr", "itself imports no zarr"),
        ("hsstore/model/geometry.py", "import numpy", "the standard library, xxhash"),
        ("hsstore/storage/filesystem.py", "import hsstore.testing", "imports hsstore.testing"),
        ("hsstore/storage/filesystem.py", "import torch", "without torch"),
    ],
)
def test_a_breach_is_caught(copy: Path, module: str, statement: str, contract: str) -> None:
    with (copy / module).open("a", encoding="utf-8") as file:
        file.write(f"\n{statement}\n")
    done = lint_imports(copy)
    broken = [line for line in done.stdout.splitlines() if line.endswith("BROKEN")]
    assert done.returncode == 1
    assert any(contract in line for line in broken), done.stdout


def test_only_the_seam_calls_os_for_files() -> None:
    seam = ROOT / "hsstore" / "storage" / "filesystem.py"
    # A spool is no part of a store.
    spool = (ROOT / "hsstore" / "capture", ROOT / "hsstore" / "extraction" / "sglang" / "spool.py")
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: os.{node.attr}"
        for path in sorted((ROOT / "hsstore").rglob("*.py"))
        if path != seam
        and "testing" not in path.parts
        and not any(path.is_relative_to(place) for place in spool)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in FILE_CALLS
    ]
    assert found == []
