"""docs/format.md cannot drift: its examples are sealed, parsed and written again by the code."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xxhash

from hsstore.integrity.mending import quarantine
from hsstore.model import keys
from hsstore.model.calibration import Calibration
from hsstore.model.document import canonical, seal, unseal, validate
from hsstore.model.identity import StoreIdentity
from hsstore.model.manifest import Manifest
from hsstore.model.marker import COMMIT_KIND, INTENT_KIND, Marker
from hsstore.model.plan import Plan
from hsstore.storage import claim, journal
from hsstore.storage.zarr_arrays import metadata_documents

TEXT = (Path(__file__).parents[2] / "docs" / "format.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```json\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)
DOCUMENTS: dict[str, str] = {
    json.loads(text)["kind"]: text for text in EXAMPLES if "seal" in json.loads(text)
}
ENVELOPE = {"format", "kind", "seal"}
JOURNAL_KINDS = (journal.HEADER, journal.SAMPLE, journal.FAILURE)
REWRITTEN: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "store": lambda document: StoreIdentity.from_document(document).to_document(),
    "plan": lambda document: Plan.from_document(document).to_document(),
    "manifest": lambda document: Manifest.from_document(document).to_document(),
    "calibration": lambda document: Calibration.from_document(document).to_document(),
    COMMIT_KIND: lambda document: Marker.from_document(document).to_document(),
    INTENT_KIND: lambda document: Marker.from_document(document).to_document(INTENT_KIND),
}


def example(kind: str) -> bytes:
    """The bytes that the example of a kind stands for."""
    return canonical(json.loads(DOCUMENTS[kind]))


def parsed(kind: str) -> dict[str, Any]:
    """The example of a kind, its seal checked."""
    return unseal(example(kind), kind)


def documented_members(kind: str) -> set[str]:
    """The first column of the last table of members above the example of a kind."""
    above = TEXT[: TEXT.index(DOCUMENTS[kind])]
    table = above[above.rindex("| member | type | meaning |") :].split("\n\n")[0]
    return set(re.findall(r"^\| `(\w+)`", table, flags=re.MULTILINE))


def test_every_kind_has_an_example() -> None:
    assert DOCUMENTS.keys() == {*REWRITTEN, *JOURNAL_KINDS, claim.KIND, quarantine.KIND}


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_seal_is_right(kind: str) -> None:
    assert parsed(kind)["kind"] == kind


@pytest.mark.parametrize("kind", REWRITTEN)
def test_code_writes_the_example_again(kind: str) -> None:
    assert seal(REWRITTEN[kind](parsed(kind))) == example(kind)


@pytest.mark.parametrize("kind", DOCUMENTS)
def test_table_lists_exactly_the_members(kind: str) -> None:
    assert documented_members(kind) == parsed(kind).keys() - ENVELOPE


def test_claim_is_valid() -> None:
    validate(parsed(claim.KIND), claim.FIELDS)


def test_journal_is_read_to_its_end() -> None:
    raw = b"".join(map(example, JOURNAL_KINDS))
    read = journal.read_journal(raw)
    assert read.end == len(raw)
    assert (list(read.samples), list(read.failures)) == ([0], [1])


def test_manifest_holds_what_the_journal_settled() -> None:
    read = journal.read_journal(b"".join(map(example, JOURNAL_KINDS)))
    manifest = Manifest.from_document(parsed("manifest"))
    assert manifest.samples == tuple(read.samples.values())
    assert manifest.absent == tuple(read.failures.values())
    assert manifest.chunks == read.chunks[0]
    assert manifest.origins == tuple(read.origins)


def test_marker_names_the_manifest() -> None:
    marker = Marker.from_document(parsed(COMMIT_KIND))
    assert marker.name == "commit/00000000-000001.absent.json"
    assert marker.manifest_name == "manifest/00000000-000001.5f0d7be19c3a2468.json"
    assert marker.manifest_xxh3_128 == xxhash.xxh3_128_hexdigest(example("manifest"))


def test_intent_is_printed_byte_for_byte() -> None:
    assert DOCUMENTS[INTENT_KIND].encode() == example(INTENT_KIND)


def test_zarr_metadata_is_printed_byte_for_byte() -> None:
    written = metadata_documents(
        StoreIdentity.from_document(parsed("store")), Plan.from_document(parsed("plan"))
    )
    array, group = (text for text in EXAMPLES if text not in DOCUMENTS.values())
    assert written[keys.zarr_metadata(keys.HIDDEN_STATES)] == array.encode()
    assert json.loads(written[keys.zarr_metadata()])["attributes"] == json.loads(group)
