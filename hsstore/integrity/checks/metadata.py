"""Whether every zarr.json is what the store's identity and plan demand."""

from collections.abc import Iterator

from hsstore.integrity.plain_file import Trouble, read_plain
from hsstore.integrity.subject import Subject
from hsstore.model.finding import Finding
from hsstore.storage.zarr_arrays import metadata_documents


def check(subject: Subject) -> Iterator[Finding]:
    """Compare every zarr.json byte for byte."""
    store = subject.store
    for name, expected in metadata_documents(store.identity, store.plan).items():
        try:
            raw = read_plain(subject.filesystem, subject.root, name)
        except Trouble as trouble:
            yield subject.finding(f"metadata-{trouble.state}", trouble.detail, path=name)
            continue
        if raw != expected:
            detail = "it is not what the store's identity and plan demand"
            yield subject.finding("metadata-damaged", detail, path=name)
