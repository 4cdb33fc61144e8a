"""Capture is installed beside SGLang without hsstore's dependencies."""

import ast
import sys
from pathlib import Path

import pytest

CAPTURE = Path(__file__).parents[2] / "hsstore" / "capture"
ALLOWED = {*sys.stdlib_module_names, "torch", "xxhash", "hsstore.capture"}


def imported(path: Path) -> set[str]:
    """The modules that a file imports, as far as ALLOWED tells them apart."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            names.add(str(node.module))
    return {
        "hsstore.capture" if name.startswith("hsstore.capture") else name.split(".")[0]
        for name in names
    }


@pytest.mark.parametrize("path", sorted(CAPTURE.glob("*.py")), ids=lambda path: path.name)
def test_it_imports_nothing_but_what_sglang_brings(path: Path) -> None:
    assert imported(path) <= ALLOWED


@pytest.mark.parametrize("name", ["layer_ids", "plugin", "settings"])
def test_what_others_read_needs_the_standard_library_only(name: str) -> None:
    needed = {"hsstore.capture"} if name == "plugin" else set()
    assert imported(CAPTURE / f"{name}.py") <= {*sys.stdlib_module_names, *needed}
