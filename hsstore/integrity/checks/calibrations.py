"""Whether all calibration documents are whole and of this store."""

from collections.abc import Iterator

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.integrity.plain_file import Trouble, names_in, read_plain
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.calibration import KIND, Calibration
from hsstore.model.document import unseal
from hsstore.model.finding import Finding
from hsstore.storage.calibrations import misplaced


def check(subject: Subject) -> Iterator[Finding]:
    """Check every document; one that is damaged is of no use, and the next run makes another."""
    for name in names_in(subject.filesystem, subject.root, keys.CALIBRATION):
        number = keys.read_calibration(name)
        if number is None:
            continue
        path = keys.calibration(number)
        try:
            raw = read_plain(subject.filesystem, subject.root, path)
            found = Calibration.from_document(unseal(raw, KIND))
        except (Trouble, InvalidDocument, UnsupportedFormat) as error:
            unreadable = isinstance(error, Trouble) and error.state == "unreadable"
            kind = "calibration-unreadable" if unreadable else "calibration-invalid"
            yield subject.finding(kind, str(error), path=path)
            continue
        if (problem := misplaced(found, subject.store.identity, number)) is not None:
            yield subject.finding("calibration-invalid", problem, path=path)
