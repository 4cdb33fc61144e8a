"""States that are intact and false: found by the level or audit that promises it; none accused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from hsstore.integrity.auditing.audit import Audit
from hsstore.integrity.fsck import Fsck, fsck
from hsstore.model.finding import LEVELS, Finding, Level
from hsstore.storage.store import Store
from hsstore.testing.causal import CausalSource, causal_store, conversations
from hsstore.testing.intact_and_false import (
    PROMISED_BY_AUDIT,
    PROMISED_BY_THOROUGH,
    Falsehood,
)

SAMPLES = 60
EVERY = (*PROMISED_BY_THOROUGH, *PROMISED_BY_AUDIT)
COLUMNS = (*LEVELS, "audit")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return causal_store(tmp_path_factory.mktemp("honest") / "store", conversations(SAMPLES)).root


def look(store: Store, level: Level) -> list[Finding]:
    return list(fsck(store, level, threads=1))


def audited(store: Store) -> list[Finding]:
    """What an audit of every sample says after the checks of level quick."""
    run = fsck(store, "quick", threads=1)
    assert isinstance(run, Fsck)
    return list(Audit(run, CausalSource(store.identity), SAMPLES, seed=1))


def verdicts(honest: Path, folder: Path, lie: Falsehood) -> dict[str, str]:
    """How each level and an audit did: ``found``, ``-`` or what is wrong with what they said."""
    store = Store.open(shutil.copytree(honest, folder))
    false = {f"#{sample}" for sample in lie.tell(store)}
    doubt = {f"#{sample}" for sample in lie.in_doubt}
    seen = false - {f"#{sample}" for sample in lie.unseen}
    others = doubt | (false - seen)
    found: dict[str, str] = {
        level: verdict(look(store, level), lie.kind, seen, others,
                       promised=COLUMNS.index(level) >= COLUMNS.index(lie.level))
        for level in LEVELS
    }  # fmt: skip
    # Computed again, every lie shows.
    found["audit"] = verdict(audited(store), "audit-wrong", false, set(), promised=True)
    return found


def verdict(
    findings: list[Finding], kind: str, false: set[str], doubt: set[str], *, promised: bool
) -> str:
    accused = {sample for f in findings for sample in f.samples or ()}
    named = {sample for f in findings if f.kind == kind for sample in f.samples or ()}
    if accused - false - doubt:
        return f"FALSE {sorted(accused - false - doubt)}"
    if promised and not false <= named:
        return f"MISSED {sorted(false - named)}: {[(f.kind, f.samples) for f in findings]}"
    return "found" if promised else "-"


@pytest.mark.parametrize("lie", EVERY, ids=lambda lie: lie.name)
def test_what_is_intact_and_false_is_found_where_promised(
    honest: Path, tmp_path: Path, lie: Falsehood, record_property: Callable[[str, object], None]
) -> None:
    found = verdicts(honest, tmp_path / "store", lie)
    record_property("levels", found)
    assert set(found.values()) <= {"found", "-"}, found


@pytest.mark.sweep
def test_the_table_of_what_is_intact_and_false(honest: Path, tmp_path: Path) -> None:
    rows = {lie.name: verdicts(honest, tmp_path / lie.name, lie) for lie in EVERY}
    lines = [f"{'intact and false':36}" + "".join(f"{column:10}" for column in COLUMNS)]
    lines += [f"{name:36}" + "".join(f"{row[c]:10}" for c in COLUMNS) for name, row in rows.items()]
    print("\n".join(lines))  # noqa: T201 - the suite's table
    assert {found for row in rows.values() for found in row.values()} <= {"found", "-"}


def test_an_honest_store_is_silent(honest: Path) -> None:
    store = Store.open(honest)
    assert [look(store, level) for level in LEVELS] == [[]] * len(LEVELS)
    assert audited(store) == []
