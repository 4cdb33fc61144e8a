"""Whether all waivers are whole and of this store; whom they concern is said of its shard."""

from collections.abc import Iterator

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.integrity.plain_file import Trouble, names_in, read_plain
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.document import unseal
from hsstore.model.finding import Finding
from hsstore.model.waiver import KIND, Waiver
from hsstore.storage.waivers import misplaced


def check(subject: Subject) -> Iterator[Finding]:
    """Check every document; what is not whole waives nothing."""
    for name in names_in(subject.filesystem, subject.root, keys.WAIVER):
        sample = keys.read_waiver(name)
        if sample is None:
            continue
        path = keys.waiver(sample)
        try:
            raw = read_plain(subject.filesystem, subject.root, path)
            found = Waiver.from_document(unseal(raw, KIND))
        except (Trouble, InvalidDocument, UnsupportedFormat) as error:
            unreadable = isinstance(error, Trouble) and error.state == "unreadable"
            kind = "waiver-unreadable" if unreadable else "waiver-invalid"
            yield subject.finding(kind, str(error), path=path)
            continue
        if (problem := misplaced(found, subject.store, sample)) is not None:
            yield subject.finding("waiver-invalid", problem, path=path)
