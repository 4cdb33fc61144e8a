"""Whether all plan documents are there and whole, each continuing the one before it."""

from collections.abc import Iterator

from hsstore.errors import InvalidDocument, UnsupportedFormat
from hsstore.integrity.plain_file import Trouble, names_in, read_plain
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.document import unseal
from hsstore.model.finding import Finding
from hsstore.model.plan import KIND, Plan
from hsstore.storage.catch_up import planned
from hsstore.storage.growing import undecided


def check(subject: Subject) -> Iterator[Finding]:
    """Check every generation, and that none is lost; the newest cannot be made again."""
    yield from _lost(subject)
    plans: dict[int, Plan] = {}
    yield from _documents(subject, plans)
    yield from _chain(subject, plans)


def _lost(subject: Subject) -> Iterator[Finding]:
    if subject.lost_plan:
        first, more = subject.lost_plan[0], len(subject.lost_plan) - 1
        detail = f"{first}{f' and {more} more' if more else ''} can only be of a later plan"
        detail += "; put back plan/ from a copy of this very store before anything is written"
        yield subject.finding("plan-lost", detail, path=keys.PLAN)
    elif subject.reached != planned(subject.store):
        reached, plan = subject.reached, subject.store.plan
        detail = f"the arrays show {reached.samples} of {plan.samples} samples"
        yield subject.finding("growth-pending", detail, path=keys.zarr_metadata())
    for name in [] if subject.lost_plan else _undecided(subject):
        detail = "they are of a growth that was never decided, or is under way"
        yield subject.finding("growth-undecided", detail, path=name)


def _undecided(subject: Subject) -> list[str]:
    try:
        return undecided(subject.newest())
    except OSError:
        return []


def _chain(subject: Subject, plans: dict[int, Plan]) -> Iterator[Finding]:
    """Hold each plan against the one before it."""
    newest = subject.store.plan
    for generation in range(newest.generation):
        path = keys.plan(generation)
        if not subject.filesystem.exists(subject.root / path):
            detail = f"plan {newest.generation} tells all that is needed, but not what came before"
            yield subject.finding("plan-missing", detail, path=path)
        elif generation in plans and generation + 1 in plans:
            earlier, later = plans[generation], plans[generation + 1]
            if later.previous != earlier.seal or not _continues(earlier, later):
                detail = f"it does not continue plan {generation}"
                path = keys.plan(generation + 1)
                yield subject.finding("plan-invalid", detail, path=path, mendable=False)


def _continues(earlier: Plan, later: Plan) -> bool:
    kept = later.token_files.parts[: len(earlier.token_files.parts)]
    grew = later.samples > earlier.samples and later.tokens > earlier.tokens
    return kept == earlier.token_files.parts and grew


def _documents(subject: Subject, plans: dict[int, Plan]) -> Iterator[Finding]:
    """Read every plan into ``plans``."""
    for name in names_in(subject.filesystem, subject.root, keys.PLAN):
        generation = keys.read_plan(name)
        if generation is None or name != keys.plan(generation).rpartition("/")[2]:
            continue
        path, older = keys.plan(generation), generation < subject.store.plan.generation
        try:
            raw = read_plain(subject.filesystem, subject.root, path)
            plan = Plan.from_document(unseal(raw, KIND))
        except (Trouble, InvalidDocument, UnsupportedFormat) as error:
            unreadable = isinstance(error, Trouble) and error.state == "unreadable"
            kind = "plan-unreadable" if unreadable else "plan-invalid"
            yield subject.finding(kind, str(error), path=path, mendable=older)
            continue
        if (plan.store, plan.generation) != (subject.store.identity.uuid, generation):
            detail = "it belongs to another store or generation"
            yield subject.finding("plan-invalid", detail, path=path, mendable=older)
            continue
        plans[generation] = plan
