"""The pages name everything that the code can raise, find or return; their links lead somewhere."""

import re
from pathlib import Path

import pytest

from hsstore.errors import HsstoreError
from hsstore.model.finding import KINDS
from hsstore_cli import exit_codes

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def first_column(page: str) -> set[str]:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return set(re.findall(r"^\| `?([\w-]+)`? \|", text, flags=re.MULTILINE))


def error_kinds(error: type[HsstoreError]) -> set[str]:
    return {error.kind}.union(*map(error_kinds, error.__subclasses__()))


def test_errors_page_lists_every_kind() -> None:
    assert error_kinds(HsstoreError) <= first_column("errors.md")


def test_errors_page_lists_every_exit_code() -> None:
    codes = {str(code) for code in vars(exit_codes).values() if isinstance(code, int)}
    assert codes <= first_column("errors.md")


def test_runbook_lists_every_finding() -> None:
    assert first_column("runbook.md") >= KINDS.keys()


def test_every_decision_is_listed() -> None:
    folder = ROOT / "docs" / "decisions"
    index = (folder / "README.md").read_text(encoding="utf-8")
    assert all(f"]({page.name})" in index for page in folder.glob("[0-9]*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
