"""Whether the folders of the format are there, with nothing foreign in them."""

import stat
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from hsstore.integrity.plain_file import names_in
from hsstore.integrity.subject import Subject
from hsstore.model import keys
from hsstore.model.finding import Finding
from hsstore.model.plan import Plan
from hsstore.storage.staged_files import strange
from hsstore.storage.zarr_arrays import TABLE_CHUNK, metadata_documents

MISPLACED = (
    "something else is in place of the folder; before a repair, put the real folder back or, "
    "if there is none any more, move this away"
)


def check(subject: Subject) -> Iterator[Finding]:
    """Check the folders and what is listed in them; the quick part."""
    for folder in keys.FOLDERS:
        try:
            there = subject.filesystem.exists(subject.root / folder)
        except OSError as error:
            detail = error.strerror or str(error)
            yield subject.finding("folder-unreadable", detail, path=folder, mendable=False)
            continue
        if not _is_folder(subject, folder):
            if not there and folder in keys.LATER_FOLDERS:
                continue
            detail = MISPLACED if there else "the folder is gone"
            yield subject.finding("folder-missing", detail, path=folder, mendable=not there)
        elif (trouble := _unlisted(subject, folder)) is not None:
            yield subject.finding("folder-unreadable", trouble, path=folder, mendable=False)
    yield from _foreign(subject, "", {keys.IDENTITY, keys.BALLAST, *keys.FOLDERS})
    yield from _settled(subject, _names)
    yield from _strange(subject)


def _strange(subject: Subject) -> Iterator[Finding]:
    """What in staging folders is no plain file."""
    for name in filter(keys.read_stage, names_in(subject.filesystem, subject.root, keys.STAGE)):
        try:
            found = strange(subject.filesystem, subject.root / keys.STAGE / name)
        except OSError:
            continue  # nothing in it is damage, whatever it is
        for path in found:
            place = path.relative_to(subject.root).as_posix()
            detail = "no plain file; nobody can go on with what is staged, so it will be set aside"
            yield subject.finding("foreign-file", detail, path=place, mendable=False)


def _names(subject: Subject, plan: Plan) -> Iterator[Finding]:
    """Check the names in plan/ and in the folders of shards."""
    # What is beyond a lost plan is known, though not by this one.
    shards = keys.GROWTH if subject.lost_plan else plan.shards
    yield from _unknown(subject, keys.PLAN, lambda name: _token_folder(name) or _plan(name))
    yield from _unknown(subject, keys.CALIBRATION, lambda n: keys.read_calibration(n) is not None)
    samples = None if subject.lost_plan else plan.samples
    yield from _unknown(subject, keys.WAIVER, partial(_waiver, samples=samples))
    for folder, known in _KNOWN.items():
        yield from _unknown(subject, folder, partial(known, shards=shards))


def _settled(
    subject: Subject, look: Callable[[Subject, Plan], Iterator[Finding]]
) -> Iterator[Finding]:
    """What a look by the newest plan finds, and again if the store grew meanwhile."""
    plan = subject.newest().plan
    found = list(look(subject, plan))
    if found and (grown := subject.newest().plan).generation > plan.generation:
        found = list(look(subject, grown))
    yield from found


def check_zarr(subject: Subject) -> Iterator[Finding]:
    """Check that states.zarr is a pure Zarr group; one listing a shard."""
    if not subject.lost_plan:
        yield from _settled(subject, _zarr)


def _zarr(subject: Subject, plan: Plan) -> Iterator[Finding]:
    expected = _tree(metadata_documents(subject.store.identity, plan), _chunk_names(plan))
    for folder in sorted(expected):
        yield from _foreign(subject, folder, expected[folder])


def check_tokens(subject: Subject) -> Iterator[Finding]:
    """Check that the folders of token files hold nothing else."""
    names: dict[int, set[str]] = {}
    for shard, file in enumerate(subject.store.plan.token_files):
        names.setdefault(file.generation, set()).add(keys.tokens(file.generation, shard))
    for folder, allowed in _tree(name for files in names.values() for name in files).items():
        if folder not in ("", keys.PLAN):
            yield from _foreign(subject, folder, allowed)


def _chunk_names(plan: Plan) -> Iterator[str]:
    for shard in range(plan.shards):
        yield keys.shard_file(shard)
        yield keys.array_chunk(keys.INPUT_IDS, shard)
        yield keys.array_chunk(keys.LOSS_MASK, shard)
    for chunk in range(-(-plan.samples // TABLE_CHUNK)):
        for array in (keys.SAMPLE_START, keys.SAMPLE_LENGTH, keys.SAMPLE_DIGEST):
            yield keys.array_chunk(array, chunk)


def _tree(*listings: Iterable[str]) -> dict[str, set[str]]:
    """Folder to the names in it, for a number of paths."""
    tree: dict[str, set[str]] = {}
    for listing in listings:
        for name in listing:
            parts = name.split("/")
            for depth in range(1, len(parts)):
                tree.setdefault("/".join(parts[:depth]), set()).add(parts[depth])
    return tree


def _foreign(subject: Subject, folder: str, allowed: set[str]) -> Iterator[Finding]:
    yield from _unknown(subject, folder, lambda name: name in allowed)


def _unknown(subject: Subject, folder: str, known: Callable[[str], bool]) -> Iterator[Finding]:
    for name in names_in(subject.filesystem, subject.root, folder):
        # A leading dot marks what an interrupted publish left.
        if not name.startswith(".") and not known(name):
            path = f"{folder}/{name}" if folder else name
            detail = "the format does not know this name here"
            yield subject.finding("foreign-file", detail, path=path, mendable=False)


def _unlisted(subject: Subject, folder: str) -> str | None:
    """Why a folder that exists cannot be listed, None where it can or is not there."""
    try:
        subject.filesystem.names(subject.root / folder)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return error.strerror or str(error)
    return None


def _is_folder(subject: Subject, folder: str) -> bool:
    try:
        return stat.S_ISDIR(subject.filesystem.status(subject.root / folder).st_mode)
    except OSError:
        return False


def _plan(name: str) -> bool:
    found = keys.read_plan(name)
    return found is not None and keys.plan(found).endswith(f"/{name}")


def _token_folder(name: str) -> bool:
    return keys.read_token_folder(name) is not None


def _marker(name: str, shards: int) -> bool:
    found = keys.read_marker(name)
    return (
        found is not None
        and found[0].shard < shards
        and keys.marker(found[0], absent=found[1]).endswith(f"/{name}")
    )


def _manifest(name: str, shards: int) -> bool:
    found = keys.read_manifest(name)
    return (
        found is not None and found[0].shard < shards and keys.manifest(*found).endswith(f"/{name}")
    )


def _intent(name: str, shards: int) -> bool:
    found = keys.read_intent(name)
    return found is not None and found.shard < shards and keys.intent(found).endswith(f"/{name}")


def _claim(name: str, shards: int) -> bool:
    found = keys.read_claim(name)
    return found is not None and (found[0] < shards or found[0] == keys.GROWTH)


def _waiver(name: str, samples: int | None) -> bool:
    found = keys.read_waiver(name)
    return found is not None and (samples is None or found < samples)


def _stage(name: str, shards: int) -> bool:
    found = keys.read_stage(name)
    return found is not None and found[0] < shards


_KNOWN: dict[str, Callable[..., bool]] = {
    keys.COMMIT: _marker,
    keys.MANIFEST: _manifest,
    keys.INTENT: _intent,
    keys.CLAIM: _claim,
    keys.STAGE: _stage,
}
