"""Whether all plan documents are whole, the older generations too."""

from collections.abc import Iterator

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.integrity.plain_file import Trouble, names_in, read_plain
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.document import unseal
from hsstore.model.finding import Finding
from hsstore.model.plan import KIND, Plan


def check(subject: Subject) -> Iterator[Finding]:
    """Check every generation; an older one that is damaged cannot be made again."""
    for name in names_in(subject.filesystem, subject.root, keys.PLAN):
        generation = keys.read_plan(name)
        if generation is None or name != keys.plan(generation).rpartition("/")[2]:
            continue
        path = keys.plan(generation)
        try:
            raw = read_plain(subject.filesystem, subject.root, path)
            plan = Plan.from_document(unseal(raw, KIND))
        except (Trouble, InvalidDocument, UnsupportedFormat) as error:
            unreadable = isinstance(error, Trouble) and error.state == "unreadable"
            kind = "plan-unreadable" if unreadable else "plan-invalid"
            yield subject.finding(kind, str(error), path=path, mendable=False)
            continue
        if (plan.store, plan.generation) != (subject.store.identity.uuid, generation):
            detail = "it belongs to another store or generation"
            yield subject.finding("plan-invalid", detail, path=path, mendable=False)
